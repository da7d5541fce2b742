package balancer_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/barque/barque/membership/balancer"
)

func TestReadyProbe(t *testing.T) {
	var status, connections atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" {
			t.Errorf("asked for %s", r.URL.Path)
		}
		w.WriteHeader(int(status.Load()))
		_, _ = w.Write(make([]byte, 3000)) // a page that tells why
	}))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	probe := balancer.ReadyProbe(&tls.Config{RootCAs: roots})
	addr := netip.MustParseAddrPort(server.Listener.Addr().String())
	for range 20 {
		status.Store(http.StatusOK)
		if err := probe(t.Context(), addr); err != nil {
			t.Fatal(err)
		}
		status.Store(http.StatusInternalServerError)
		if err := probe(t.Context(), addr); !errors.Is(err, balancer.ErrNotReady) {
			t.Fatal(err)
		}
	}
	if n := connections.Load(); n != 1 {
		t.Errorf("40 probes took %d connections", n)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := probe(ended, addr); err == nil || errors.Is(err, balancer.ErrNotReady) {
		t.Errorf("a probe that could not ask says %v", err)
	}
}
