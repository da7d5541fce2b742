package clusterrole_test

import (
	"testing"
	"testing/synctest"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/controllers/clusterrole"
	"github.com/barque/barque/controllers/controllertest"
)

func role(name, label string, resources ...string) *rbacv1.ClusterRole {
	r := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if label != "" {
		r.Labels = map[string]string{label: "true"}
	}
	for _, res := range resources {
		r.Rules = append(r.Rules,
			rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{res}})
	}
	return r
}

func TestAggregates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		aggregating := func(name, label string) *rbacv1.ClusterRole {
			r := role(name, "")
			r.AggregationRule = &rbacv1.AggregationRule{
				ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{label: "true"}}}}
			return r
		}
		edit := aggregating("edit", "to-edit")
		edit.Labels = map[string]string{"to-admin": "true"} // aggregated itself
		c := controllertest.New(t, aggregating("admin", "to-admin"), edit, role("b", "to-edit", "pods", "secrets"),
			role("a", "to-edit", "pods"), role("other", "", "nodes"))
		ctrl, err := clusterrole.New(clusterrole.Config{Informers: c.Informers})
		if err != nil {
			t.Fatal(err)
		}
		c.Start(ctrl.Run)
		expect := func(what, name string, want ...string) {
			t.Helper()
			controllertest.Eventually(t, what, func() bool {
				r, err := c.Client.RbacV1().ClusterRoles().Get(t.Context(), name, metav1.GetOptions{})
				if err != nil || len(r.Rules) != len(want) {
					return false
				}
				for i := range want {
					if r.Rules[i].Resources[0] != want[i] {
						return false
					}
				}
				return true
			})
		}
		expect("the sum without repetition", "edit", "pods", "secrets")
		expect("the sum of sums", "admin", "pods", "secrets")
		if _, err := c.Client.RbacV1().ClusterRoles().Create(t.Context(), role("crd", "to-edit", "widgets"),
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		expect("a new part", "admin", "pods", "secrets", "widgets")
		if err := c.Client.RbacV1().ClusterRoles().Delete(t.Context(), "b", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		expect("a part that goes", "admin", "pods", "widgets")
	})
}

// The validation of roles allows spaces in the entries of rules. A rule with such an entry differs
// from one with two entries.
func TestRulesThatReadAlikeAreAllAggregated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		admin := role("admin", "")
		admin.AggregationRule = &rbacv1.AggregationRule{
			ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{"to-admin": "true"}}}}
		odd, usual := role("a", "to-admin", "pods secrets"), role("b", "to-admin", "pods")
		usual.Rules[0].Resources = []string{"pods", "secrets"}
		c := controllertest.New(t, admin, odd, usual)
		ctrl, err := clusterrole.New(clusterrole.Config{Informers: c.Informers})
		if err != nil {
			t.Fatal(err)
		}
		c.Start(ctrl.Run)
		controllertest.Eventually(t, "both rules", func() bool {
			r, err := c.Client.RbacV1().ClusterRoles().Get(t.Context(), "admin", metav1.GetOptions{})
			return err == nil && len(r.Rules) == 2 && len(r.Rules[1].Resources) == 2
		})
	})
}
