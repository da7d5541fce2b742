package authorizers

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/barque/barque/apiserver/configfile"
	"github.com/barque/barque/apiserver/logins/logintest"
	"github.com/barque/barque/internal/await"
)

// allowing permits the requests of some users.
func allowing(names ...string) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(
		func(_ context.Context, r authorizer.Attributes) (authorizer.Decision, string, error) {
			for _, name := range names {
				if r.GetUser().GetName() == name && r.GetVerb() == "get" {
					return authorizer.DecisionAllow, "", nil
				}
			}
			return authorizer.DecisionNoOpinion, "", nil
		})
}

type noRules struct{}

func (noRules) RulesFor(
	context.Context, user.Info, string,
) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	return nil, nil, false, nil
}

const (
	jobController = "system:serviceaccount:kube-system:job-controller"
	// cloud controller managers have tokens for it
	nodeController  = "system:serviceaccount:kube-system:node-controller"
	routeController = "system:serviceaccount:kube-system:route-controller" // of cloud controller managers alone
)

// permitted are users to whom RBAC permits get.
var permitted = []string{"system:node:n1", "barque:kubelet-client", "system:kube-scheduler", jobController,
	nodeController, routeController, "root", "ann", "system:anonymous"}

// started has running authorizers that watch their files, with their decisions.
type started struct {
	authorizer.Authorizer
	*Authorizers
}

func start(t *testing.T, change func(*Options)) started {
	t.Helper()
	o := NewOptions()
	change(o)
	if err := o.Check(); err != nil {
		t.Fatal(err)
	}
	a, err := New(Config{Options: o, Server: "s1", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	decides, _, err := a.Assemble(
		Builtin{Node: allowing("system:node:n1"), RBAC: allowing(permitted...), Rules: noRules{}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return started{decides, a}
}

type who struct {
	name   string
	groups []string
}

func (w who) does(verb, path string) authorizer.AttributesRecord {
	r := authorizer.AttributesRecord{User: &user.DefaultInfo{Name: w.name, Groups: w.groups}, Verb: verb, Path: path}
	if path == "" {
		r.ResourceRequest, r.Namespace, r.Resource, r.APIVersion = true, "shop", "pods", "v1"
	}
	return r
}

// newHook answers with a status, and counts.
func newHook(
	t *testing.T, status func(authorizationv1.SubjectAccessReviewSpec) authorizationv1.SubjectAccessReviewStatus,
	asked *atomic.Int32,
) string {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		var review authorizationv1.SubjectAccessReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
		}
		review.Status = status(review.Spec)
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(s.Close)
	return logintest.Kubeconfig(t, s)
}

const head = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers:\n"

func hook(kubeconfig, policy, more string) string {
	return fmt.Sprintf(
		"- type: Webhook\n  name: hook\n  webhook:\n    timeout: 3s\n    authorizedTTL: 1ms\n    unauthorizedTTL: 1ms\n    subjectAccessReviewVersion: v1\n    matchConditionSubjectAccessReviewVersion: v1\n    failurePolicy: %s\n    connectionInfo: {type: KubeConfigFile, kubeConfigFile: %s}\n%s", policy, kubeconfig, more)
}

// TestIllWebhooks: with a webhook that misbehaves in any way, at any place, nodes, administrators
// and the cluster's own parts get their rights, and no more.
func TestIllWebhooks(t *testing.T) {
	asked := &atomic.Int32{}
	dead := httptest.NewTLSServer(http.NotFoundHandler())
	deadConfig := logintest.Kubeconfig(t, dead)
	dead.Close()
	for ill, c := range map[string]struct{ kubeconfig, policy string }{
		"hangs": {logintest.Kubeconfig(t, logintest.Hanging(t)), "Deny"},
		"dead":  {deadConfig, "Deny"},
		"denies": {newHook(t, func(authorizationv1.SubjectAccessReviewSpec) authorizationv1.SubjectAccessReviewStatus {
			return authorizationv1.SubjectAccessReviewStatus{Denied: true}
		}, asked), "NoOpinion"},
		"lies": {newHook(t, func(authorizationv1.SubjectAccessReviewSpec) authorizationv1.SubjectAccessReviewStatus {
			return authorizationv1.SubjectAccessReviewStatus{Allowed: true}
		}, asked), "NoOpinion"},
		"both": {newHook(t, func(authorizationv1.SubjectAccessReviewSpec) authorizationv1.SubjectAccessReviewStatus {
			return authorizationv1.SubjectAccessReviewStatus{Allowed: true, Denied: true}
		}, asked), "NoOpinion"},
	} {
		t.Run(ill, func(t *testing.T) {
			path := logintest.Write(t, filepath.Join(t.TempDir(), "a.yaml"), head+hook(c.kubeconfig, c.policy, ""))
			decides := start(t, func(o *Options) { o.ConfigFile = path })
			for _, allowed := range []authorizer.AttributesRecord{
				who{"anyone", []string{"system:masters"}}.does("delete", ""),
				who{"root", []string{"barque:admins"}}.does("get", ""),
				who{"system:node:n1", []string{"system:nodes"}}.does("get", ""),
				who{"system:node:n1", []string{"system:nodes"}}.does("get", "/api"),
				who{"barque:kubelet-client", []string{"barque:kubelet-clients"}}.does("get", ""),
				who{"system:kube-scheduler", nil}.does("get", ""),
				who{jobController, []string{"system:serviceaccounts"}}.does("get", ""),
				who{nodeController, []string{"system:serviceaccounts"}}.does("get", ""),
				who{routeController, []string{"system:serviceaccounts"}}.does("get", ""),
				who{"system:anonymous", nil}.does("get", "/readyz"),
				who{"system:anonymous", nil}.does("get", "/livez/ping"),
			} {
				if got, reason, err := decides.Authorize(t.Context(), allowed); got != authorizer.DecisionAllow {
					t.Errorf("%s, %s %s: %v (%s, %v)", allowed.User.GetName(), allowed.Verb, allowed.Path, got, reason,
						err)
				}
			}
			for _, refused := range []authorizer.AttributesRecord{
				who{"system:node:n1", []string{"system:nodes"}}.does("delete", ""),
				who{"barque:kubelet-client", []string{"barque:kubelet-clients"}}.does("delete", ""),
				who{"system:kube-scheduler", nil}.does("delete", ""),
				who{"system:kube-controller-manager", nil}.does("delete", ""),
				who{jobController, []string{"system:serviceaccounts"}}.does("delete", ""),
				who{jobController, []string{"system:serviceaccounts"}}.does("post", "/metrics"),
			} {
				before := asked.Load()
				if got, _, _ := decides.Authorize(t.Context(), refused); got == authorizer.DecisionAllow ||
					asked.Load() != before {
					t.Errorf("%s, %s: %v, and the webhook was asked %d times", refused.User.GetName(), refused.Verb,
						got, asked.Load()-before)
				}
			}
			// Tokens for this account are other programs', and the file may permit them more.
			before := asked.Load()
			shared, _, _ := decides.Authorize(t.Context(),
				who{nodeController, []string{"system:serviceaccounts"}}.does("delete", ""))
			if want := ill == "lies"; (shared == authorizer.DecisionAllow) != want || want && asked.Load() == before {
				t.Errorf("%s: %v, and the webhook was asked %d times", nodeController, shared, asked.Load()-before)
			}
			// Others depend on it, as the file configures: RBAC, which would permit it, is not in
			// it.
			got, _, _ := decides.Authorize(t.Context(), who{"ann", nil}.does("get", ""))
			if want := ill == "lies"; (got == authorizer.DecisionAllow) != want {
				t.Errorf("ann: %v", got)
			}
		})
	}
}

// TestOnlyAdministratorsActAsControllers: no role and no webhook lets other users impersonate a
// part of the control plane. Other accounts can be impersonated as in Kubernetes.
func TestOnlyAdministratorsActAsControllers(t *testing.T) {
	anything := func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
		return authorizer.DecisionAllow, "", nil
	}
	a := Default()
	decides, _, err := a.Assemble(
		Builtin{Node: allowing(), RBAC: authorizer.AuthorizerFunc(anything), Rules: noRules{}})
	if err != nil {
		t.Fatal(err)
	}
	as := func(verb, group, resource, namespace, name string) authorizer.AttributesRecord {
		return authorizer.AttributesRecord{Verb: verb, APIGroup: group, Resource: resource, Namespace: namespace,
			Name: name, ResourceRequest: true}
	}
	const constrained = "authentication.k8s.io"
	for _, c := range []struct {
		as    authorizer.AttributesRecord
		taken bool
	}{
		{as("impersonate", "", "serviceaccounts", "kube-system", "clusterrole-aggregation-controller"), true},
		{as("impersonate", "", "users", "", "system:serviceaccount:kube-system:clusterrole-aggregation-controller"),
			true},
		{as("impersonate:serviceaccount", constrained, "serviceaccounts", "kube-system", "generic-garbage-collector"),
			true},
		{as("impersonate:user-info", constrained, "users", "", "system:kube-controller-manager"), true},
		{as("impersonate", "", "users", "", "system:kube-scheduler"), true},
		{as("impersonate", "", "users", "", "system:apiserver"), true},
		{as("impersonate", "", "users", "", "barque:server-client"), true},
		{as("impersonate", "", "groups", "", "barque:server-clients"), true},
		{as("impersonate", "", "groups", "", "barque:admins"), true},
		{as("impersonate:user-info", constrained, "groups", "", "barque:admins"), true},
		{as("impersonate", "", "groups", "", "system:masters"), false}, // as in Kubernetes
		{as("impersonate", "", "users", "", "barquentine"), false},
		{as("impersonate", "", "serviceaccounts", "kube-system", "node-controller"), false},
		{as("impersonate", "", "serviceaccounts", "kube-system", "coredns"), false},
		{as("impersonate", "", "serviceaccounts", "shop", "job-controller"), false},
		{as("impersonate", "", "users", "", "ann"), false},
		{as("impersonate", "", "groups", "", "job-controller"), false},
		// the action
		{as("impersonate-on:serviceaccount:get", "", "serviceaccounts", "kube-system", "job-controller"), false},
		{as("get", "", "serviceaccounts", "kube-system", "job-controller"), false},
	} {
		for _, by := range []struct {
			who
			admin bool
		}{
			{who{"ann", nil}, false},
			{who{"system:serviceaccount:kube-system:robot", []string{"system:serviceaccounts"}}, false},
			{who{"system:node:n1", []string{"system:nodes"}}, false},
			{who{jobController, []string{"system:serviceaccounts"}}, false},
			{who{"root", []string{"barque:admins"}}, true}, {who{"root", []string{"system:masters"}}, true},
		} {
			c.as.User = &user.DefaultInfo{Name: by.name, Groups: by.groups}
			got, reason, err := decides.Authorize(t.Context(), c.as)
			if want := !c.taken || by.admin; (got == authorizer.DecisionAllow) != want {
				t.Errorf("%s may %s %s %s/%s: %v (%s, %v), want %t", by.name, c.as.Verb, c.as.Resource, c.as.Namespace,
					c.as.Name, got, reason, err, want)
			}
		}
	}
}

// TestOrder: authorizers decide in the file's order; conditions keep a webhook out, and a failing
// one with the policy NoOpinion is passed over.
func TestOrder(t *testing.T) {
	asked := &atomic.Int32{}
	denies := newHook(t, func(s authorizationv1.SubjectAccessReviewSpec) authorizationv1.SubjectAccessReviewStatus {
		return authorizationv1.SubjectAccessReviewStatus{Denied: true, Reason: s.User + " is not wanted"}
	}, asked)
	hangs := logintest.Kubeconfig(t, logintest.Hanging(t))
	const rbacEntry = "- {type: RBAC, name: rbac}\n"
	condition := "    matchConditions:\n    - expression: request.user == 'eve'\n"
	for name, c := range map[string]struct {
		config string
		user   string
		want   authorizer.Decision
	}{
		"a webhook first":     {hook(denies, "Deny", "") + rbacEntry, "ann", authorizer.DecisionDeny},
		"RBAC first":          {rbacEntry + hook(denies, "Deny", ""), "ann", authorizer.DecisionAllow},
		"by its condition":    {hook(denies, "Deny", condition) + rbacEntry, "ann", authorizer.DecisionAllow},
		"condition met":       {hook(denies, "Deny", condition) + rbacEntry, "eve", authorizer.DecisionDeny},
		"ill and passed over": {hook(hangs, "NoOpinion", "") + rbacEntry, "ann", authorizer.DecisionAllow},
		"ill and in the way":  {hook(hangs, "Deny", "") + rbacEntry, "ann", authorizer.DecisionDeny},
	} {
		t.Run(name, func(t *testing.T) {
			path := logintest.Write(t, filepath.Join(t.TempDir(), "a.yaml"), head+c.config)
			got, reason, err := start(t, func(o *Options) { o.ConfigFile = path }).Authorize(t.Context(),
				who{c.user, nil}.does("get", ""))
			if got != c.want {
				t.Errorf("%v (%s, %v), want %v", got, reason, err, c.want)
			}
		})
	}
}

// TestReload: a changed file counts; after a faulty one the former stays.
func TestReload(t *testing.T) {
	dir := t.TempDir()
	path := logintest.Write(t, filepath.Join(dir, "a.yaml"), head+"- {type: Node, name: node}\n")
	policies := logintest.Write(t, filepath.Join(dir, "p.jsonl"),
		`{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"user":"bob","namespace":"*","resource":"*","apiGroup":"*"}}`)
	decides := start(t, func(o *Options) { o.ConfigFile = path })
	may := func(name string) bool {
		got, _, _ := decides.Authorize(t.Context(), who{name, nil}.does("get", ""))
		return got == authorizer.DecisionAllow
	}
	if may("ann") {
		t.Fatal("RBAC decides, and is not in the file")
	}
	logintest.Write(t, path, head+"- {type: RBAC, name: rbac}\n")
	await.True(t, "RBAC decides", func() bool { return may("ann") })
	for _, wrong := range []string{"RBAK, name: rbac", "ABAC, name: abac"} { // the flag of ABAC's policies is missing
		logintest.Write(t, path, head+"- {type: "+wrong+"}\n")
		await.True(t, "the status shows the problem with "+wrong, func() bool {
			return slices.ContainsFunc(decides.Files(),
				func(f configfile.State) bool { return strings.Contains(f.Problem, wrong[:4]) })
		})
		if !may("ann") {
			t.Fatalf("the wrong file with %s has ended the former one", wrong)
		}
	}
	abac := start(t, func(o *Options) { o.Modes, o.PolicyFile = []string{modeRBAC, modeABAC}, policies })
	if got, _, _ := abac.Authorize(t.Context(), who{"bob", nil}.does("get", "")); got != authorizer.DecisionAllow {
		t.Errorf("ABAC: %v", got)
	}
	logintest.Write(t, policies,
		`{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"user":"cid","namespace":"*","resource":"*","apiGroup":"*"}}`)
	await.True(t, "the changed policies count", func() bool {
		got, _, _ := abac.Authorize(t.Context(), who{"bob", nil}.does("get", ""))
		return got != authorizer.DecisionAllow
	})
}

// TestChangedKubeconfigOfAWebhook: the kubeconfig is read with the configuration. One that changes
// alone does not count, and the status reports that until the configuration changes, too.
func TestChangedKubeconfigOfAWebhook(t *testing.T) {
	dir := t.TempDir()
	at := func(port string) string {
		return "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: 'https://127.0.0.1:" + port +
			"'}}]\nusers: [{name: u}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n"
	}
	kubeconfig := logintest.Write(t, filepath.Join(dir, "k.yaml"), at("1"))
	config := head + "- {type: RBAC, name: rbac}\n" + hook(kubeconfig, "NoOpinion", "")
	path := logintest.Write(t, filepath.Join(dir, "a.yaml"), config)
	decides := start(t, func(o *Options) { o.ConfigFile = path })
	problem := func() string {
		for _, f := range decides.Files() {
			if f.Flag == configFlag {
				return f.Problem
			}
		}
		return "the file is not there"
	}
	if p := problem(); p != "" {
		t.Fatalf("at the start: %s", p)
	}
	logintest.Write(t, kubeconfig, at("2"))
	if p := problem(); !strings.Contains(p, kubeconfig) || !strings.Contains(p, path) {
		t.Errorf("a changed kubeconfig: %q", p)
	}
	logintest.Write(t, path, config+"# anew\n")
	await.True(t, "it counts with a change of the configuration", func() bool { return problem() == "" })
}

// TestCheck: faulty options are refused before the start.
func TestCheck(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string { return logintest.Write(t, filepath.Join(dir, name), content) }
	for name, c := range map[string]struct {
		change func(*Options)
		want   string
	}{
		"AlwaysAllow": {func(o *Options) { o.Modes = []string{"AlwaysAllow"} }, "cluster-admin"},
		"unknown":     {func(o *Options) { o.Modes = []string{"rbac"} }, "want some of"},
		"twice":       {func(o *Options) { o.Modes = []string{"RBAC", "RBAC"} }, "twice"},
		"none":        {func(o *Options) { o.Modes = nil }, "empty"},
		"ABAC alone":  {func(o *Options) { o.Modes = []string{"ABAC"} }, "--authorization-policy-file"},
		"policies alone": {func(o *Options) {
			o.PolicyFile = file("p",
				`{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"user":"a"}}`)
		}, "not among"},
		"webhook alone": {func(o *Options) { o.Modes = []string{"Webhook"} }, "--authorization-webhook-config-file"},
		"no file":       {func(o *Options) { o.ConfigFile = filepath.Join(dir, "none") }, "--authorization-config"},
		"an empty file": {func(o *Options) { o.ConfigFile = file("e", "") }, "empty"},
		"no authorizer": {func(o *Options) { o.ConfigFile = file("n", strings.TrimSpace(head)+" []\n") },
			"at least one"},
		"in the cluster": {func(o *Options) {
			o.ConfigFile = file("i",
				head+
					strings.Replace(hook("x", "Deny", ""), "{type: KubeConfigFile, kubeConfigFile: x}",
						"{type: InClusterConfig}", 1))
		}, "ask this server itself"},
		"condition": {func(o *Options) {
			o.ConfigFile = file("c",
				head+hook(file("k", "x"), "Deny", "    matchConditions: [{expression: \"request.(\"}]\n"))
		}, "compilation failed"},
		"webhook's config": {func(o *Options) { o.ConfigFile = file("w", head+hook(file("empty", ""), "Deny", "")) },
			"webhook hook"},
	} {
		t.Run(name, func(t *testing.T) {
			o := NewOptions()
			c.change(o)
			if err := o.Check(); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
	if err := NewOptions().Check(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
}

func FuzzLoad(f *testing.F) {
	f.Add([]byte(head + "- {type: Node, name: node}\n- {type: RBAC, name: rbac}\n"))
	f.Add([]byte(head + hook("/dev/null", "Deny", "    matchConditions: [{expression: \"request.user == 'a'\"}]\n")))
	f.Fuzz(func(t *testing.T, data []byte) {
		config, err := Load(data)
		if err != nil {
			return
		}
		for _, a := range config.Authorizers {
			if a.Webhook != nil && a.Webhook.ConnectionInfo.KubeConfigFile == nil {
				t.Errorf("%q was taken: a webhook without a kubeconfig", data)
			}
		}
	})
}
