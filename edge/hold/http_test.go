package hold

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/barque/barque/internal/cutoff"
)

// TestARevokedAgentsSessionEnds: a session lasts as long as its connection, and is judged again
// when certificates are revoked. Another agent's goes on.
func TestARevokedAgentsSessionEnds(t *testing.T) {
	ca := x509.NewCertPool()
	issue := func() tls.Certificate {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
		if err != nil {
			t.Fatal(err)
		}
		der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
			SerialNumber: serial, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		}, &x509.Certificate{SerialNumber: serial}, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		ca.AddCert(leaf)
		return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
	}
	good, bad := issue(), issue()

	var mu sync.Mutex
	revoked, changed := false, make(chan struct{})
	sessions := cutoff.New(cutoff.ByCluster, func(leaf *x509.Certificate) error {
		mu.Lock()
		defer mu.Unlock()
		if revoked && leaf.SerialNumber.Cmp(bad.Leaf.SerialNumber) == 0 {
			return errors.New("it is revoked")
		}
		return nil
	}, func(*x509.Certificate) (x509.VerifyOptions, bool) {
		return x509.VerifyOptions{Roots: ca, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, true
	}, func(*http.Request) bool { return true })
	leader := NewLeader(LeaderConfig{
		Confirm: func(context.Context, uint64) error { return nil }, Clock: Boot,
		Gone:    func(context.Context, string) bool { return false },
		Demands: func() ([]Demand, bool, <-chan struct{}) { return nil, false, nil },
	})
	leading, depose := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = leader.Lead(leading, 1) })
	running.Go(func() {
		sessions.Run(leading, func() <-chan struct{} {
			mu.Lock()
			defer mu.Unlock()
			return changed
		})
	})
	server := httptest.NewUnstartedServer(&Handler{
		Leader: leader,
		Agent: func(
			r *http.Request,
		) (string, error) {
			return r.TLS.PeerCertificates[0].SerialNumber.String(), nil
		},
		LeaderAt:      func() (netip.AddrPort, bool) { return netip.AddrPort{}, false },
		Authenticated: func(context.Context) {}, Sessions: sessions,
		Until: leading,
	})
	server.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	server.StartTLS()
	defer running.Wait()
	defer server.Close()
	defer depose()
	at := netip.MustParseAddrPort(server.Listener.Addr().String())
	begin := func(cert tls.Certificate) Link {
		for { // until the leader leads
			link, err := Dial(t.Context(), at,
				&tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{cert}})
			if elsewhere := new(ElsewhereError); errors.As(err, &elsewhere) {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if hello, err := link.Receive(); err != nil || hello.Kind != Hello {
				t.Fatalf("%+v, %v", hello, err)
			}
			return link
		}
	}
	thief, honest := begin(bad), begin(good)
	defer honest.Close()
	defer thief.Close()
	// A session that goes on for good ends with the test's patience.
	defer time.AfterFunc(time.Minute, func() { _ = thief.Close() }).Stop()
	mu.Lock()
	revoked = true
	close(changed)
	changed = make(chan struct{})
	mu.Unlock()
	closed := make(chan error, 1)
	running.Go(func() {
		_, err := thief.Receive()
		closed <- err
	})
	select {
	case err := <-closed:
		if err == nil {
			t.Error("the revoked agent hears more of the leader")
		}
	case <-time.After(time.Minute):
		t.Fatal("the session of a revoked certificate goes on")
	}
	if err := honest.Send(Message{Kind: Request, Term: 1, Session: 2}); err != nil {
		t.Fatal(err)
	}
	if answer, err := honest.Receive(); err != nil || answer.Kind != Answer {
		t.Errorf("another agent's session: %+v, %v", answer, err)
	}
}
