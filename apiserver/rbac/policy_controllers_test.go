package rbac

import (
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/component-helpers/auth/rbac/validation"
)

// member is a user of the control plane, with its groups.
func member(name string) user.Info {
	return &user.DefaultInfo{Name: name, Groups: append(GroupsOf(name), user.AllAuthenticated)}
}

// TestControlPlaneMayNot: the rights that a thief of one controller's identity would look for.
func TestControlPlaneMayNot(t *testing.T) {
	var objects []runtime.Object
	for _, r := range DefaultRoles() {
		objects = append(objects, &r)
	}
	for _, b := range DefaultRoleBindings() {
		objects = append(objects, &b)
	}
	authz := newAuthorizer(t, append(defaults(), objects...)...)
	account := func(name string) string { return serviceaccount.MakeUsername(metav1.NamespaceSystem, name) }
	// These have the rights of an administrator: they make what is in the files of root on servers,
	// and in charts, whose makers may install anything.
	installers := []string{account("barque-manifests"), account("barque-helm-charts")}
	// By verb and resource, those that may do it in any namespace.
	for at, may := range map[string][]string{
		"get /secrets": {account("generic-garbage-collector")},
		"list /secrets": {account("generic-garbage-collector"), account("namespace-controller"),
			account("resourcequota-controller"),
			account("storage-version-migrator-controller")},
		"create /secrets":                  nil,
		"update /secrets":                  {user.KubeControllerManager},
		"create /serviceaccounts/token":    {user.KubeControllerManager},
		"create /pods/exec":                nil,
		"create /pods/ephemeralcontainers": nil,
		"create /nodes":                    nil,
		"create /nodes/proxy":              nil,
		"update /nodes":                    {account("node-controller")},
		"create certificates.k8s.io/certificatesigningrequests":          nil,
		"update certificates.k8s.io/certificatesigningrequests/approval": {account("certificate-controller")},
		"sign certificates.k8s.io/signers":                               nil, // of any name
		"create rbac.authorization.k8s.io/roles":                         nil,
		"create rbac.authorization.k8s.io/clusterroles":                  nil,
		"create rbac.authorization.k8s.io/rolebindings":                  nil,
		"create rbac.authorization.k8s.io/clusterrolebindings":           nil,
		"update rbac.authorization.k8s.io/rolebindings":                  nil,
		"update rbac.authorization.k8s.io/clusterrolebindings":           nil,
		"update rbac.authorization.k8s.io/clusterroles": {
			account("clusterrole-aggregation-controller")},
		"escalate rbac.authorization.k8s.io/clusterroles": {
			account("clusterrole-aggregation-controller")},
		"escalate rbac.authorization.k8s.io/roles":                            nil,
		"bind rbac.authorization.k8s.io/clusterroles":                         nil,
		"impersonate /users":                                                  nil,
		"impersonate /groups":                                                 nil,
		"impersonate /serviceaccounts":                                        nil,
		"create admissionregistration.k8s.io/validatingwebhookconfigurations": nil,
		"update admissionregistration.k8s.io/mutatingwebhookconfigurations":   nil,
		"update apiextensions.k8s.io/customresourcedefinitions":               nil,
	} {
		verb, resource, _ := strings.Cut(at, " ")
		part := strings.Split(resource, "/")
		a := authorizer.AttributesRecord{Verb: verb, APIGroup: part[0], APIVersion: "v1", Resource: part[1],
			Namespace: "ns", Name: "n", ResourceRequest: true}
		if len(part) > 2 {
			a.Subresource = part[2]
		}
		for _, name := range ControlPlane() {
			if slices.Contains(installers, name) {
				continue
			}
			a.User = member(name)
			decision, reason, err := authz.Authorize(t.Context(), a)
			if err != nil {
				t.Error(err)
			}
			if got, want := decision == authorizer.DecisionAllow, slices.Contains(may, name); got != want {
				t.Errorf("%s may %s: %t, want %t (%s)", name, at, got, want, reason)
			}
		}
	}
	for _, name := range []string{"service-controller", "route-controller", "node-controller", "default"} {
		if IsController(metav1.NamespaceSystem, name) {
			t.Errorf("no token counts for %s, which cloud-controller-managers have", name)
		}
	}
	if !IsController(metav1.NamespaceSystem, "deployment-controller") || IsController("ns", "deployment-controller") {
		t.Error("deployment-controller in kube-system is a controller, and elsewhere it is not")
	}
	// No wildcard but those of the collectors, which serve kinds of users.
	all := map[string]bool{"namespace-controller": true, "resourcequota-controller": true,
		"generic-garbage-collector": true, "storage-version-migrator-controller": true}
	for _, c := range controllers() {
		if slices.Contains(installers, account(c.account)) {
			continue
		}
		for _, rule := range c.rules {
			if slices.Contains(rule.Verbs, "*") {
				t.Errorf("%s has all verbs: %v", c.account, rule)
			}
			if slices.Contains(rule.Resources, "*") && slices.Contains(rule.APIGroups, "*") && !all[c.account] {
				t.Errorf("%s has all resources: %v", c.account, rule)
			}
		}
	}
}

// TestEarlierRightsAreRemoved: in a cluster that an earlier version made, the one user of all
// controllers loses its rights, and keeps those that users have added. Where its role has opted out
// nothing is changed.
func TestEarlierRightsAreRemoved(t *testing.T) {
	const name = "system:kube-controller-manager"
	added := rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{"example.com"},
		Resources: []string{"things"}}
	for optedOut, want := range map[bool]int{false: len(tokenRules()) + 1, true: len(retired()[name]) + 1} {
		earlier := clusterRole(name, append(retired()[name], added)...)
		if optedOut {
			earlier.Annotations[autoUpdate] = "false"
		}
		client := fake.NewClientset(&earlier)
		factory := informers.NewSharedInformerFactory(client, 0)
		known := factory.Rbac().V1()
		Reconciled(known) // requests the informers
		factory.StartWithContext(t.Context())
		factory.WaitForCacheSync(t.Context().Done())
		if Reconciled(known) {
			t.Error("a cluster without roles has all of them")
		}
		if err := Reconcile(t.Context(), client, known); err != nil {
			t.Fatal(err)
		}
		role, err := client.RbacV1().ClusterRoles().Get(t.Context(), name, metav1.GetOptions{})
		covers, _ := validation.Covers(role.Rules, tokenRules())
		if err != nil || len(role.Rules) < want ||
			!optedOut && slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool {
				return slices.Contains(r.Verbs, "escalate") || slices.Contains(r.Resources, "*")
			}) || !covers {
			t.Errorf("opted out %t: %v, %v; want %d rules", optedOut, role.Rules, err, want)
		}
		if !slices.ContainsFunc(role.Rules,
			func(r rbacv1.PolicyRule) bool { return slices.Contains(r.APIGroups, "example.com") }) {
			t.Error("an added rule was taken away")
		}
	}
}

// TestRightsOfAllNamespacesAreRemoved: in a cluster whose controller of the API's endpoints had its
// rights everywhere, it keeps them in the namespace of the Service.
func TestRightsOfAllNamespacesAreRemoved(t *testing.T) {
	const name = "barque:controller:api-endpoints"
	earlier := clusterRole(name, apiEndpointsRules()...)
	client := fake.NewClientset(&earlier)
	factory := informers.NewSharedInformerFactory(client, 0)
	known := factory.Rbac().V1()
	Reconciled(known) // requests the informers
	factory.StartWithContext(t.Context())
	factory.WaitForCacheSync(t.Context().Done())
	if err := Reconcile(t.Context(), client, known); err != nil {
		t.Fatal(err)
	}
	everywhere, err := client.RbacV1().ClusterRoles().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil || len(everywhere.Rules) > 0 {
		t.Errorf("in all namespaces it has the rules %v (%v)", everywhere.Rules, err)
	}
	here, err := client.RbacV1().Roles(metav1.NamespaceDefault).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil || len(here.Rules) != len(apiEndpointsRules()) {
		t.Errorf("in the namespace of the Service it has the rules %v (%v)", here.Rules, err)
	}
}

// TestReconciled: it is true when the informers show all objects of Reconcile, and false when a
// rule is lost.
func TestReconciled(t *testing.T) {
	client := fake.NewClientset()
	factory := informers.NewSharedInformerFactory(client, 0)
	known := factory.Rbac().V1()
	if Reconciled(known) {
		t.Error("there are no roles")
	}
	if err := Reconcile(t.Context(), client, known); err != nil {
		t.Fatal(err)
	}
	factory.StartWithContext(t.Context())
	factory.WaitForCacheSync(t.Context().Done())
	if !Reconciled(known) {
		t.Error("all roles are there")
	}
	store := known.ClusterRoles().Informer().GetStore()
	obj, _, err := store.GetByKey("system:controller:deployment-controller")
	if err != nil {
		t.Fatal(err)
	}
	role := obj.(*rbacv1.ClusterRole).DeepCopy()
	role.Rules = role.Rules[1:]
	if err := store.Update(role); err != nil {
		t.Fatal(err)
	}
	if Reconciled(known) {
		t.Error("a rule is missing")
	}
}

// BenchmarkReconciled measures a new leader's check before its controllers start.
func BenchmarkReconciled(b *testing.B) {
	client := fake.NewClientset()
	factory := informers.NewSharedInformerFactory(client, 0)
	known := factory.Rbac().V1()
	if err := Reconcile(b.Context(), client, known); err != nil {
		b.Fatal(err)
	}
	Reconciled(known)
	factory.StartWithContext(b.Context())
	factory.WaitForCacheSync(b.Context().Done())
	for b.Loop() {
		if !Reconciled(known) {
			b.Fatal("not all are right")
		}
	}
}
