package storetest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/raftstore/transport"
)

// Authority signs certificates for tests.
type Authority struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority returns an authority with a key of its own.
func NewAuthority(t testing.TB) *Authority {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &Authority{t, cert, key}
}

// Pool returns the authority as the roots of a Mux.
func (a *Authority) Pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

// Issue returns a certificate for a member of the organization.
func (a *Authority) Issue(organization string) *tls.Certificate {
	return a.IssueUntil(organization, time.Now().Add(time.Hour))
}

// IssueUntil is Issue with a time at which the certificate expires.
func (a *Authority) IssueUntil(organization string, expires time.Time) *tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "s", Organization: []string{organization}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: expires,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// Mux returns a Mux on a port of the loopback interface, with its certificate and its roots. A
// handshake may take as long as a busy machine likes.
func Mux(t testing.TB, cert func() *tls.Certificate, roots func() *x509.CertPool) *transport.Mux {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m, err := transport.NewMux(
		transport.Config{Listener: l, Certificate: cert, Roots: roots, HandshakeTimeout: await.Hang})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// ServerMux returns a Mux of a server of the authority's cluster.
func (a *Authority) ServerMux() *transport.Mux {
	cert := a.Issue(transport.ServerOrganization)
	return Mux(a.t, func() *tls.Certificate { return cert }, a.Pool)
}
