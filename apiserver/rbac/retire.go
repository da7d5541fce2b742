package rbac

import (
	"fmt"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/auth/rbac/validation"
)

// retired returns rules that default roles of earlier versions had, by the name of the
// ClusterRole. Reconciliation only adds rules: a cluster that was made by an earlier version would
// keep these for ever. A leader of an earlier version adds them again, until all servers are new.
func retired() map[string][]rbacv1.PolicyRule {
	return map[string][]rbacv1.PolicyRule{
		// Up to November 2026 all controllers had one user, with all rights.
		"system:kube-controller-manager": {
			on("*", slices.Concat(readVerbs, writeVerbs), "*"),
			on("rbac.authorization.k8s.io", verbs("escalate", "bind"), "clusterroles", "roles"),
			on("certificates.k8s.io", verbs("approve", "sign", "attest"), "signers"),
			urls("/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*"),
		},
		// Its role was one of all namespaces for some days of November 2026.
		ownControllerRole + "api-endpoints": apiEndpointsRules(),
	}
}

// retire removes rules from a ClusterRole, unless that opted out of reconciliation.
func (r *reconciler) retire(name string, rules []rbacv1.PolicyRule) {
	left := func(role *rbacv1.ClusterRole) []rbacv1.PolicyRule {
		return slices.DeleteFunc(slices.Clone(role.Rules), func(is rbacv1.PolicyRule) bool {
			return slices.ContainsFunc(rules,
				func(was rbacv1.PolicyRule) bool { return apiequality.Semantic.DeepEqual(is, was) })
		})
	}
	right := func(role *rbacv1.ClusterRole) bool {
		return role.Annotations[autoUpdate] == "false" || len(left(role)) == len(role.Rules)
	}
	r.do("ClusterRole", "", name, func() bool {
		role, err := r.known.ClusterRoles().Lister().Get(name)
		return err == nil && right(role) || apierrors.IsNotFound(err)
	}, func() error {
		roles := r.client.RbacV1().ClusterRoles()
		role, err := roles.Get(r.ctx, name, metav1.GetOptions{})
		if err != nil || right(role) {
			return err
		}
		role.Rules = left(role)
		// The removed rules may have covered those that the role has today.
		for _, d := range DefaultClusterRoles() {
			if d.Name == name {
				_, missing := validation.Covers(role.Rules, d.Rules)
				role.Rules = append(role.Rules, missing...)
			}
		}
		if _, err := roles.Update(r.ctx, role, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("removing rights of earlier versions: %w", err)
		}
		return nil
	})
}
