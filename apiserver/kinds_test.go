package apiserver

import (
	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/resource"
)

// testResources are the default ones, and bare declarations of kinds that the tests need and that
// no group declares.
func testResources() []resource.Resource {
	all := DefaultResources()
	if resource.Find[rbacv1.Role](all) == nil {
		gv := rbacv1.SchemeGroupVersion
		all = append(all,
			&resource.Kind[rbacv1.Role]{GroupVersion: gv, Name: "roles", Singular: "role", List: &rbacv1.RoleList{}},
			&resource.Kind[rbacv1.RoleBinding]{GroupVersion: gv, Name: "rolebindings", Singular: "rolebinding", List: &rbacv1.RoleBindingList{}},
			&resource.Kind[rbacv1.ClusterRole]{GroupVersion: gv, Name: "clusterroles", Singular: "clusterrole", ClusterScoped: true, List: &rbacv1.ClusterRoleList{}},
			&resource.Kind[rbacv1.ClusterRoleBinding]{GroupVersion: gv, Name: "clusterrolebindings", Singular: "clusterrolebinding", ClusterScoped: true, List: &rbacv1.ClusterRoleBindingList{}},
		)
	}
	if resource.Find[appsv1.Deployment](all) == nil {
		all = append(all, &resource.Kind[appsv1.Deployment]{
			GroupVersion: appsv1.SchemeGroupVersion, Name: "deployments", Singular: "deployment", ShortNames: []string{"deploy"},
			List: &appsv1.DeploymentList{}, Generation: true, Status: &resource.Status[appsv1.Deployment]{},
			Default: func(d *appsv1.Deployment) {
				if d.Spec.Replicas == nil {
					d.Spec.Replicas = ptr.To[int32](1)
				}
			},
			Scale: &resource.Scale[appsv1.Deployment]{
				Replicas: func(d *appsv1.Deployment) *int32 { return d.Spec.Replicas },
				Observed: func(d *appsv1.Deployment) int32 { return d.Status.Replicas },
				Selector: func(d *appsv1.Deployment) (string, error) {
					s, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
					return s.String(), err
				},
			},
		})
	}
	return all
}
