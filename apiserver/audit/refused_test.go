package audit

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	apiaudit "k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// asked returns a request as it comes to the filter of audit.
func asked(ctx context.Context, who user.Info, method, verb, url string, info request.RequestInfo) *http.Request {
	info.Verb, info.IsResourceRequest = verb, info.Resource != ""
	info.Path, _, _ = strings.Cut(url, "?")
	ctx = request.WithRequestInfo(request.WithUser(apiaudit.WithAuditContext(ctx), who), &info)
	return httptest.NewRequestWithContext(ctx, method, url, nil)
}

var (
	stolen   = &user.DefaultInfo{Name: "system:node:n1", Groups: []string{user.NodesGroup, user.AllAuthenticated}}
	statusOf = func(node string) request.RequestInfo {
		return request.RequestInfo{APIVersion: "v1", Resource: "nodes", Subresource: "status", Name: node}
	}
	statusPath = "/api/v1/nodes/n1/status"
)

// TestRefusalsOfNodesAreRecorded: a node's routine requests leave no event, unless they are
// refused. Events of other users follow the policy.
func TestRefusalsOfNodesAreRecorded(t *testing.T) {
	ann := &user.DefaultInfo{Name: "ann"}
	leases := request.RequestInfo{APIGroup: "coordination.k8s.io", APIVersion: "v1", Resource: "leases",
		Namespace: "kube-node-lease", Name: "n2"}
	pods := request.RequestInfo{APIVersion: "v1", Resource: "pods"}
	podStatus := request.RequestInfo{APIVersion: "v1", Resource: "pods", Subresource: "status", Namespace: "ns",
		Name: "p"}
	secrets := request.RequestInfo{APIVersion: "v1", Resource: "secrets", Namespace: "ns", Name: "s"}
	for name, c := range map[string]struct {
		who               user.Info
		method, verb, url string
		info              request.RequestInfo
		status            int
		recorded          bool
		custom            bool // with a policy file of the same rules
	}{
		"its status":            {stolen, "PATCH", "patch", statusPath, statusOf("n1"), 200, false, false},
		"its status, refused":   {stolen, "PATCH", "patch", statusPath, statusOf("n1"), 403, true, false},
		"its status, not valid": {stolen, "PATCH", "patch", statusPath, statusOf("n1"), 422, false, false},
		"its status, no leader": {stolen, "PATCH", "patch", statusPath, statusOf("n1"), 503, false, false},
		"another one's": {stolen, "PATCH", "patch", "/api/v1/nodes/n2/status", statusOf("n2"), 403,
			true, false},
		"a pod's": {stolen, "PATCH", "patch", "/api/v1/namespaces/ns/pods/p/status", podStatus,
			200, false, false},
		"a pod's, refused": {stolen, "PATCH", "patch", "/api/v1/namespaces/ns/pods/p/status", podStatus,
			403, true, false},
		"a foreign lease": {stolen, "PUT", "update", "/apis/coordination.k8s.io/v1/x", leases, 403,
			true, false},
		"its pods": {stolen, "GET", "watch", "/api/v1/pods?watch=true", pods, 200, false, false},
		"all pods": {stolen, "GET", "watch", "/api/v1/pods?watch=true", pods, 403, true, false},
		"a path": {stolen, "GET", "get", "/metrics?x=y", request.RequestInfo{}, 403, true,
			false},
		"the version": {stolen, "GET", "get", "/version", request.RequestInfo{}, 200, false, false},
		"the log": {stolen, "GET", "get", "/barque/v1/audit?since=1h", request.RequestInfo{},
			404, true, false}, // the policy wants it
		"a Secret": {stolen, "GET", "get", "/api/v1/namespaces/ns/secrets/s", secrets, 200, true,
			false},
		"a person reads":                  {ann, "GET", "list", "/api/v1/pods", pods, 200, false, false},
		"a person is refused a read":      {ann, "GET", "list", "/api/v1/pods", pods, 403, false, false},
		"a person writes":                 {ann, "PATCH", "patch", statusPath, statusOf("n1"), 200, true, false},
		"refused, with a policy of yours": {stolen, "PATCH", "patch", statusPath, statusOf("n1"), 403, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			path, o := filepath.Join(t.TempDir(), "audit.log"), NewOptions()
			if c.custom {
				o.PolicyFile = filepath.Join(t.TempDir(), "policy.yaml")
				if err := os.WriteFile(o.PolicyFile, []byte(DefaultPolicy), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			l := newLog(t, o, path)
			stop := run(t, l)
			long := func(_ *http.Request, info *request.RequestInfo) bool { return info.Verb == "watch" }
			filters.WithAudit(
				http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(c.status) }), l.Backend(),
				l.Policy, long).
				ServeHTTP(httptest.NewRecorder(), asked(t.Context(), c.who, c.method, c.verb, c.url, c.info))
			stop()
			data, err := os.ReadFile(path)
			if err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			if lines := strings.Count(string(data), "\n"); lines > 1 || (lines == 1) != c.recorded {
				t.Errorf("recorded: %s", data)
			}
			if c.recorded &&
				(!strings.Contains(string(data), c.who.GetName()) ||
					!strings.Contains(string(data), `"level":"Metadata"`)) {
				t.Errorf("the event lacks something: %s", data)
			}
		})
	}
}

// TestARefusedNodeDoesNotFillTheLog: each node has its own limit, and events beyond it are counted
// as lost. The policy's own events have no limit.
func TestARefusedNodeDoesNotFillTheLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	l := newLog(t, NewOptions(), path)
	stop := run(t, l)
	refused := func(name, url string, info request.RequestInfo) {
		who := &user.DefaultInfo{Name: name, Groups: stolen.Groups}
		filters.WithAudit(
			http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }),
			l.Backend(), l.Policy, nil).
			ServeHTTP(httptest.NewRecorder(), asked(t.Context(), who, http.MethodPatch, "patch", url, info))
	}
	const extra, wanted = 10 * refusedBurst, 20
	for range extra {
		refused("system:node:loud", statusPath, statusOf("n1"))
	}
	refused("system:node:calm", statusPath, statusOf("n1"))
	for range wanted {
		refused("system:node:loud", "/api/v1/nodes/n1",
			request.RequestInfo{APIVersion: "v1", Resource: "nodes", Name: "n1"})
	}
	stop()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// A slow machine lets more pass, one a second.
	loud, calm, lost := strings.Count(string(data), `"username":"system:node:loud"`),
		strings.Count(string(data), `"username":"system:node:calm"`), l.Losses()
	if loud < refusedBurst+wanted || calm != 1 {
		t.Errorf("%d events of a node that is refused all the time, %d of another one", loud, calm)
	}
	if len(lost) != 1 || lost[0].Sink != "nodes" || int(lost[0].Events)+loud != extra+wanted ||
		!strings.Contains(lost[0].Reason, "system:node:loud") {
		t.Errorf("%d events, lost: %+v", loud, lost)
	}
}

// BenchmarkStatusOfNodes is the cost of the filter for the request that nodes make the most, and
// which leaves no event.
func BenchmarkStatusOfNodes(b *testing.B) {
	l, err := New(NewOptions(), filepath.Join(b.TempDir(), "audit.log"), quiet)
	if err != nil {
		b.Fatal(err)
	}
	answer := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	for name, policy := range map[string]apiaudit.PolicyRuleEvaluator{"by the policy": l.refusals.policy,
		"in case of a refusal": l.Policy} {
		handler := filters.WithAudit(answer, l.Backend(), policy, nil)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				r := asked(b.Context(), stolen, http.MethodPatch, "patch", statusPath, statusOf("n1"))
				handler.ServeHTTP(httptest.NewRecorder(), r)
			}
		})
	}
}
