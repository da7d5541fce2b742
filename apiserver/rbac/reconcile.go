package rbac

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
	"k8s.io/component-helpers/auth/rbac/reconciliation"
)

// Reconcile creates the default roles and bindings that are missing and adds what they have lost.
// What people added to them stays, and so do objects that opted out. It goes through all of them
// before it reports what failed. A request that is under way when ctx ends ends by the client alone
// (the one of a leader's term does so, see controllers/runtime): the reconciliation of
// k8s.io/component-helpers makes them with a context of its own.
func Reconcile(ctx context.Context, client kubernetes.Interface) error {
	c, namespaces := client.RbacV1(), client.CoreV1().Namespaces()
	var errs []error
	do := func(kind, name string, step func() error) {
		if ctx.Err() != nil {
			return
		}
		if err := retry.RetryOnConflict(retry.DefaultBackoff, step); err != nil {
			errs = append(errs, fmt.Errorf("default %s %q: %w", kind, name, err))
		}
	}
	for _, r := range DefaultClusterRoles() {
		do("ClusterRole", r.Name, func() error {
			_, err := (&reconciliation.ReconcileRoleOptions{
				Role: reconciliation.ClusterRoleRuleOwner{ClusterRole: r.DeepCopy()}, Confirm: true,
				Client: reconciliation.ClusterRoleModifier{Client: c.ClusterRoles()},
			}).Run()
			return err
		})
	}
	for _, b := range DefaultClusterRoleBindings() {
		do("ClusterRoleBinding", b.Name, func() error {
			_, err := (&reconciliation.ReconcileRoleBindingOptions{
				RoleBinding: reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: b.DeepCopy()}, Confirm: true,
				Client: reconciliation.ClusterRoleBindingClientAdapter{Client: c.ClusterRoleBindings()},
			}).Run()
			return err
		})
	}
	for _, r := range DefaultRoles() {
		do("Role", r.Namespace+"/"+r.Name, func() error {
			_, err := (&reconciliation.ReconcileRoleOptions{
				Role: reconciliation.RoleRuleOwner{Role: r.DeepCopy()}, Confirm: true,
				Client: reconciliation.RoleModifier{Client: c, NamespaceClient: namespaces},
			}).Run()
			return err
		})
	}
	for _, b := range DefaultRoleBindings() {
		do("RoleBinding", b.Namespace+"/"+b.Name, func() error {
			_, err := (&reconciliation.ReconcileRoleBindingOptions{
				RoleBinding: reconciliation.RoleBindingAdapter{RoleBinding: b.DeepCopy()}, Confirm: true,
				Client: reconciliation.RoleBindingClientAdapter{Client: c, NamespaceClient: namespaces},
			}).Run()
			return err
		})
	}
	if ctx.Err() != nil {
		errs = append(errs, context.Cause(ctx))
	}
	return errors.Join(errs...)
}
