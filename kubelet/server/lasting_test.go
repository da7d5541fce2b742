package server

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/internal/cutoff"
)

// issuer is a CA of a test.
type issuer struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newIssuer(t *testing.T, name string) *issuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	i := &issuer{key: key}
	i.cert = i.sign(t,
		&x509.Certificate{Subject: pkix.Name{CommonName: name}, IsCA: true, KeyUsage: x509.KeyUsageCertSign})
	return i
}

func (i *issuer) sign(t *testing.T, template *x509.Certificate) *x509.Certificate {
	t.Helper()
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber, template.BasicConstraintsValid = serial, true
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent := i.cert
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, i.key.Public(), i.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func (i *issuer) administrator(t *testing.T) *x509.Certificate {
	return i.sign(t,
		&x509.Certificate{Subject: pkix.Name{CommonName: "ann", Organization: []string{"system:masters"}},
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
}

// called is a kubelet's server whose CAs and revocations change.
type called struct {
	*Server
	address string

	mu      sync.Mutex
	roots   *x509.CertPool
	revoked *x509.Certificate
	changed chan struct{}
	later   time.Duration
}

func serveCalled(t *testing.T, ca *issuer, pods Pods) *called {
	t.Helper()
	serving, _ := servingTLS(t)
	c := &called{roots: x509.NewCertPool(), changed: make(chan struct{})}
	c.roots.AddCert(ca.cert)
	locked := func(f func()) {
		c.mu.Lock()
		defer c.mu.Unlock()
		f()
	}
	s, err := New(Config{NodeName: "n", Pods: pods, Logger: slog.New(slog.DiscardHandler),
		TLS: &tls.Config{Certificates: []tls.Certificate{serving},
			GetConfigForClient: func(*tls.ClientHelloInfo) (config *tls.Config, _ error) {
				locked(func() {
					config = &tls.Config{Certificates: []tls.Certificate{serving},
						ClientAuth: tls.VerifyClientCertIfGiven,
						ClientCAs:  c.roots, NextProtos: []string{"h2", "http/1.1"}}
				})
				return config, nil
			}},
		Now: func() (now time.Time) { locked(func() { now = time.Now().Add(c.later) }); return now },
		Revoked: func(leaf *x509.Certificate) (err error) {
			locked(func() {
				if c.revoked != nil && leaf.Equal(c.revoked) {
					err = errors.New("it is revoked")
				}
			})
			return err
		},
		RevokedChanged: []func() <-chan struct{}{
			func() (changed <-chan struct{}) { locked(func() { changed = c.changed }); return changed }}})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c.Server, c.address = s, listener.Addr().String()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, listener) }() // ends with ctx
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return c
}

// change changes the CAs or revocations.
func (c *called) change(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
	close(c.changed)
	c.changed = make(chan struct{})
}

// client returns a client with a certificate, and the number of its connections.
func (c *called) client(t *testing.T, ca *issuer, cert *x509.Certificate) (*http.Client, *int) {
	connections := new(int)
	transport := &http.Transport{ForceAttemptHTTP2: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true,
			Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: ca.key}}},
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			*connections++
			return (&net.Dialer{}).DialContext(ctx, network, address)
		}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}, connections
}

// TestAnOldConnectionProvesNothing: a client keeps its connection after its certificate was
// revoked. A request over it is refused like one over a new connection.
func TestAnOldConnectionProvesNothing(t *testing.T) {
	ca, next := newIssuer(t, "old"), newIssuer(t, "new")
	for what, change := range map[string]func(c *called, cert *x509.Certificate){
		"it has ended": func(c *called, _ *x509.Certificate) { c.later = 2 * time.Hour },
		"its CA is believed no more": func(
			c *called, _ *x509.Certificate,
		) {
			c.roots = x509.NewCertPool()
			c.roots.AddCert(next.cert)
		},
		"it is revoked": func(c *called, cert *x509.Certificate) { c.revoked = cert },
	} {
		t.Run(what, func(t *testing.T) {
			c, cert := serveCalled(t, ca, podList{}), ca.administrator(t)
			client, connections := c.client(t, ca, cert)
			ask := func() int {
				t.Helper()
				answer, err := client.Get("https://" + c.address + "/pods")
				if err != nil {
					t.Fatal(err)
				}
				defer answer.Body.Close()
				_, _ = io.Copy(io.Discard, answer.Body)
				return answer.StatusCode
			}
			if status := ask(); status != http.StatusOK {
				t.Fatalf("before: %d", status)
			}
			c.change(func() { change(c, cert) })
			if status := ask(); status != http.StatusUnauthorized || *connections != 1 {
				t.Errorf("%d, over %d connections", status, *connections)
			}
		})
	}
}

// TestStreamsEndWithTheirCertificates: a stream of a growing log ends when its client's certificate
// is revoked, or its CA is removed.
func TestStreamsEndWithTheirCertificates(t *testing.T) {
	ca, next := newIssuer(t, "old"), newIssuer(t, "new")
	for what, change := range map[string]func(c *called, cert *x509.Certificate){
		"its CA is believed no more": func(
			c *called, _ *x509.Certificate,
		) {
			c.roots = x509.NewCertPool()
			c.roots.AddCert(next.cert)
		},
		"it is revoked": func(c *called, cert *x509.Certificate) { c.revoked = cert },
	} {
		t.Run(what, func(t *testing.T) {
			pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"}}
			c, cert := serveCalled(t, ca, podList{pod}), ca.administrator(t)
			ended := make(chan struct{})
			begun := make(chan struct{}, 1)
			streams := c.streams.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				begun <- struct{}{}
				<-r.Context().Done()
				close(ended)
			}))
			inner := cutoff.WithProof(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if u, err := c.guard.authenticate(r); u == nil || err != nil {
					t.Errorf("it is not authenticated: %v, %v", u, err)
				}
				streams.ServeHTTP(w, r)
			}))
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
				"https://n/containerLogs/ns/p/c?follow=true", nil)
			if err != nil {
				t.Fatal(err)
			}
			r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert},
				VerifiedChains: [][]*x509.Certificate{{cert, ca.cert}}}
			go inner.ServeHTTP(nil, r) // ends with the request
			await.Value(t, "the request", begun)
			c.change(func() { change(c, cert) })
			await.Value(t, "the end of the request", ended)
		})
	}
}
