package evidence

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// authority issues one certificate of a new CA.
func authority(t *testing.T, name string) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	caKey, key := newKey(t), newKey(t)
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, SubjectKeyId: []byte("ca of " + name)}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
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
		d := knock(t.Context(), serve(t, c), "/data", roots)
		if d.Unreached != "" || !d.Verified || d.Subject != "system:node:n1" || d.Issuer == "" || !d.AsksForCertificate || d.DemandsIt || d.Plain || d.Anonymous != 401 {
			t.Errorf("%+v", d)
		}
		if !slices.ContainsFunc(d.Weak, func(s string) bool { return strings.Contains(s, "CBC") }) {
			t.Errorf("Go's own suites have CBC: %v", d.Weak)
		}
	})
	t.Run("everything is open", func(t *testing.T) {
		d := knock(t.Context(), serve(t, base()), "/", others)
		if d.Verified || d.AsksForCertificate || d.Anonymous != 200 {
			t.Errorf("%+v", d)
		}
	})
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		t.Run("a certificate is demanded, "+tls.VersionName(version), func(t *testing.T) {
			c := base()
			c.MinVersion, c.MaxVersion, c.ClientAuth = version, version, tls.RequireAndVerifyClientCert
			d := knock(t.Context(), serve(t, c), "", roots)
			if !d.AsksForCertificate || !d.DemandsIt || d.Subject == "" || d.Unreached != "" {
				t.Errorf("%+v", d)
			}
		})
	}
	t.Run("strong", func(t *testing.T) {
		c := base()
		c.MinVersion, c.CipherSuites = tls.VersionTLS12, []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256}
		if d := knock(t.Context(), serve(t, c), "", roots); len(d.Weak) > 0 {
			t.Errorf("%v", d.Weak)
		}
	})
	t.Run("an old version", func(t *testing.T) {
		c := base()
		c.MinVersion = tls.VersionTLS10
		if d := knock(t.Context(), serve(t, c), "", roots); !slices.Contains(d.Weak, "TLS 1.1") {
			t.Errorf("%v", d.Weak)
		}
	})
	t.Run("plain", func(t *testing.T) {
		server := httptest.NewServer(http.NotFoundHandler())
		defer server.Close()
		if d := knock(t.Context(), server.Listener.Addr().String(), "", roots); !d.Plain || d.Unreached != "" {
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
		if !open(t.Context(), "127.0.0.1", n) {
			t.Error("an open port is closed")
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if d := knock(t.Context(), l.Addr().String(), "", roots); d.Unreached == "" {
			t.Errorf("%+v", d)
		}
		if open(t.Context(), "127.0.0.1", n) {
			t.Error("a closed port is open")
		}
	})
}
