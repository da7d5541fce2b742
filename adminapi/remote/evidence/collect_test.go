package evidence

import (
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/barque/barque/clusterstatus/cis"
)

// TestProfiling: only a server that does not know the path has no profiles.
func TestProfiling(t *testing.T) {
	for status, want := range map[int]cis.Opened{
		http.StatusOK: {Asked: true, Served: true}, http.StatusNotFound: {Asked: true}, http.StatusForbidden: {}, http.StatusUnauthorized: {}, http.StatusTooManyRequests: {}, http.StatusServiceUnavailable: {},
	} {
		s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			fmt.Fprint(w, "<html>")
		}))
		config := &rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})}}
		if is := profiling(t.Context(), config, s.Listener.Addr().String()); is != want {
			t.Errorf("%d: %+v, want %+v", status, is, want)
		}
		s.Close()
	}
}
