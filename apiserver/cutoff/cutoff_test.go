package cutoff

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/barque/barque/internal/await"
)

// authority is a CA of a test.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{key: key}
	a.cert = a.sign(t, &x509.Certificate{IsCA: true, KeyUsage: x509.KeyUsageCertSign}, nil)
	return a
}

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

func (a *authority) issue(t *testing.T) *x509.Certificate {
	return a.sign(t, &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, a.cert)
}

// sign signs by the parent, or by itself.
func (a *authority) sign(t *testing.T, template, parent *x509.Certificate) *x509.Certificate {
	t.Helper()
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber, template.BasicConstraintsValid = serial, true
	template.Subject.CommonName = fmt.Sprint(serial)
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// TestLastingRequestsEnd: a watch ends when its certificate is revoked, or its CA is believed no
// more. Others go on: requests that are short, and those that something else proves.
func TestLastingRequestsEnd(t *testing.T) {
	ca, stranger := newAuthority(t), newAuthority(t)
	issue := func(ca *authority) *x509.Certificate { return ca.issue(t) }
	good, bad, other := issue(ca), issue(ca), issue(stranger)
	revoked := errors.New("it is revoked")
	for what, c := range map[string]struct {
		cert    *x509.Certificate
		watch   bool
		revokes bool // of bad
		exiles  bool // of the CA
		ends    bool
	}{
		"revoked": {bad, true, true, false, true}, "not that one": {good, true, true, false, false}, "a short request": {bad, false, true, false, false},
		"the CA is gone": {good, true, false, true, true}, "a bearer token beside another CA's certificate": {other, true, true, true, false}, "without a certificate": {nil, true, true, true, false},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				isRevoked, roots, changed := false, ca.pool(), make(chan struct{})
				q := New(func(leaf *x509.Certificate) error {
					mu.Lock()
					defer mu.Unlock()
					if isRevoked && leaf == bad {
						return revoked
					}
					return nil
				}, func() (x509.VerifyOptions, bool) {
					mu.Lock()
					defer mu.Unlock()
					return x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, true
				}, func(*http.Request, *request.RequestInfo) bool { return c.watch })
				ctx, stop := context.WithCancel(t.Context())
				var running sync.WaitGroup
				running.Go(func() {
					q.Run(ctx, func() <-chan struct{} {
						mu.Lock()
						defer mu.Unlock()
						return changed
					})
				})
				var ended error
				release := make(chan struct{})
				handler := q.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					select {
					case <-r.Context().Done():
						ended = context.Cause(r.Context())
					case <-release:
					}
				}))
				r := httptest.NewRequestWithContext(request.WithRequestInfo(ctx, &request.RequestInfo{}), http.MethodGet, "/", nil)
				r.TLS = &tls.ConnectionState{}
				if c.cert != nil {
					r.TLS.PeerCertificates = []*x509.Certificate{c.cert}
				}
				running.Go(func() { handler.ServeHTTP(httptest.NewRecorder(), r) })
				synctest.Wait()
				mu.Lock()
				isRevoked = c.revokes
				if c.exiles {
					roots = stranger.pool()
				}
				close(changed)
				changed = make(chan struct{})
				mu.Unlock()
				synctest.Wait()
				close(release)
				stop()
				running.Wait()
				if (ended != nil) != c.ends {
					t.Errorf("ended by %v", ended)
				}
			})
		})
	}
}

// TestALookHoldsNothingUp: requests begin and end while certificates are judged.
func TestALookHoldsNothingUp(t *testing.T) {
	ca := newAuthority(t)
	slow, quick := ca.issue(t), ca.issue(t)
	judging, judged := make(chan struct{}, 1), make(chan struct{})
	var looks atomic.Bool
	q := New(func(leaf *x509.Certificate) error {
		if leaf == slow && looks.Load() {
			judging <- struct{}{}
			<-judged
		}
		return nil
	}, func() (x509.VerifyOptions, bool) {
		return x509.VerifyOptions{Roots: ca.pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, true
	}, func(*http.Request, *request.RequestInfo) bool { return true })
	served, release := make(chan struct{}, 2), make(chan struct{})
	handler := q.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		served <- struct{}{}
		<-release
	}))
	var running sync.WaitGroup
	serve := func(cert *x509.Certificate) {
		r := httptest.NewRequestWithContext(request.WithRequestInfo(t.Context(), &request.RequestInfo{}), http.MethodGet, "/", nil)
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}
		running.Go(func() { handler.ServeHTTP(httptest.NewRecorder(), r) })
	}
	serve(slow)
	await.Value(t, "the first request", served)
	looks.Store(true)
	running.Go(q.look)
	await.Value(t, "the look", judging)
	serve(quick)
	await.Value(t, "a request during the look", served)
	close(judged)
	close(release)
	running.Wait()
}
