package extender

import (
	"encoding/json"
	"encoding/pem"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/barque/barque/scheduler/framework"
)

// TestTLS: an extender's certificate is verified unless the configuration turns that off.
func TestTLS(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if err := json.NewEncoder(w).Encode(extenderv1.ExtenderFilterResult{NodeNames: &[]string{"a"}}); err != nil {
			t.Error(err)
		}
	}))
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.StartTLS()
	t.Cleanup(server.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	node := framework.NewNodeInfo()
	node.SetNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
	for name, c := range map[string]struct {
		https bool
		tls   *configv1.ExtenderTLSConfig
		ok    bool
	}{
		"its CA":                {tls: &configv1.ExtenderTLSConfig{CAData: ca}, ok: true},
		"its CA, another name":  {tls: &configv1.ExtenderTLSConfig{CAData: ca, ServerName: "example.com"}, ok: true},
		"its CA, a wrong name":  {tls: &configv1.ExtenderTLSConfig{CAData: ca, ServerName: "example.org"}},
		"nothing":               {},
		"enableHTTPS alone":     {https: true, ok: true},
		"enableHTTPS, wrong CA": {https: true, tls: &configv1.ExtenderTLSConfig{CAData: ca, ServerName: "example.org"}},
		"insecure":              {tls: &configv1.ExtenderTLSConfig{Insecure: true}, ok: true},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := New(
				[]configv1.Extender{
					{URLPrefix: server.URL, FilterVerb: "filter", NodeCacheCapable: true, EnableHTTPS: c.https,
						TLSConfig: c.tls}}, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			got, err := s.Filter(t.Context(), &v1.Pod{}, []fwk.NodeInfo{node}, &framework.FitError{})
			if (err == nil) != c.ok || c.ok && len(got) != 1 {
				t.Errorf("error %v, nodes %v; want success: %t", err, got, c.ok)
			}
		})
	}
}
