package apiserver

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// testDevices follows a claim from its creation to the report on its device, and checks which users
// may write which part of it.
func testDevices(t *testing.T, c *cluster) {
	ctx := t.Context()
	must(
		c.admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "devices"}},
			metav1.CreateOptions{}))(t)
	must(
		c.admin.RbacV1().ClusterRoles().Create(ctx,
			&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "reporting"}, Rules: []rbacv1.PolicyRule{
				{APIGroups: []string{"resource.k8s.io"}, Verbs: []string{"*"},
					Resources: []string{"resourceclaims", "resourceclaims/status"}},
				{APIGroups: []string{"resource.k8s.io"}, Verbs: []string{"arbitrary-node:update"},
					Resources: []string{"resourceclaims/driver"}, ResourceNames: []string{"d.example.com"}},
			}}, metav1.CreateOptions{}))(t)
	must(
		c.admin.RbacV1().ClusterRoleBindings().Create(ctx,
			&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "reporting"},
				RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "reporting"},
				Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "reporting"}}},
			metav1.CreateOptions{}))(t)

	claims := c.admin.ResourceV1().ResourceClaims("devices")
	claim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "c"},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{
			Requests: []resourcev1.DeviceRequest{
				{Name: "a", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "d", AdminAccess: ptr.To(true)}}},
		}}}
	template := &resourcev1.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: "t"},
		Spec: resourcev1.ResourceClaimTemplateSpec{Spec: claim.Spec}}
	if _, err := claims.Create(ctx, claim, metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("administrative access without the label of the namespace: %v", err)
	}
	if _, err := c.admin.ResourceV1().ResourceClaimTemplates("devices").Create(ctx, template,
		metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("a template for administrative access without the label of the namespace: %v", err)
	}
	ns := must(c.admin.CoreV1().Namespaces().Get(ctx, "devices", metav1.GetOptions{}))(t)
	ns.Labels[resourcev1.DRAAdminNamespaceLabelKey] = "true"
	must(c.admin.CoreV1().Namespaces().Update(ctx, ns, metav1.UpdateOptions{}))(t)
	made := must(claims.Create(ctx, claim, metav1.CreateOptions{}))(t)
	must(c.admin.ResourceV1().ResourceClaimTemplates("devices").Create(ctx, template, metav1.CreateOptions{}))(t)
	if made.Spec.Devices.Requests[0].Exactly.Count != 1 {
		t.Errorf("the claim has no defaults: %+v", made.Spec.Devices.Requests[0].Exactly)
	}

	reporting := kubernetes.NewForConfigOrDie(c.ca.client(t, c.host, subject("reporting"))).ResourceV1().ResourceClaims(
		"devices")
	allocated := made.DeepCopy()
	allocated.Status.Allocation = &resourcev1.AllocationResult{
		Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
			{Request: "a", Driver: "d.example.com", Pool: "p", Device: "x"},
			{Request: "a", Driver: "other.example.com", Pool: "p", Device: "y"},
		}}}
	eventually(t, "the reporting user may read", func(ctx context.Context) error {
		_, err := reporting.Get(ctx, "c", metav1.GetOptions{})
		return err
	})
	if _, err := reporting.UpdateStatus(ctx, allocated, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("allocation by a user who may not bind claims: %v", err)
	}
	allocated = must(claims.UpdateStatus(ctx, allocated, metav1.UpdateOptions{}))(t)
	reported := allocated.DeepCopy()
	reported.Status.Devices = []resourcev1.AllocatedDeviceStatus{{Driver: "other.example.com", Pool: "p", Device: "y"}}
	if _, err := reporting.UpdateStatus(ctx, reported, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("a report for a driver of others: %v", err)
	}
	reported.Status.Devices = []resourcev1.AllocatedDeviceStatus{{Driver: "d.example.com", Pool: "p", Device: "x"}}
	if got := must(reporting.UpdateStatus(ctx, reported, metav1.UpdateOptions{}))(t); len(got.Status.Devices) != 1 {
		t.Errorf("reported as %+v", got.Status)
	}
	testSlices(t, c)
}

// testSlices lists slices by their fields, and writes them as a kubelet.
func testSlices(t *testing.T, c *cluster) {
	ctx := t.Context()
	slice := func(node, driver string) *resourcev1.ResourceSlice {
		return &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node + "-" + driver},
			Spec: resourcev1.ResourceSliceSpec{
				Driver: driver, NodeName: &node, Pool: resourcev1.ResourcePool{Name: node, ResourceSliceCount: 1}}}
	}
	slices := c.admin.ResourceV1().ResourceSlices()
	for _, s := range []*resourcev1.ResourceSlice{slice("n1", "a"), slice("n1", "b"), slice("n2", "a")} {
		must(slices.Create(ctx, s, metav1.CreateOptions{}))(t)
	}
	for selector, want := range map[string]int{"spec.nodeName=n1": 2, "spec.driver=a": 2,
		"spec.nodeName=n1,spec.driver=b": 1, "spec.pool.name=n2": 1} {
		if list := must(slices.List(ctx, metav1.ListOptions{FieldSelector: selector}))(t); len(list.Items) != want {
			t.Errorf("%s: %d slices, want %d", selector, len(list.Items), want)
		}
	}
	kubelet := kubernetes.NewForConfigOrDie(
		c.ca.client(t, c.host, subject("system:node:n1", "system:nodes"))).ResourceV1().ResourceSlices()
	if err := kubelet.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a kubelet deletes all slices: %v", err)
	}
	if err := kubelet.DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{FieldSelector: "spec.nodeName=n1"}); err != nil {
		t.Errorf("a kubelet deletes its slices: %v", err)
	}
	if list := must(slices.List(ctx, metav1.ListOptions{}))(t); len(list.Items) != 1 || list.Items[0].Name != "n2-a" {
		t.Errorf("left are %+v", list.Items)
	}
}
