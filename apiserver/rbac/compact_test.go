package rbac

import (
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
)

func TestRefusalsAreCompactAndSorted(t *testing.T) {
	of := func(group, resource string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
	}
	named := func(r rbacv1.PolicyRule, names ...string) rbacv1.PolicyRule {
		r.ResourceNames = names
		return r
	}
	rules := []rbacv1.PolicyRule{
		of("", "secrets", "get"), of("", "pods", "get"), of("", "secrets", "list"), of("", "pods", "get"),
		of("apps", "secrets", "get"), of("", "pods", "watch"),
		named(of("", "secrets", "delete"), "a"), named(of("", "secrets", "patch"), "a"),
		named(of("", "secrets", "delete"), "b"),
		{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}},
		{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}},
		{APIGroups: []string{"", "apps"}, Resources: []string{"pods"}, Verbs: []string{"get"}},
	}
	want := []string{
		`{APIGroups:[""], Resources:["pods"], Verbs:["get" "watch"]}`,
		`{APIGroups:[""], Resources:["secrets"], ResourceNames:["a"], Verbs:["delete" "patch"]}`,
		`{APIGroups:[""], Resources:["secrets"], ResourceNames:["b"], Verbs:["delete"]}`,
		`{APIGroups:[""], Resources:["secrets"], Verbs:["get" "list"]}`,
		`{APIGroups:["" "apps"], Resources:["pods"], Verbs:["get"]}`,
		`{APIGroups:["apps"], Resources:["secrets"], Verbs:["get"]}`,
		`{NonResourceURLs:["/metrics"], Verbs:["get"]}`,
	}
	slices.Sort(want)
	if got := describeAll(rules); got != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
	if !slices.Equal(rules[0].Verbs, []string{"get"}) {
		t.Error("the rules themselves were changed")
	}
}
