package adminapi

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/barque/barque/membership/join"
)

// A server that mistakes its own address for another server's relays a request once, and reports
// the mistake.
func TestARelayDoesNotAskItselfForEver(t *testing.T) {
	var asked atomic.Int64
	var handler atomic.Pointer[http.HandlerFunc]
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) > 5 {
			http.Error(w, "too often", http.StatusLoopDetected)
			return
		}
		(*handler.Load())(w, r)
	}))
	defer server.Close()
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	at := netip.MustParseAddrPort(server.Listener.Addr().String())
	r := NewRelay("s1", func() []join.Server { return []join.Server{{Name: "s2", API: at}} },
		&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, nil, func() bool { return false }, nil)
	defer r.client.CloseIdleConnections()
	pass := r.Pass(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "served") })
	handler.Store(&pass)

	response, err := server.Client().Get(server.URL + "/barque/v1/doctor?" + RelayParameter + "=s2")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusMisdirectedRequest ||
		!strings.Contains(string(text), "s1 has taken s1 for s2") {
		t.Errorf("%s: %s (%v)", response.Status, text, err)
	}
	if n := asked.Load(); n != 2 {
		t.Errorf("asked %d times, want twice", n)
	}
	own, err := server.Client().Get(server.URL + "/barque/v1/doctor?" + RelayParameter + "=s1")
	if err != nil {
		t.Fatal(err)
	}
	defer own.Body.Close()
	if text, err := io.ReadAll(own.Body); err != nil || string(text) != "served" {
		t.Errorf("its own: %q, %v", text, err)
	}
}
