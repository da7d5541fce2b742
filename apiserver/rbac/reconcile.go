package rbac

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	informers "k8s.io/client-go/informers/rbac/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
	"k8s.io/component-helpers/auth/rbac/reconciliation"
)

// Reconcile creates the default roles and bindings that are missing, adds rules that they have
// lost, and removes rights that earlier versions gave too much (see retired). Additions of users
// stay, and so do objects that opted out. It goes through all of them before it reports its
// failures. An object that is right by the informers costs no request, as each new leader comes by
// here while clients wait for it. A running request is not cancelled with ctx: the reconciliation
// of k8s.io/component-helpers makes it with a context of its own. Only the client can end it (the
// client of a leader's term does so, see controllers/runtime).
func Reconcile(ctx context.Context, client kubernetes.Interface, known informers.Interface) error {
	r := &reconciler{ctx: ctx, client: client, known: known}
	r.all()
	if ctx.Err() != nil {
		r.errs = append(r.errs, context.Cause(ctx))
	}
	return errors.Join(r.errs...)
}

// Reconciled reports whether all default roles and bindings are right by the informers, which is
// some moments after Reconcile has written them.
func Reconciled(known informers.Interface) bool {
	r := &reconciler{ctx: context.Background(), known: known}
	r.all()
	return r.wrong == 0
}

// GrantKubeletClient creates the binding by which kubelets of an earlier version, and of others,
// admit the API server. A leader of an earlier version does not create it.
func GrantKubeletClient(ctx context.Context, client kubernetes.Interface) error {
	binding := kubeletClientBinding()
	bindings := client.RbacV1().ClusterRoleBindings()
	_, err := bindings.Get(ctx, binding.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = bindings.Create(ctx, &binding, metav1.CreateOptions{})
	}
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("default ClusterRoleBinding %q: %w", binding.Name, err)
	}
	return nil
}

// reconciler goes through the default roles and bindings.
type reconciler struct {
	ctx    context.Context
	client kubernetes.Interface // nil counts the faults, and repairs nothing
	known  informers.Interface
	wrong  int
	errs   []error
}

// all goes through all of them.
func (r *reconciler) all() {
	known := r.known
	for _, d := range DefaultClusterRoles() {
		r.role("ClusterRole", reconciliation.ClusterRoleRuleOwner{ClusterRole: &d},
			func() reconciliation.RuleOwnerModifier {
				return reconciliation.ClusterRoleModifier{Client: r.client.RbacV1().ClusterRoles()}
			}, func(_, name string) (reconciliation.RuleOwner, error) {
				found, err := known.ClusterRoles().Lister().Get(name)
				return reconciliation.ClusterRoleRuleOwner{ClusterRole: found}, err
			})
	}
	for _, d := range DefaultClusterRoleBindings() {
		r.binding("ClusterRoleBinding", reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: &d},
			func() reconciliation.RoleBindingModifier {
				return reconciliation.ClusterRoleBindingClientAdapter{Client: r.client.RbacV1().ClusterRoleBindings()}
			}, func(_, name string) (reconciliation.RoleBinding, error) {
				found, err := known.ClusterRoleBindings().Lister().Get(name)
				return reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: found}, err
			})
	}
	for _, d := range DefaultRoles() {
		r.role("Role", reconciliation.RoleRuleOwner{Role: &d}, func() reconciliation.RuleOwnerModifier {
			return reconciliation.RoleModifier{Client: r.client.RbacV1(),
				NamespaceClient: r.client.CoreV1().Namespaces()}
		}, func(namespace, name string) (reconciliation.RuleOwner, error) {
			found, err := known.Roles().Lister().Roles(namespace).Get(name)
			return reconciliation.RoleRuleOwner{Role: found}, err
		})
	}
	for _, d := range DefaultRoleBindings() {
		r.binding("RoleBinding", reconciliation.RoleBindingAdapter{RoleBinding: &d},
			func() reconciliation.RoleBindingModifier {
				return reconciliation.RoleBindingClientAdapter{Client: r.client.RbacV1(),
					NamespaceClient: r.client.CoreV1().Namespaces()}
			}, func(namespace, name string) (reconciliation.RoleBinding, error) {
				found, err := known.RoleBindings().Lister().RoleBindings(namespace).Get(name)
				return reconciliation.RoleBindingAdapter{RoleBinding: found}, err
			})
	}
	for name, rules := range retired() {
		r.retire(name, rules)
	}
}

// knownRoles and knownBindings read the informers' objects; a trial run does nothing else.
type (
	knownRoles struct {
		reconciliation.RuleOwnerModifier
		get func(namespace, name string) (reconciliation.RuleOwner, error)
	}
	knownBindings struct {
		reconciliation.RoleBindingModifier
		get func(namespace, name string) (reconciliation.RoleBinding, error)
	}
)

func (k knownRoles) Get(namespace, name string) (reconciliation.RuleOwner, error) {
	return k.get(namespace, name)
}

func (k knownBindings) Get(namespace, name string) (reconciliation.RoleBinding, error) {
	return k.get(namespace, name)
}

func (r *reconciler) role(kind string, want reconciliation.RuleOwner, api func() reconciliation.RuleOwnerModifier,
	known func(namespace, name string) (reconciliation.RuleOwner, error)) {
	run := func(
		client reconciliation.RuleOwnerModifier, confirm bool,
	) (*reconciliation.ReconcileClusterRoleResult, error) {
		return (&reconciliation.ReconcileRoleOptions{Role: want.DeepCopyRuleOwner(), Client: client,
			Confirm: confirm}).Run()
	}
	r.do(kind, want.GetNamespace(), want.GetName(), func() bool {
		result, err := run(knownRoles{get: known}, false)
		return err == nil && (result.Protected || result.Operation == reconciliation.ReconcileNone)
	}, func() error {
		_, err := run(api(), true)
		return err
	})
}

func (r *reconciler) binding(kind string, want reconciliation.RoleBinding,
	api func() reconciliation.RoleBindingModifier,
	known func(namespace, name string) (reconciliation.RoleBinding, error)) {
	run := func(
		client reconciliation.RoleBindingModifier, confirm bool,
	) (*reconciliation.ReconcileClusterRoleBindingResult, error) {
		return (&reconciliation.ReconcileRoleBindingOptions{RoleBinding: want.DeepCopyRoleBinding(), Client: client,
			Confirm: confirm}).Run()
	}
	r.do(kind, want.GetNamespace(), want.GetName(), func() bool {
		result, err := run(knownBindings{get: known}, false)
		return err == nil && (result.Protected || result.Operation == reconciliation.ReconcileNone)
	}, func() error {
		_, err := run(api(), true)
		return err
	})
}

// do repairs an object that is not right, unless ctx has ended.
func (r *reconciler) do(kind, namespace, name string, right func() bool, repair func() error) {
	if r.ctx.Err() != nil || right() {
		return
	}
	if r.wrong++; r.client == nil {
		return
	}
	if err := retry.RetryOnConflict(retry.DefaultBackoff, repair); err != nil {
		if namespace != "" {
			name = namespace + "/" + name
		}
		r.errs = append(r.errs, fmt.Errorf("default %s %q: %w", kind, name, err))
	}
}
