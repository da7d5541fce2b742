package remote

import (
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/barque/barque/internal/exitcode"
	"github.com/barque/barque/membership/exchange"
	"github.com/barque/barque/pki"
)

// renewable is a kubeconfig of which there is a new one, or not.
type renewable struct {
	config, next *rest.Config
	renewals     int
}

func (r *renewable) Renew() bool {
	r.renewals++
	if r.next == nil {
		return false
	}
	r.config, r.next = r.next, nil
	return true
}

func (r *renewable) Afterwards() string { return "" }

// TestAwaitBehindAnotherCA: the servers have a certificate of the new CA that the kubeconfig does
// not trust. This is so when the old CA may not sign CAs. The new kubeconfig is used; without one
// the wait ends.
func TestAwaitBehindAnotherCA(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(exchange.Status{Generation: 3, Issuer: "new"})
	}))
	defer server.Close()
	stranger, err := pki.NewAuthority("stranger", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	old := &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{CAData: stranger.PEM()}}
	renewed := &rest.Config{Host: server.URL,
		TLSClientConfig: rest.TLSClientConfig{
			CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})}}
	for name, c := range map[string]struct {
		next *rest.Config
		step pki.Step
		code int
	}{
		"a new kubeconfig":           {renewed, pki.Issuing, 0},
		"none":                       {nil, pki.Issuing, exitcode.Unfinished},
		"none, while the old issues": {nil, pki.Spreading, exitcode.Unfinished},
	} {
		t.Run(name, func(t *testing.T) {
			r := &renewable{config: old, next: c.next}
			x := CAExchange{Certs: Certs{Config: func() (*rest.Config, error) { return r.config, nil }}, Kubeconfig: r,
				Tell: func(string) {}}
			void, err := x.Await(t.Context(), exchange.Status{Generation: 2, Step: c.step, Issuer: "old"})
			if void || exitCode(err) != c.code || r.renewals != 1 {
				t.Errorf("void %t, %v, after %d renewals", void, err, r.renewals)
			}
		})
	}
}

// TestAnOrderNamesItsExchange: the servers get the generation that was shown. An exchange that has
// moved on is a refusal.
func TestAnOrderNamesItsExchange(t *testing.T) {
	var query url.Values
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query = r.URL.Query()
		http.Error(w, "it has moved on", http.StatusConflict)
	}))
	defer server.Close()
	config := &rest.Config{Host: server.URL,
		TLSClientConfig: rest.TLSClientConfig{
			CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})}}
	x := CAExchange{Certs: Certs{Config: func() (*rest.Config, error) { return config, nil }},
		Kubeconfig: &renewable{config: config}, Tell: func(string) {}}
	for seen, want := range map[uint64]string{7: "7", 0: ""} {
		err := x.Change(t.Context(), exchange.Request{Change: exchange.Undo, Seen: seen}, false, new(exchange.Status))
		if exitCode(err) != exitcode.Refused || query.Get("change") != "undo" || query.Get("generation") != want ||
			query.Has("generation") != (want != "") {
			t.Errorf("generation %d: %v; asked %v", seen, err, query)
		}
	}
}
