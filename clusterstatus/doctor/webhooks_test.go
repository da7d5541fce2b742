package doctor

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// The doctor names a configuration that refuses requests because nobody answers, and no other.
func TestDoctorNamesBlockingWebhooks(t *testing.T) {
	hook := func(name, service, policy string) string {
		return `{"name": "` + name + `", "failurePolicy": "` + policy + `", "clientConfig": {"service": {"namespace": "ns", "name": "` + service + `"}}}`
	}
	list := func(kind, items string) string {
		return `{"kind": "` + kind + `List", "apiVersion": "admissionregistration.k8s.io/v1", "items": [` + items + `]}`
	}
	slices := map[string]string{ // by Service
		"up":     `{"endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": true}}]}`,
		"coming": `{"endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": false}}]}`,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch path := r.URL.Path; {
		case strings.HasSuffix(path, "/validatingwebhookconfigurations"):
			io.WriteString(w, list("ValidatingWebhookConfiguration", `{"metadata": {"name": "v"}, "webhooks": [`+
				hook("good.x.y", "up", "Fail")+","+hook("bad.x.y", "coming", "Fail")+","+hook("spared.x.y", "coming", "Ignore")+
				`, {"name": "url.x.y", "clientConfig": {"url": "https://127.0.0.1:1"}}]}`))
		case strings.HasSuffix(path, "/mutatingwebhookconfigurations"):
			io.WriteString(w, list("MutatingWebhookConfiguration", `{"metadata": {"name": "m"}, "webhooks": [`+hook("gone.x.y", "none", "Fail")+`]}`))
		case strings.HasSuffix(path, "/namespaces/ns/endpointslices"):
			_, service, _ := strings.Cut(r.URL.Query().Get("labelSelector"), "=")
			io.WriteString(w, `{"kind": "EndpointSliceList", "apiVersion": "discovery.k8s.io/v1", "items": [`+slices[service]+`]}`)
		default:
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	found, err := blockedBy(t.Context(), &rest.Config{Host: server.URL}, time.Minute)
	if err != nil || len(found) != 2 {
		t.Fatalf("%v, %v", found, err)
	}
	for i, want := range []string{
		`warning: the ValidatingWebhookConfiguration "v" refuses the requests that its webhook bad.x.y selects: the Service ns/coming has no endpoint that is ready → make its pods ready, or: barque kubectl delete validatingwebhookconfiguration v`,
		`warning: the MutatingWebhookConfiguration "m" refuses the requests that its webhook gone.x.y selects: the Service ns/none has no endpoint that is ready → make its pods ready, or: barque kubectl delete mutatingwebhookconfiguration m`,
	} {
		if got := found[i].String(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	server.Config.Handler = http.NotFoundHandler()
	if found, err := blockedBy(t.Context(), &rest.Config{Host: server.URL}, time.Minute); err != nil || len(found) > 0 {
		t.Errorf("a server without webhooks: %v, %v", found, err)
	}
}
