package evidence

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/barque/barque/clusterstatus/cis"
)

// authority issues one certificate of a new CA.
func authority(t *testing.T, name string) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	caKey, key := newKey(t), newKey(t)
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"},
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		SubjectKeyId: []byte("ca of " + name)}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name},
		NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, leaf, ca, key.Public(), caKey)
	if err != nil {
		t.Fatal(err)
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(caDER)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, roots
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// serve serves a handler by TLS with the configuration.
func serve(t *testing.T, config *tls.Config) string {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/data" && r.Header.Get("Authorization") == "" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	server.TLS = config
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// TestKnock: each reported property of a port is the port's behaviour.
func TestKnock(t *testing.T) {
	cert, roots := authority(t, "system:node:n1")
	_, others := authority(t, "other")
	base := func() *tls.Config { return &tls.Config{Certificates: []tls.Certificate{cert}} }
	t.Run("open to strangers", func(t *testing.T) {
		c := base()
		c.MinVersion, c.ClientAuth = tls.VersionTLS12, tls.RequestClientCert
		d := probePort(t.Context(), serve(t, c), "/data", roots)
		if d.Unreached != "" || !d.Verified || d.Subject != "system:node:n1" || d.Issuer == "" ||
			!d.AsksForCertificate || d.DemandsIt || d.Plain || d.Anonymous != 401 {
			t.Errorf("%+v", d)
		}
		if !slices.ContainsFunc(d.Weak, func(s string) bool { return strings.Contains(s, "CBC") }) {
			t.Errorf("Go's own suites have CBC: %v", d.Weak)
		}
	})
	t.Run("everything is open", func(t *testing.T) {
		d := probePort(t.Context(), serve(t, base()), "/", others)
		if d.Verified || d.AsksForCertificate || d.Anonymous != 200 {
			t.Errorf("%+v", d)
		}
	})
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		t.Run("a certificate is demanded, "+tls.VersionName(version), func(t *testing.T) {
			c := base()
			c.MinVersion, c.MaxVersion, c.ClientAuth = version, version, tls.RequireAndVerifyClientCert
			d := probePort(t.Context(), serve(t, c), "", roots)
			if !d.AsksForCertificate || !d.DemandsIt || d.Subject == "" || d.Unreached != "" {
				t.Errorf("%+v", d)
			}
		})
	}
	t.Run("strong", func(t *testing.T) {
		c := base()
		c.MinVersion, c.CipherSuites = tls.VersionTLS12, []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256}
		if d := probePort(t.Context(), serve(t, c), "", roots); len(d.Weak) > 0 {
			t.Errorf("%v", d.Weak)
		}
	})
	t.Run("an old version", func(t *testing.T) {
		c := base()
		c.MinVersion = tls.VersionTLS10
		if d := probePort(t.Context(), serve(t, c), "", roots); !slices.Contains(d.Weak, "TLS 1.1") {
			t.Errorf("%v", d.Weak)
		}
	})
	t.Run("plain", func(t *testing.T) {
		server := httptest.NewServer(http.NotFoundHandler())
		defer server.Close()
		if d := probePort(t.Context(), server.Listener.Addr().String(), "", roots); !d.Plain || d.Unreached != "" {
			t.Errorf("%+v", d)
		}
	})
	t.Run("closed", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		_, port, err := net.SplitHostPort(l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		n, err := strconv.Atoi(port)
		if err != nil {
			t.Fatal(err)
		}
		if p := try(t.Context(), "127.0.0.1", n); p.State != cis.PortOpen {
			t.Errorf("an open port: %+v", p)
		}
		lost, cancel := context.WithCancel(t.Context())
		cancel()
		if p := try(lost, "127.0.0.1", n); p.State != "" || p.Why == "" {
			t.Errorf("a port that was not reached: %+v", p)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if d := probePort(t.Context(), l.Addr().String(), "", roots); d.Unreached == "" {
			t.Errorf("%+v", d)
		}
		if p := try(t.Context(), "127.0.0.1", n); p.State != cis.PortClosed {
			t.Errorf("a closed port: %+v", p)
		}
	})
}

// TestOnlyAlertsRefuse: a port that ends the connection without a word has refused nobody.
func TestOnlyAlertsRefuse(t *testing.T) {
	cert, roots := authority(t, "s1")
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		t.Run(tls.VersionName(version), func(t *testing.T) {
			address := accept(t, func(raw net.Conn) {
				conn := tls.Server(raw,
					&tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: version, MaxVersion: version,
						ClientAuth:       tls.RequestClientCert,
						VerifyConnection: func(tls.ConnectionState) error { return raw.Close() }})
				_ = conn.HandshakeContext(t.Context()) // it cannot succeed
			})
			if d := probePort(t.Context(), address, "", roots); d.DemandsIt || d.Unreached == "" {
				t.Errorf("%+v", d)
			}
		})
	}
}

// TestUntriedSuites: handshakes that fail by the connection prove no suite refused.
func TestUntriedSuites(t *testing.T) {
	cert, roots := authority(t, "s1")
	behind := serve(t,
		&tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12,
			CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256}})
	var served atomic.Int32
	address := accept(t, func(front net.Conn) {
		if served.Add(1) > 1 {
			return // as one that has too many connections
		}
		back, err := net.Dial("tcp", behind)
		if err != nil {
			t.Error(err)
			return
		}
		defer back.Close()
		var copying sync.WaitGroup
		copying.Go(func() {
			_, _ = io.Copy(back, front)
			back.Close()
		})
		_, _ = io.Copy(front, back)
		front.Close()
		copying.Wait()
	})
	d := probePort(t.Context(), address, "", roots)
	if d.Unreached != "" || !d.Verified || d.Untried == "" || len(d.Weak) > 0 {
		t.Errorf("%+v", d)
	}
	if d := probePort(t.Context(), behind, "", roots); d.Untried != "" {
		t.Errorf("all were tried, and it has %+v", d)
	}
}

// TestWeakBehindADemand: a suite is accepted, although the client is refused for its certificate.
func TestWeakBehindADemand(t *testing.T) {
	cert, roots := authority(t, "s1")
	d := probePort(t.Context(),
		serve(t,
			&tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS10,
				ClientAuth: tls.RequireAndVerifyClientCert}), "", roots)
	if !slices.Contains(d.Weak, "TLS 1.1") ||
		!slices.ContainsFunc(d.Weak, func(s string) bool { return strings.Contains(s, "CBC") }) {
		t.Errorf("%+v", d)
	}
}

// accept handles connections until the test ends.
func accept(t *testing.T, handle func(net.Conn)) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var handling sync.WaitGroup
	handling.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			handling.Go(func() {
				defer conn.Close()
				handle(conn)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		handling.Wait()
	})
	return l.Addr().String()
}
