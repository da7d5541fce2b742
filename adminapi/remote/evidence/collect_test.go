package evidence

import (
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/barque/barque/clusterstatus/cis"
)

// kinds are the lists and reviews of the API, by the last part of their path.
var kinds = map[string]string{
	"nodes": "v1 NodeList", "namespaces": "v1 NamespaceList", "pods": "v1 PodList", "services": "v1 ServiceList",
	"serviceaccounts": "v1 ServiceAccountList", "secrets": "v1 SecretList",
	"roles": "rbac.authorization.k8s.io/v1 RoleList", "clusterroles": "rbac.authorization.k8s.io/v1 ClusterRoleList",
	"rolebindings":        "rbac.authorization.k8s.io/v1 RoleBindingList",
	"clusterrolebindings": "rbac.authorization.k8s.io/v1 ClusterRoleBindingList",
	"networkpolicies":     "networking.k8s.io/v1 NetworkPolicyList", "kube-root-ca.crt": "v1 ConfigMap",
	"validatingwebhookconfigurations": "admissionregistration.k8s.io/v1 ValidatingWebhookConfigurationList",
	"validatingadmissionpolicies":     "admissionregistration.k8s.io/v1 ValidatingAdmissionPolicyList",
	"selfsubjectreviews":              "authentication.k8s.io/v1 SelfSubjectReview",
	"subjectaccessreviews":            "authorization.k8s.io/v1 SubjectAccessReview",
}

// apiServer is a server of a cluster with the namespace default. An open one allows and admits all.
type apiServer struct {
	open    bool
	reviews int // 0, or the status of the answer to reviews
	asked   atomic.Int32
}

func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	last := path.Base(r.URL.Path)
	refuse := func(code int, reason, text string) {
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":%d,"reason":%q,"message":%q}`,
			code, reason, text)
	}
	version, kind, known := strings.Cut(kinds[last], " ")
	switch {
	case !known:
		http.NotFound(w, r)
	case last == "pods" && r.Method == http.MethodPost && r.URL.Query().Get("dryRun") != "All":
		refuse(http.StatusInternalServerError, "InternalError", "this is no dry run")
	case last == "pods" && r.Method == http.MethodPost && a.open:
		a.asked.Add(1)
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, `{"kind":"Pod","apiVersion":"v1"}`)
	case last == "pods" && r.Method == http.MethodPost:
		a.asked.Add(1)
		refuse(http.StatusForbidden, "Forbidden", "violates PodSecurity")
	case last == "subjectaccessreviews" && a.reviews != 0:
		refuse(a.reviews, "ServiceUnavailable", "later")
	case last == "subjectaccessreviews":
		a.asked.Add(1)
		fmt.Fprintf(w, `{"kind":%q,"apiVersion":%q,"status":{"allowed":%v,"reason":"AlwaysAllow"}}`, kind, version,
			a.open)
	case last == "namespaces":
		fmt.Fprintf(w,
			`{"kind":%q,"apiVersion":%q,"items":[{"metadata":{"name":"default"}},{"metadata":{"name":"shop"}},{"metadata":{"name":"web"}}]}`, kind, version)
	default:
		fmt.Fprintf(w, `{"kind":%q,"apiVersion":%q}`, kind, version)
	}
}

// TestEachServerIsAsked: the servers have different flags, so each one is asked for its answers,
// whichever the objects are read from.
func TestEachServerIsAsked(t *testing.T) {
	for _, c := range []struct {
		name   string
		bad    *apiServer
		status cis.Status
	}{
		{"one is open", &apiServer{open: true}, cis.Fail},
		{"one does not answer reviews", &apiServer{reviews: http.StatusServiceUnavailable}, cis.Unknown},
		{"none is", &apiServer{}, cis.Pass},
	} {
		for at := range 3 {
			t.Run(fmt.Sprintf("%s: s%d", c.name, at+1), func(t *testing.T) {
				c.bad.asked.Store(0)
				servers, config := make([]Server, 3), new(rest.Config)
				for i := range servers {
					is := new(apiServer)
					if i == at {
						is = c.bad
					}
					s := httptest.NewTLSServer(is)
					t.Cleanup(s.Close)
					servers[i] = Server{Name: fmt.Sprint("s", i+1), Hosts: []string{s.URL},
						Address: s.Listener.Addr().String()}
					config.CAData = append(config.CAData,
						pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})...)
				}
				config.Host = servers[0].Hosts[0]
				e, err := Collect(t.Context(), config, servers)
				if err != nil {
					t.Fatal(err)
				}
				e.Defaults = new(cis.Defaults)
				for _, r := range cis.Judge(e, func(string) bool { return true }).Rows {
					switch r.ID {
					case "1.2.6", "5.1.2", "5.1.4", "5.2.1", "5.2.2", "5.2.3", "5.2.5", "5.2.11":
						if r.Status != c.status ||
							c.status != cis.Pass && !strings.Contains(r.Reason, servers[at].Name+": ") {
							t.Errorf("%s: %+v, want %s", r.ID, r, c.status)
						}
					}
				}
			})
		}
	}
}

// TestUnreachedServer: the answers of a server that is off are not known.
func TestUnreachedServer(t *testing.T) {
	s := httptest.NewTLSServer(new(apiServer))
	config := &rest.Config{Host: s.URL}
	s.Close()
	a, err := askAnswers(t.Context(), config, Server{Name: "s1", Address: s.Listener.Addr().String()}, nil,
		[]string{"default"})
	if err != nil || a.Problem == "" || len(a.May)+len(a.Probes) > 0 {
		t.Errorf("%+v, %v", a, err)
	}
	if a, err := askAnswers(t.Context(), config, Server{Name: "s1"}, nil, nil); a != nil || err == nil {
		t.Errorf("without an address: %+v, %v", a, err)
	}
}

// TestProfiling: only a server that does not know the path has no profiles.
func TestProfiling(t *testing.T) {
	for status, want := range map[int]cis.Opened{
		http.StatusOK: {Asked: true, Served: true}, http.StatusNotFound: {Asked: true}, http.StatusForbidden: {},
		http.StatusUnauthorized: {}, http.StatusTooManyRequests: {}, http.StatusServiceUnavailable: {},
	} {
		s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			fmt.Fprint(w, "<html>")
		}))
		config := &rest.Config{
			TLSClientConfig: rest.TLSClientConfig{
				CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})}}
		if is := profiling(t.Context(), config, s.Listener.Addr().String()); is != want {
			t.Errorf("%d: %+v, want %+v", status, is, want)
		}
		s.Close()
	}
}
