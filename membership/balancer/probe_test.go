package balancer

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
	"time"
)

// readyServer serves /readyz as f does, and counts connections.
func readyServer(
	t *testing.T, f http.HandlerFunc,
) (server netip.AddrPort, roots *x509.CertPool, connections *atomic.Int32) {
	connections = new(atomic.Int32)
	s := httptest.NewUnstartedServer(f)
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	roots = x509.NewCertPool()
	roots.AddCert(s.Certificate())
	return netip.MustParseAddrPort(s.Listener.Addr().String()), roots, connections
}

// patientProbe is a ReadyProbe on a machine that may stand still for longer than a connection may
// take.
func patientProbe(roots *x509.CertPool) func(context.Context, netip.AddrPort, int) error {
	return newReadyProbe(&tls.Config{RootCAs: roots}, time.Minute, time.Minute).ask
}

func TestReadyProbe(t *testing.T) {
	var status atomic.Int32
	addr, roots, connections := readyServer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" {
			t.Errorf("asked for %s", r.URL.Path)
		}
		w.WriteHeader(int(status.Load()))
		_, _ = w.Write(make([]byte, 3000)) // a page with the reason
	})
	probe := patientProbe(roots)
	for i := range 20 {
		status.Store(http.StatusOK)
		if err := probe(t.Context(), addr, i%lanes); err != nil {
			t.Fatal(err)
		}
		status.Store(http.StatusInternalServerError)
		if err := probe(t.Context(), addr, i%lanes); !errors.Is(err, ErrNotReady) {
			t.Fatal(err)
		}
	}
	if n := connections.Load(); n != lanes {
		t.Errorf("40 probes over %d lanes took %d connections", lanes, n)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := probe(ended, addr, 0); err == nil || errors.Is(err, ErrNotReady) {
		t.Errorf("a probe that could not ask says %v", err)
	}
}

// A connection over which an answer does not come in time is not asked over again.
func TestAHungConnectionIsDropped(t *testing.T) {
	for what, c := range map[string]struct {
		cause error
		want  int32
	}{"no answer": {errNoAnswer, 2}, "given up": {nil, 1}} {
		t.Run(what, func(t *testing.T) {
			var hang atomic.Bool
			asked := make(chan struct{}, 1)
			addr, roots, connections := readyServer(t, func(_ http.ResponseWriter, r *http.Request) {
				if hang.Load() {
					asked <- struct{}{}
					<-r.Context().Done()
				}
			})
			probe := patientProbe(roots)
			if err := probe(t.Context(), addr, 0); err != nil {
				t.Fatal(err)
			}
			hang.Store(true)
			ctx, cancel := context.WithCancelCause(t.Context())
			go func() {
				<-asked
				cancel(c.cause)
			}()
			if err := probe(ctx, addr, 0); err == nil {
				t.Fatal("an answer that did not come")
			}
			hang.Store(false)
			if err := probe(t.Context(), addr, 0); err != nil {
				t.Fatal(err)
			}
			if n := connections.Load(); n != c.want {
				t.Errorf("%d connections, want %d", n, c.want)
			}
		})
	}
}

// A connection that takes longer than a probe is set up in the end, and once.
func TestASlowConnectionIsSetUpOnce(t *testing.T) {
	server, roots, connections := readyServer(t, func(http.ResponseWriter, *http.Request) {})
	through := make(chan struct{})
	gate, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer gate.Close()
	accepted := make(chan struct{}, 10)
	go func() {
		for {
			near, err := gate.Accept()
			if err != nil {
				return
			}
			accepted <- struct{}{}
			go func() {
				<-through
				far, err := net.Dial("tcp", server.String())
				if err != nil {
					t.Error(err)
					return
				}
				newLink(near).pipe(far, false)
			}()
		}
	}()
	probe := patientProbe(roots)
	addr := netip.MustParseAddrPort(gate.Addr().String())
	for range 3 {
		ctx, cancel := context.WithCancelCause(t.Context())
		done := make(chan error, 1)
		go func() { done <- probe(ctx, addr, 0) }()
		select {
		case <-accepted: // at the first
			accepted <- struct{}{}
		case err := <-done:
			t.Fatal(err)
		}
		cancel(errNoAnswer)
		if err := <-done; err == nil {
			t.Fatal("an answer through a closed gate")
		}
	}
	close(through)
	if err := probe(t.Context(), addr, 0); err != nil {
		t.Fatal(err)
	}
	if n := connections.Load(); n != 1 || len(accepted) != 1 {
		t.Errorf("four probes took %d connections, %d of them set up", len(accepted), n)
	}
}
