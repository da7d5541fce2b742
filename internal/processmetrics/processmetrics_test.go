package processmetrics

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/barque/barque/internal/version"
)

// TestCollectors: a client's requests are counted, and the build is known; the registry of the API
// machinery has them, too.
func TestCollectors(t *testing.T) {
	server := httptest.NewServer(
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusTeapot) }))
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Discovery().RESTClient().Get().AbsPath("/x").Do(t.Context()).Raw(); err == nil {
		t.Fatal("a teapot made coffee")
	}
	own := prometheus.NewRegistry()
	own.MustRegister(Collectors()...)
	for name, from := range map[string]prometheus.Gatherer{"its own": own,
		"the API machinery": legacyregistry.DefaultGatherer} {
		families, err := from.Gather()
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]map[string]string{}
		for _, f := range families {
			labels := map[string]string{}
			for _, m := range f.Metric {
				for _, l := range m.Label {
					labels[l.GetName()] = l.GetValue()
				}
			}
			seen[f.GetName()] = labels
		}
		if got := seen["rest_client_requests_total"]; got["code"] != "418" || got["method"] != http.MethodGet ||
			got["host"] == "" {
			t.Errorf("the request in the registry of %s: %v", name, got)
		}
		if got := seen["rest_client_request_duration_seconds"]; got["verb"] != http.MethodGet {
			t.Errorf("its time in the registry of %s: %v", name, got)
		}
		if got := seen["kubernetes_build_info"]; got["git_version"] != version.String() || got["major"] != "1" ||
			got["minor"] == "" {
			t.Errorf("the build in the registry of %s: %v", name, got)
		}
	}
}
