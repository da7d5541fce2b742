package cutoff

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/endpoints/responsewriter"

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
	if template.NotBefore.IsZero() {
		template.NotBefore = time.Now().Add(-time.Hour)
	}
	template.NotAfter = time.Now().Add(time.Hour)
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

// authenticated has requests authenticated; 0 is by something else than a certificate.
func authenticated(by Proof, next http.Handler) http.Handler {
	return WithProof(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		Proven(r.Context(), by)
		next.ServeHTTP(w, r)
	}))
}

// TestLastingRequestsEnd: a watch ends when its certificate is revoked, or its CA is not trusted
// any more. Short requests go on, and requests with another proof.
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
		"revoked": {bad, true, true, false, true}, "not that one": {good, true, true, false, false},
		"a short request": {bad, false, true, false, false},
		"the CA is gone":  {good, true, false, true, true},
		"a bearer token beside another CA's certificate": {other, true, true, true, false},
		"without a certificate":                          {nil, true, true, true, false},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				isRevoked, roots, changed := false, ca.pool(), make(chan struct{})
				q := New(ByCluster, func(leaf *x509.Certificate) error {
					mu.Lock()
					defer mu.Unlock()
					if isRevoked && leaf == bad {
						return revoked
					}
					return nil
				}, func(*x509.Certificate) (x509.VerifyOptions, bool) {
					mu.Lock()
					defer mu.Unlock()
					return x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}},
						true
				}, func(*http.Request) bool { return c.watch })
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
				proof := ByCluster
				if c.cert == other {
					proof = 0
				}
				handler := authenticated(proof,
					q.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
						select {
						case <-r.Context().Done():
							ended = context.Cause(r.Context())
						case <-release:
						}
					})))
				r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
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

// TestARequestThatIsOvertaken: its CA is believed no more, while it waits behind its
// authentication, or just as it is noted. No later change ends it.
func TestARequestThatIsOvertaken(t *testing.T) {
	ca, stranger := newAuthority(t), newAuthority(t)
	for what, c := range map[string]struct{ waits, others bool }{
		"while it waits": {waits: true}, "as it is noted": {}, "another's CAs change": {waits: true, others: true},
	} {
		roots, asked := ca.pool(), false
		var q *Requests
		q = New(ByProxy, nil, func(*x509.Certificate) (x509.VerifyOptions, bool) {
			now := x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
			if !c.waits && !asked { // the change and the look come between
				asked, roots = true, stranger.pool()
				q.look()
			}
			return now, true
		}, func(*http.Request) bool { return true })
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{ca.issue(t)}}
		WithProof(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			proof := ByProxy
			if c.others {
				proof = ByCluster
			}
			Proven(r.Context(), proof)
			if c.waits {
				roots = stranger.pool()
				q.look()
			}
			q.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if err := context.Cause(r.Context()); (err != nil) == c.others {
					t.Errorf("%s: ended by %v", what, err)
				}
			})).ServeHTTP(w, r)
		})).ServeHTTP(httptest.NewRecorder(), r)
	}
}

// TestACAThatIsYoungerThanACertificate: a watch ends with its certificate, though that begins
// before its CA, as certificates are dated back.
func TestACAThatIsYoungerThanACertificate(t *testing.T) {
	ca := newAuthority(t)
	ca.cert = ca.sign(t,
		&x509.Certificate{IsCA: true, KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Minute)}, nil)
	leaf, revoked := ca.issue(t), errors.New("it is revoked")
	isRevoked := false
	q := New(ByCluster, func(*x509.Certificate) error {
		if isRevoked {
			return revoked
		}
		return nil
	}, func(*x509.Certificate) (x509.VerifyOptions, bool) {
		return x509.VerifyOptions{Roots: ca.pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, true
	}, func(*http.Request) bool { return true })
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}}
	authenticated(ByCluster, q.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		q.look()
		if err := context.Cause(r.Context()); err != nil {
			t.Errorf("ended by %v, though the certificate is good", err)
		}
		isRevoked = true
		q.look()
		if err := context.Cause(r.Context()); !errors.Is(err, revoked) {
			t.Errorf("ended by %v, though the certificate is revoked", err)
		}
	}))).ServeHTTP(httptest.NewRecorder(), r)
}

// TestALookHoldsNothingUp: requests begin and end while certificates are judged.
func TestALookHoldsNothingUp(t *testing.T) {
	ca := newAuthority(t)
	slow, quick := ca.issue(t), ca.issue(t)
	judging, judged := make(chan struct{}, 1), make(chan struct{})
	var looks atomic.Bool
	q := New(ByCluster, func(leaf *x509.Certificate) error {
		if leaf == slow && looks.Load() {
			judging <- struct{}{}
			<-judged
		}
		return nil
	}, func(*x509.Certificate) (x509.VerifyOptions, bool) {
		return x509.VerifyOptions{Roots: ca.pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, true
	}, func(*http.Request) bool { return true })
	served, release := make(chan struct{}, 2), make(chan struct{})
	handler := authenticated(ByCluster, q.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		served <- struct{}{}
		<-release
	})))
	var running sync.WaitGroup
	serve := func(cert *x509.Certificate) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
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

// decorated is a writer in the form of the API machinery.
type decorated struct{ http.ResponseWriter }

func (d *decorated) Unwrap() http.ResponseWriter { return d.ResponseWriter }

// TestUpgradedRequestsEnd: a connection that was upgraded, as for a command in a pod, is closed
// when its certificate is revoked. Others go on, and end with their handlers.
func TestUpgradedRequestsEnd(t *testing.T) {
	ca := newAuthority(t)
	bad, good := ca.issue(t), ca.issue(t)
	var mu sync.Mutex
	changed, isRevoked := make(chan struct{}), false
	q := New(ByCluster, func(leaf *x509.Certificate) error {
		mu.Lock()
		defer mu.Unlock()
		if isRevoked && leaf.Equal(bad) {
			return errors.New("it is revoked")
		}
		return nil
	}, func(*x509.Certificate) (x509.VerifyOptions, bool) {
		return x509.VerifyOptions{Roots: ca.pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, true
	}, func(*http.Request) bool { return true })
	server := httptest.NewUnstartedServer(
		authenticated(ByCluster, q.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			// A watch over WebSocket has a writer of the API machinery between.
			conn, _, err := responsewriter.WrapForHTTP1Or2(&decorated{w}).(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			_, _ = io.WriteString(conn,
				"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			_, _ = io.Copy(conn, conn)
		}))))
	server.TLS = &tls.Config{ClientAuth: tls.RequestClientCert, NextProtos: []string{"http/1.1"}}
	server.StartTLS()
	defer server.Close()
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		q.Run(ctx, func() <-chan struct{} { return make(chan struct{}) }, func() <-chan struct{} {
			mu.Lock()
			defer mu.Unlock()
			return changed
		})
	})
	defer running.Wait()
	defer stop()
	open := func(cert *x509.Certificate) (io.ReadWriter, *tls.Conn) {
		conn, err := tls.Dial("tcp", server.Listener.Addr().String(),
			&tls.Config{InsecureSkipVerify: true,
				Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: ca.key}}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn,
			"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		buffered := bufio.NewReader(conn)
		answer, err := http.ReadResponse(buffered, nil)
		if err != nil || answer.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("%+v, %v", answer, err)
		}
		return struct {
			io.Reader
			io.Writer
		}{buffered, conn}, conn
	}
	echo := func(s io.ReadWriter) error {
		if _, err := io.WriteString(s, "x"); err != nil {
			return err
		}
		_, err := io.ReadFull(s, make([]byte, 1))
		return err
	}
	thief, _ := open(bad)
	other, conn := open(good)
	if err := errors.Join(echo(thief), echo(other)); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	isRevoked = true
	close(changed)
	changed = make(chan struct{})
	mu.Unlock()
	if n, err := thief.Read(make([]byte, 1)); n > 0 || errors.Is(err, os.ErrDeadlineExceeded) || err == nil {
		t.Errorf("a revoked certificate's stream goes on: %d, %v", n, err)
	}
	if err := echo(other); err != nil {
		t.Errorf("another stream: %v", err)
	}
	if err := conn.CloseWrite(); err != nil {
		t.Error(err)
	}
	if _, err := other.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("at its end: %v", err)
	}
}

// TestAnswersKeepTheirWriters: a handler of a watch demands a writer of the API machinery.
func TestAnswersKeepTheirWriters(t *testing.T) {
	ca := newAuthority(t)
	q := New(ByCluster, func(*x509.Certificate) error { return nil },
		func(*x509.Certificate) (x509.VerifyOptions, bool) {
			return x509.VerifyOptions{Roots: ca.pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, true
		}, func(*http.Request) bool { return true })
	var given http.ResponseWriter
	handler := authenticated(ByCluster,
		q.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { given = w })))
	for _, proto := range []int{1, 2} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/?watch=1", nil)
		r.ProtoMajor, r.TLS = proto, &tls.ConnectionState{PeerCertificates: []*x509.Certificate{ca.issue(t)}}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if given != w {
			t.Errorf("HTTP/%d: the writer is a %T", proto, given)
		}
	}
}
