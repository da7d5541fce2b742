package liveness

import (
	"crypto/tls"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/pki/identity"
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

// TestOnlyAServerIsReady: a node that is no server gives itself no place among the API's endpoints.
func TestOnlyAServerIsReady(t *testing.T) {
	ca, err := pki.NewAuthority("c", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	trust := pki.TrustOf(ca)
	address := netip.MustParseAddr("127.0.0.1")
	for name, c := range map[string]struct {
		request pki.Request
		want    string
	}{
		"a server": {
			pki.Request{CommonName: "barque:apiserver", Organization: []string{join.ServersOrganization},
				Usage: pki.Server, Names: []string{address.String()}}, ""},
		"an agent": {join.NodeServing("a1", address), "no server"},
	} {
		c.request.Lifetime = time.Hour
		own, err := identity.New(t.Context(),
			identity.Config{Name: name, Now: time.Now, Logger: slog.New(slog.DiscardHandler),
				Issue: trust.Signs(func() pki.Request { return c.request }, time.Now)})
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewUnstartedServer(
			http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") }))
		server.TLS = &tls.Config{Certificates: []tls.Certificate{*own.Certificate()}}
		server.Config.ErrorLog = log.New(io.Discard, "", 0) // refused handshakes are part of the test
		server.StartTLS()
		defer server.Close()
		r := NewReadiness(func(netip.Addr) bool { return false }, trust)
		defer r.client.CloseIdleConnections()
		err = r.Ready(t.Context(), netip.MustParseAddrPort(server.Listener.Addr().String()))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
