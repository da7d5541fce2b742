package liveness

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
)

// TestReadinessKeepsItsConnection: it asks twice a second, and each new connection costs both sides
// a TLS handshake.
func TestReadinessKeepsItsConnection(t *testing.T) {
	var connections atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if connections.Load() == 0 {
			t.Error("no connection was seen")
		}
		io.WriteString(w, "ok")
	}))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	server.StartTLS()
	defer server.Close()
	r := &Readiness{client: server.Client()}
	for range 5 {
		if err := r.ask(t.Context(), netip.MustParseAddrPort(strings.TrimPrefix(server.URL, "https://"))); err != nil {
			t.Fatal(err)
		}
	}
	if n := connections.Load(); n != 1 {
		t.Errorf("5 questions took %d connections", n)
	}
}
