package cis

import (
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
)

// TestWaysToRights: each usual way to give rights away is seen.
func TestWaysToRights(t *testing.T) {
	ann := rbacv1.Subject{Kind: "User", Name: "ann"}
	group := func(name string) rbacv1.Subject { return rbacv1.Subject{Kind: "Group", Name: name} }
	all := rbacv1.PolicyRule{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}}
	join := func(name string, s rbacv1.Subject) func(*Evidence) {
		return func(e *Evidence) {
			at := slices.IndexFunc(e.Objects.ClusterRoleBindings,
				func(b rbacv1.ClusterRoleBinding) bool { return b.Name == name })
			b := &e.Objects.ClusterRoleBindings[at]
			b.Subjects = append(slices.Clone(b.Subjects), s)
		}
	}
	labelled := func(e *Evidence) {
		r := clusterRoleOf("mine", all)
		r.Labels = map[string]string{"kubernetes.io/bootstrapping": "rbac-defaults"}
		e.Objects.ClusterRoles = append(e.Objects.ClusterRoles, r)
		bind("mine", "mine", ann)(e)
	}
	extended := func(name string, rule rbacv1.PolicyRule) func(*Evidence) {
		return func(e *Evidence) {
			at := slices.IndexFunc(e.Objects.ClusterRoles, func(r rbacv1.ClusterRole) bool { return r.Name == name })
			r := &e.Objects.ClusterRoles[at]
			r.Rules = append(slices.Clone(r.Rules), rule)
		}
	}
	given := []string{"5.1.8", "5.1.9", "5.1.10", "5.1.11", "5.1.12", "5.1.13"}
	for name, c := range map[string]struct {
		do   func(*Evidence)
		rows []string
		says string
	}{
		"a user in the default binding": {join(adminRole, ann), append([]string{"5.1.1", "5.1.7"}, given...),
			"User ann"},
		"a user in the administrators' binding": {join("barque:admins", ann), append([]string{"5.1.1"}, given...),
			"User ann"},
		"masters in a binding": {bind("mine", "edit", group(mastersGroup)), []string{"5.1.7"},
			"the binding mine"},
		"masters in a namespace": {bindLocally("dev", "edit", group(mastersGroup)), []string{"5.1.7"},
			"dev/local"},
		"masters in the administrators' binding": {join("barque:admins", group(mastersGroup)),
			[]string{"5.1.1", "5.1.7"}, "barque:admins"},
		"a binding to cluster-admin": {bind("mine", adminRole, ann), append([]string{"5.1.1"}, given...),
			"the binding mine"},
		"cluster-admin in kube-system": {bindLocally("kube-system", adminRole, ann), []string{"5.1.1"},
			"kube-system/local"},
		"cluster-admin in a namespace":      {bindLocally("dev", adminRole, ann), []string{"5.1.1"}, "dev/local"},
		"a role with the label of defaults": {labelled, append([]string{"5.1.3"}, given...), "mine"},
		"a user in another default binding": {join("barque:kubelet-client", ann), []string{"5.1.10"}, "User ann"},
		"a default role bound to a user": {bind("mine", "system:kubelet-api-admin", ann), []string{"5.1.10"},
			"User ann"},
		"edit bound to a user": {bind("mine", "edit", ann), []string{"5.1.8", "5.1.13"}, "of edit"},
		"a default role with more": {extended("system:kubelet-api-admin", all),
			append([]string{"5.1.3"}, "5.1.8", "5.1.9", "5.1.11", "5.1.12", "5.1.13"), "system:kubelet-api-admin"},
		"an aggregated role with more": {func(e *Evidence) { extended("edit", all)(e) }, []string{"5.1.3"},
			"edit"},
		"escalation": {
			role(
				rbacv1.PolicyRule{Verbs: []string{"escalate"}, APIGroups: []string{"rbac.authorization.k8s.io"},
					Resources: []string{"clusterroles"}}), []string{"5.1.8"}, "mine"},
		"binding of roles": {
			role(
				rbacv1.PolicyRule{Verbs: []string{"bind"}, APIGroups: []string{"rbac.authorization.k8s.io"},
					Resources: []string{"roles"}}), []string{"5.1.8"}, "mine"},
		"impersonation of groups": {
			role(
				rbacv1.PolicyRule{Verbs: []string{"impersonate"}, APIGroups: []string{""},
					Resources: []string{"groups"}}), []string{"5.1.8"}, "mine"},
		"every proxy": {
			role(rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"*/proxy"}}),
			[]string{"5.1.10"}, "mine"},
		"edit bound to accounts in a namespace": {bindLocally("dev", "edit", group("system:serviceaccounts")),
			[]string{"5.1.2", "5.1.4"}, "dev/local"},
		"edit bound to strangers in a namespace": {bindLocally("dev", "edit", group("system:unauthenticated")),
			[]string{"5.1.2", "5.1.4"}, "dev/local"},
		"edit bound to anonymous": {
			bindLocally("dev", "edit", rbacv1.Subject{Kind: "User", Name: "system:anonymous"}),
			[]string{"5.1.2", "5.1.4"}, "dev/local"},
		"edit bound to accounts of one namespace": {bind("mine", "edit", group("system:serviceaccounts:dev")),
			[]string{"5.1.2", "5.1.4"}, "the binding mine"},
	} {
		for _, id := range c.rows {
			e := hardened()
			if r := judged(e, id); r.Status != Pass {
				t.Errorf("%s: before: %+v", id, r)
			}
			c.do(e)
			if r := judged(e, id); r.Status != Person || !strings.Contains(r.Reason, c.says) {
				t.Errorf("%s: %s: %+v", name, id, r)
			}
		}
	}
	for _, id := range append([]string{"5.1.1", "5.1.2", "5.1.3", "5.1.4", "5.1.7"}, given...) {
		e := hardened()
		e.Defaults = nil
		if r := judged(e, id); r.Status != Unknown {
			t.Errorf("%s without the default roles: %+v", id, r)
		}
	}
}

// TestEachBroadGroupIsReviewed: strangers and accounts, too, in all namespaces and in the cluster's
// own.
func TestEachBroadGroupIsReviewed(t *testing.T) {
	for id, requests := range map[string][]string{"5.1.2": {"get secrets", "list secrets", "watch secrets"},
		"5.1.4": {"create pods"}} {
		for _, group := range []string{"system:authenticated", "system:serviceaccounts", "system:unauthenticated"} {
			for _, request := range requests {
				for _, namespace := range []string{"", "kube-system"} {
					key := BroadGroup{Group: group}.Request(request, namespace)
					e := hardened()
					if _, asked := e.Servers[0].Answers.May[key]; !asked {
						t.Errorf("%s is not asked", key)
					}
					may(key, Answer{Allowed: true, Reason: "RBAC: by edit"})(e)
					if r := judged(e, id); r.Status != Fail || !strings.Contains(r.Reason, key) ||
						!strings.Contains(r.Reason, "by edit") {
						t.Errorf("%s: %s: %+v", id, key, r)
					}
					delete(e.Servers[0].Answers.May, key)
					if r := judged(e, id); r.Status != Unknown || !strings.Contains(r.Reason, key) {
						t.Errorf("%s without %s: %+v", id, key, r)
					}
				}
			}
		}
	}
}

// TestControllersOfEarlierServers: a server that does not report its controllers may have them in
// system:masters.
func TestControllersOfEarlierServers(t *testing.T) {
	e := hardened()
	e.Servers[0].Report.Controllers = nil
	if r := judged(e, "5.1.7"); r.Status != Unknown || !strings.Contains(r.Reason, "controllers") {
		t.Errorf("%+v", r)
	}
}
