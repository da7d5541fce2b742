package rbac

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	rbacv1client "k8s.io/client-go/kubernetes/typed/rbac/v1"
)

// The reconciliation of k8s.io/component-helpers calls its clients with a context that never ends. A leader that loses the
// others in the middle of a call would go on with it until the store gives up, for many seconds, and could neither stop
// nor begin another term. These clients end their calls with a context of ours.

type boundClusterRoles struct {
	rbacv1client.ClusterRoleInterface
	ctx context.Context
}

func (b boundClusterRoles) Get(_ context.Context, name string, o metav1.GetOptions) (*rbacv1.ClusterRole, error) {
	return b.ClusterRoleInterface.Get(b.ctx, name, o)
}

func (b boundClusterRoles) Create(_ context.Context, r *rbacv1.ClusterRole, o metav1.CreateOptions) (*rbacv1.ClusterRole, error) {
	return b.ClusterRoleInterface.Create(b.ctx, r, o)
}

func (b boundClusterRoles) Update(_ context.Context, r *rbacv1.ClusterRole, o metav1.UpdateOptions) (*rbacv1.ClusterRole, error) {
	return b.ClusterRoleInterface.Update(b.ctx, r, o)
}

type boundClusterRoleBindings struct {
	rbacv1client.ClusterRoleBindingInterface
	ctx context.Context
}

func (b boundClusterRoleBindings) Get(_ context.Context, name string, o metav1.GetOptions) (*rbacv1.ClusterRoleBinding, error) {
	return b.ClusterRoleBindingInterface.Get(b.ctx, name, o)
}

func (b boundClusterRoleBindings) Create(_ context.Context, r *rbacv1.ClusterRoleBinding, o metav1.CreateOptions) (*rbacv1.ClusterRoleBinding, error) {
	return b.ClusterRoleBindingInterface.Create(b.ctx, r, o)
}

func (b boundClusterRoleBindings) Update(_ context.Context, r *rbacv1.ClusterRoleBinding, o metav1.UpdateOptions) (*rbacv1.ClusterRoleBinding, error) {
	return b.ClusterRoleBindingInterface.Update(b.ctx, r, o)
}

func (b boundClusterRoleBindings) Delete(_ context.Context, name string, o metav1.DeleteOptions) error {
	return b.ClusterRoleBindingInterface.Delete(b.ctx, name, o)
}

// boundNamespaced has the roles and bindings of namespaces.
type boundNamespaced struct {
	client rbacv1client.RbacV1Interface
	ctx    context.Context
}

func (b boundNamespaced) Roles(namespace string) rbacv1client.RoleInterface {
	return boundRoles{b.client.Roles(namespace), b.ctx}
}

func (b boundNamespaced) RoleBindings(namespace string) rbacv1client.RoleBindingInterface {
	return boundRoleBindings{b.client.RoleBindings(namespace), b.ctx}
}

type boundRoles struct {
	rbacv1client.RoleInterface
	ctx context.Context
}

func (b boundRoles) Get(_ context.Context, name string, o metav1.GetOptions) (*rbacv1.Role, error) {
	return b.RoleInterface.Get(b.ctx, name, o)
}

func (b boundRoles) Create(_ context.Context, r *rbacv1.Role, o metav1.CreateOptions) (*rbacv1.Role, error) {
	return b.RoleInterface.Create(b.ctx, r, o)
}

func (b boundRoles) Update(_ context.Context, r *rbacv1.Role, o metav1.UpdateOptions) (*rbacv1.Role, error) {
	return b.RoleInterface.Update(b.ctx, r, o)
}

type boundRoleBindings struct {
	rbacv1client.RoleBindingInterface
	ctx context.Context
}

func (b boundRoleBindings) Get(_ context.Context, name string, o metav1.GetOptions) (*rbacv1.RoleBinding, error) {
	return b.RoleBindingInterface.Get(b.ctx, name, o)
}

func (b boundRoleBindings) Create(_ context.Context, r *rbacv1.RoleBinding, o metav1.CreateOptions) (*rbacv1.RoleBinding, error) {
	return b.RoleBindingInterface.Create(b.ctx, r, o)
}

func (b boundRoleBindings) Update(_ context.Context, r *rbacv1.RoleBinding, o metav1.UpdateOptions) (*rbacv1.RoleBinding, error) {
	return b.RoleBindingInterface.Update(b.ctx, r, o)
}

func (b boundRoleBindings) Delete(_ context.Context, name string, o metav1.DeleteOptions) error {
	return b.RoleBindingInterface.Delete(b.ctx, name, o)
}

type boundNamespaces struct {
	corev1client.NamespaceInterface
	ctx context.Context
}

func (b boundNamespaces) Get(_ context.Context, name string, o metav1.GetOptions) (*corev1.Namespace, error) {
	return b.NamespaceInterface.Get(b.ctx, name, o)
}

func (b boundNamespaces) Create(_ context.Context, n *corev1.Namespace, o metav1.CreateOptions) (*corev1.Namespace, error) {
	return b.NamespaceInterface.Create(b.ctx, n, o)
}
