package rbac

import (
	"context"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	listers "k8s.io/client-go/listers/rbac/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/internal/clusterusers"
	"github.com/barque/barque/internal/kubeletapi"
)

func newAuthorizer(t *testing.T, objects ...runtime.Object) *Authorizer {
	t.Helper()
	byKind := map[string]cache.Indexer{}
	for _, k := range []string{"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"} {
		byKind[k] = cache.NewIndexer(cache.MetaNamespaceKeyFunc,
			cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	}
	for _, o := range objects {
		var kind string
		switch o.(type) {
		case *rbacv1.Role:
			kind = "Role"
		case *rbacv1.RoleBinding:
			kind = "RoleBinding"
		case *rbacv1.ClusterRole:
			kind = "ClusterRole"
		case *rbacv1.ClusterRoleBinding:
			kind = "ClusterRoleBinding"
		}
		if err := byKind[kind].Add(o); err != nil {
			t.Fatal(err)
		}
	}
	return NewAuthorizer(listers.NewRoleLister(byKind["Role"]), listers.NewRoleBindingLister(byKind["RoleBinding"]),
		listers.NewClusterRoleLister(byKind["ClusterRole"]),
		listers.NewClusterRoleBindingLister(byKind["ClusterRoleBinding"]))
}

func defaults() []runtime.Object {
	var out []runtime.Object
	for _, r := range DefaultClusterRoles() {
		out = append(out, &r)
	}
	for _, b := range DefaultClusterRoleBindings() {
		out = append(out, &b)
	}
	return out
}

func TestRuleMatching(t *testing.T) {
	pods := rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""},
		Resources: []string{"pods", "pods/log", "*/scale"}}
	named := rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"secrets"},
		ResourceNames: []string{"mine"}}
	health := rbacv1.PolicyRule{Verbs: []string{"get"}, NonResourceURLs: []string{"/healthz", "/metrics/*"}}
	res := func(verb, resource, sub, name string) authorizer.AttributesRecord {
		return authorizer.AttributesRecord{Verb: verb, Resource: resource, Subresource: sub, Name: name,
			ResourceRequest: true}
	}
	for _, c := range []struct {
		name string
		rule rbacv1.PolicyRule
		a    authorizer.AttributesRecord
		want bool
	}{
		{"resource", pods, res("get", "pods", "", "x"), true},
		{"other verb", pods, res("list", "pods", "", ""), false},
		{"subresource named", pods, res("get", "pods", "log", "x"), true},
		{"subresource not named", pods, res("get", "pods", "exec", "x"), false},
		{"subresource as a part of the resource", pods, res("get", "pods/log", "", "x"), true},
		{"the same, not named", pods, res("get", "pods/exec", "", "x"), false},
		{"the same, of any resource", pods, res("get", "deployments/scale", "", "x"), false}, // as upstream has it
		{"any resource's scale", pods, res("get", "deployments", "scale", "x"), true},
		{"star slash is not star", pods, res("get", "deployments", "", "x"), false},
		{"other group", pods,
			authorizer.AttributesRecord{Verb: "get", Resource: "pods", APIGroup: "metrics.k8s.io",
				ResourceRequest: true}, false},
		{"name", named, res("get", "secrets", "", "mine"), true},
		{"other name", named, res("get", "secrets", "", "yours"), false},
		{"no name", named, res("get", "secrets", "", ""), false},
		{"path", health, authorizer.AttributesRecord{Verb: "get", Path: "/healthz"}, true},
		{"below an exact path", health, authorizer.AttributesRecord{Verb: "get", Path: "/healthz/etcd"}, false},
		{"below a prefix", health, authorizer.AttributesRecord{Verb: "get", Path: "/metrics/slis"}, true},
		{"resource rule and path", pods, authorizer.AttributesRecord{Verb: "get", Path: "/pods"}, false},
	} {
		if got := Allows(&c.rule, c.a); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestAuthorize(t *testing.T) {
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "r"},
		Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}}}}
	binding := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b"},
		RoleRef: rbacv1.RoleRef{Kind: "Role", Name: "r"},
		Subjects: []rbacv1.Subject{
			{Kind: "User", Name: "ann"}, {Kind: "ServiceAccount", Name: "robot"}, {Kind: "Group", Name: "devs"},
		}}
	broken := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "broken"},
		RoleRef: rbacv1.RoleRef{Kind: "Role", Name: "gone"}, Subjects: []rbacv1.Subject{{Kind: "User", Name: "ann"}}}
	a := newAuthorizer(t, append(defaults(), role, binding, broken)...)

	for _, c := range []struct {
		user      user.DefaultInfo
		namespace string
		want      authorizer.Decision
	}{
		{user.DefaultInfo{Name: "ann"}, "a", authorizer.DecisionAllow},
		{user.DefaultInfo{Name: "ann"}, "b", authorizer.DecisionNoOpinion},
		{user.DefaultInfo{Name: "bob"}, "a", authorizer.DecisionNoOpinion},
		{user.DefaultInfo{Name: "bob", Groups: []string{"devs"}}, "a", authorizer.DecisionAllow},
		{user.DefaultInfo{Name: "system:serviceaccount:a:robot"}, "a", authorizer.DecisionAllow},
		{user.DefaultInfo{Name: "system:serviceaccount:b:robot"}, "a", authorizer.DecisionNoOpinion},
		{user.DefaultInfo{Name: "root", Groups: []string{"system:masters"}}, "b", authorizer.DecisionAllow},
	} {
		got, reason, err := a.Authorize(context.Background(), authorizer.AttributesRecord{
			User: &c.user, Verb: "get", Namespace: c.namespace, Resource: "pods", Name: "p", ResourceRequest: true})
		if err != nil || got != c.want {
			t.Errorf("%s in %s: %v (%s) %v, want %v", c.user.Name, c.namespace, got, reason, err, c.want)
		}
	}
}

func TestGuard(t *testing.T) {
	a := newAuthorizer(t, append(defaults(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "role-writer"},
		Rules: []rbacv1.PolicyRule{
			{Verbs: []string{"create", "update"}, APIGroups: []string{"rbac.authorization.k8s.io"},
				Resources: []string{"*"}},
			{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}}}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "w"},
			RoleRef:  rbacv1.RoleRef{Kind: "ClusterRole", Name: "role-writer"},
			Subjects: []rbacv1.Subject{{Kind: "User", Name: "writer"}}})...)
	g := NewGuard(a, a)
	rule := func(verb string) []rbacv1.PolicyRule {
		return []rbacv1.PolicyRule{{Verbs: []string{verb}, APIGroups: []string{""}, Resources: []string{"pods"}}}
	}
	role := func(verb string) *rbacv1.Role {
		return &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Rules: rule(verb)}
	}
	bind := func(to string) *rbacv1.ClusterRoleBinding {
		return &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "x"},
			RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: to}}
	}
	writer := &user.DefaultInfo{Name: "writer"}
	admin := &user.DefaultInfo{Name: "admin", Groups: []string{"system:masters"}}
	controller := &user.DefaultInfo{Name: "system:serviceaccount:kube-system:clusterrole-aggregation-controller"}
	other := &user.DefaultInfo{Name: "system:serviceaccount:kube-system:generic-garbage-collector"}
	for _, c := range []struct {
		name     string
		user     user.Info
		obj, old runtime.Object
		resource string
		allowed  bool
	}{
		{"grants what it has", writer, role("get"), nil, "roles", true},
		{"grants more", writer, role("delete"), nil, "roles", false},
		{"keeps what is there", writer, role("delete"), role("delete"), "roles", true},
		{"admin grants all", admin, role("delete"), nil, "roles", true},
		{"binds more", writer, bind("cluster-admin"), nil, "clusterrolebindings", false},
		{"binds a missing role", writer, bind("nowhere"), nil, "clusterrolebindings", false},
		{"binds its own", writer, bind("role-writer"), nil, "clusterrolebindings", true},
		{"relabels a binding", writer, bind("cluster-admin"), bind("cluster-admin"), "clusterrolebindings", true},
		{"controllers aggregate", controller,
			&rbacv1.ClusterRole{
				Rules: []rbacv1.PolicyRule{{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}}}},
			&rbacv1.ClusterRole{}, "clusterroles", true},
		{"other controllers do not", other, &rbacv1.ClusterRole{Rules: rule("proxy")}, &rbacv1.ClusterRole{},
			"clusterroles", false},
		{"controllers bind nothing", controller, bind("cluster-admin"), nil, "clusterrolebindings", false},
		{"aggregation asks for all", writer,
			&rbacv1.ClusterRole{
				AggregationRule: &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{}}}}, nil,
			"clusterroles", false},
	} {
		op := admission.Create
		if c.old != nil {
			op = admission.Update
		}
		attrs := admission.NewAttributesRecord(c.obj, c.old, schema.GroupVersionKind{}, "a", "x",
			rbacv1.SchemeGroupVersion.WithResource(c.resource), "", op, nil, false, c.user)
		err := g.Validate(context.Background(), attrs, nil)
		if (err == nil) != c.allowed {
			t.Errorf("%s: %v", c.name, err)
		}
		if err != nil && !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) {
			t.Errorf("%s: refused with %v", c.name, err)
		}
		if c.name == "grants more" && (err == nil || !strings.Contains(err.Error(), `Verbs:["delete"]`)) {
			t.Errorf("%s: the refusal does not name the rule: %v", c.name, err)
		}
	}
}

func TestReconcileIsIdempotentAndKeepsAdditions(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	client := fake.NewClientset()
	factory := informers.NewSharedInformerFactory(client, 0)
	known := factory.Rbac().V1()
	if err := Reconcile(ctx, client, known); err != nil {
		t.Fatal(err)
	}
	view, err := client.RbacV1().ClusterRoles().Get(ctx, "system:aggregate-to-view", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range view.Rules {
		for _, res := range r.Resources {
			if res == "secrets" || res == "roles" {
				t.Errorf("view reaches %s", res)
			}
		}
	}
	extra := rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{"example.com"},
		Resources: []string{"things"}}
	view.Rules = append(view.Rules[1:], extra)
	if _, err := client.RbacV1().ClusterRoles().Update(ctx, view, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	defer cancel()
	factory.WaitForCacheSync(ctx.Done())
	client.ClearActions()
	if err := Reconcile(ctx, client, known); err != nil {
		t.Fatal(err)
	}
	var made []string
	for _, a := range client.Actions() {
		if a.GetVerb() != "watch" && a.GetVerb() != "list" { // of the informers
			made = append(made, a.GetVerb()+" "+a.GetResource().Resource)
		}
	}
	if want := []string{"get clusterroles", "update clusterroles"}; !slices.Equal(made, want) {
		t.Errorf("the second run made the requests %q, want those of the one repair, %q", made, want)
	}
	view, err = client.RbacV1().ClusterRoles().Get(ctx, "system:aggregate-to-view", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, r := range view.Rules {
		found = found || (len(r.APIGroups) == 1 && r.APIGroups[0] == "example.com")
	}
	if !found {
		t.Error("an added rule was taken away")
	}
}

// TestKubeletClientReachesKubeletsOnly: the API server's certificate for kubelets opens them and
// reads no object but Nodes, also at the API of another server.
func TestKubeletClientReachesKubeletsOnly(t *testing.T) {
	authz := newAuthorizer(t, defaults()...)
	client := &user.DefaultInfo{Name: kubeletapi.ClientUser,
		Groups: []string{kubeletapi.ClientGroup, user.AllAuthenticated}}
	decide := func(verb, group, resource, sub string) authorizer.Decision {
		t.Helper()
		decision, _, err := authz.Authorize(t.Context(),
			authorizer.AttributesRecord{User: client, Verb: verb, APIGroup: group, APIVersion: "v1",
				Resource: resource, Subresource: sub, Namespace: "kube-system", Name: "n", ResourceRequest: true})
		if err != nil {
			t.Fatal(err)
		}
		return decision
	}
	for _, sub := range []string{"proxy", "stats", "log", "metrics", "spec", "healthz", "pods", "configz",
		"checkpoint"} {
		for _, verb := range []string{"get", "create"} {
			if decide(verb, "", "nodes", sub) != authorizer.DecisionAllow {
				t.Errorf("%s nodes/%s is refused", verb, sub)
			}
		}
	}
	for _, c := range [][4]string{{"get", "", "secrets", ""}, {"list", "", "secrets", ""},
		{"get", "", "configmaps", ""}, {"create", "", "pods", ""}, {"create", "", "pods", "exec"},
		{"get", "", "pods", "log"}, {"update", "", "nodes", ""}, {"patch", "", "nodes", "status"},
		{"create", "", "serviceaccounts", "token"},
		{"impersonate", "", "users", ""}, {"create", "rbac.authorization.k8s.io", "clusterrolebindings", ""}} {
		if decide(c[0], c[1], c[2], c[3]) == authorizer.DecisionAllow {
			t.Errorf("%v is allowed", c)
		}
	}
}

// TestServersReadNoObjects: with the certificate for requests between servers, a server reads no
// object, and nothing of the cluster's keys, tokens and backups.
func TestServersReadNoObjects(t *testing.T) {
	authz := newAuthorizer(t, defaults()...)
	server := &user.DefaultInfo{Name: clusterusers.ServerClient,
		Groups: []string{clusterusers.ServerClients, user.AllAuthenticated}}
	allowed := func(a authorizer.AttributesRecord) bool {
		t.Helper()
		a.User = server
		decision, _, err := authz.Authorize(t.Context(), a)
		if err != nil {
			t.Fatal(err)
		}
		return decision == authorizer.DecisionAllow
	}
	for _, c := range [][2]string{{"get", "secrets"}, {"list", "secrets"}, {"list", "nodes"}, {"get", "configmaps"},
		{"create", "pods"}, {"impersonate", "users"}, {"create", "serviceaccounts"}} {
		if allowed(
			authorizer.AttributesRecord{Verb: c[0], APIVersion: "v1", Resource: c[1], Namespace: "kube-system",
				Name: "n", ResourceRequest: true}) {
			t.Errorf("%v is allowed", c)
		}
	}
	for path, verbs := range map[string][]string{
		"/barque/v1/audit": {"get"}, "/barque/v1/certificates": {"get", "post"}, "/barque/v1/diagnosis": {"get"},
		"/barque/v1/encryption": {"get"},
		"/barque/v1/hardening":  {"get"}, "/barque/v1/snapshots": {"get"}, "/barque/v1/snapshot-save": {},
		"/barque/v1/page/history": {"get"}, "/barque/v1/page/sessions": {},
		"/barque/v1/tokens": {}, "/barque/v1/keys": {}, "/barque/v1/ca": {},
		"/barque/v1/members/s2": {}, "/barque/v1/revocations": {}, "/metrics": {}, "/logs": {},
	} {
		for _, verb := range []string{"get", "post", "put", "delete"} {
			if got := allowed(authorizer.AttributesRecord{Verb: verb, Path: path}); got != slices.Contains(verbs,
				verb) {
				t.Errorf("%s %s is allowed: %t", verb, path, got)
			}
		}
	}
}

// TestGrantKubeletClient: under a leader of an earlier version a server creates the binding itself,
// once, and leaves one alone that is there.
func TestGrantKubeletClient(t *testing.T) {
	client := fake.NewClientset()
	for range 2 {
		if err := GrantKubeletClient(t.Context(), client); err != nil {
			t.Fatal(err)
		}
	}
	created := 0
	for _, a := range client.Actions() {
		if a.GetVerb() == "create" {
			created++
		}
	}
	binding, err := client.RbacV1().ClusterRoleBindings().Get(t.Context(), "barque:kubelet-client", metav1.GetOptions{})
	if err != nil || created != 1 || binding.RoleRef.Name != "system:kubelet-api-admin" ||
		binding.Subjects[0].Name != kubeletapi.ClientUser {
		t.Errorf("%+v, %v, created %d times", binding, err, created)
	}
	client.PrependReactor("get", "clusterrolebindings", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewServiceUnavailable("no leader")
	})
	if err := GrantKubeletClient(t.Context(), client); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("without a leader: %v", err)
	}
}
