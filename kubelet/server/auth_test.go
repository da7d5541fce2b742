package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/barque/barque/kubelet/config"
)

// TestGuard: an authenticated and authorized caller passes, and the API server is asked once for as
// long as its answer holds.
func TestGuard(t *testing.T) {
	client := fake.NewClientset()
	reviews, tokens := 0, 0
	client.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		reviews++
		review := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
		attrs := review.Spec.ResourceAttributes
		review.Status.Allowed = review.Spec.User == "metrics" && attrs.Subresource == "metrics" && attrs.Name == "n1" &&
			attrs.Verb == "get"
		return true, review, nil
	})
	client.PrependReactor("create", "tokenreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		tokens++
		review := a.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview)
		review.Status.Authenticated = review.Spec.Token == "good"
		review.Status.User.Username = "metrics"
		return true, review, nil
	})
	now := time.Unix(1000, 0)
	g := newGuard(client, "n1", config.Default(), func() time.Time { return now }, nil)
	handler := g.protect(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	call := func(path, group, token string) int {
		r := httptest.NewRequestWithContext(context.Background(), http.MethodGet, path, nil)
		r.TLS = &tls.ConnectionState{}
		if group != "" {
			r.TLS.VerifiedChains = [][]*x509.Certificate{
				{{Subject: pkix.Name{CommonName: "metrics", Organization: []string{group}}}}}
		}
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w.Code
	}
	for _, c := range []struct {
		path, group, token string
		want               int
	}{
		{"/exec/ns/p/c", "", "", 401}, {"/metrics", "", "bad", 401}, {"/metrics", "", "good", 200},
		{"/metrics/resource", "", "good", 200},
		{"/exec/ns/p/c", "", "good", 403}, {"/exec/ns/p/c", "system:masters", "", 200},
		{"/exec/ns/p/c", "barque:kubelet-clients", "", 200}, {"/exec/ns/p/c", "barque:servers", "", 403},
		{"/metrics", "others", "", 200}, {"/pods", "others", "", 403},
	} {
		if got := call(c.path, c.group, c.token); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
	asked, vouched := reviews, tokens
	call("/metrics", "", "good")
	if reviews != asked || tokens != vouched {
		t.Error("the API server is asked again at once")
	}
	now = now.Add(time.Hour)
	call("/metrics", "", "good")
	if reviews == asked || tokens == vouched {
		t.Error("an answer is believed for ever")
	}
}

// TestStreamsAreNoReading: a caller that may get nodes/proxy, as monitoring does, may
// not run commands.
func TestStreamsAreNoReading(t *testing.T) {
	for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodDelete, http.MethodPost} {
		for _, path := range []string{"/exec/ns/p/c", "/attach/ns/p/u/c", "/portForward/ns/p", "/run/ns/p/c",
			"//exec/ns/p/c", "/pods/../exec/ns/p/c"} {
			r := httptest.NewRequestWithContext(context.Background(), method, "http://n1"+path, nil)
			if verb, subresources := attributes(r); verb != "create" || !slices.Equal(subresources, []string{"proxy"}) {
				t.Errorf("%s %s is %s of %v", method, path, verb, subresources)
			}
		}
	}
	for path, want := range map[string]string{"/containerLogs/ns/p/c": "get", "/pods": "get", "/configz": "get",
		"/logs/": "get"} {
		r := httptest.NewRequestWithContext(context.Background(), http.MethodGet, path, nil)
		if verb, _ := attributes(r); verb != want {
			t.Errorf("GET %s is %s, want %s", path, verb, want)
		}
		r.Header.Set("Connection", "Upgrade")
		r.Header.Set("Upgrade", "websocket")
		if verb, _ := attributes(r); verb != "create" {
			t.Errorf("GET %s with an upgrade is %s", path, verb)
		}
	}
}

func TestNewNeedsACertificateAuthority(t *testing.T) {
	if _, err := New(Config{TLS: &tls.Config{}}); err == nil {
		t.Error("a server that knows no client was made")
	}
}
