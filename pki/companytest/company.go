// Package companytest has a company's CAs, for tests of clusters that have one of them.
package companytest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// CA is one of the company's, with its key.
type CA struct {
	t     testing.TB
	Cert  *x509.Certificate
	Key   crypto.Signer
	above *CA // nil above the root
}

// NewRootOf returns a root with a key of the curve.
func NewRootOf(t testing.TB, curve elliptic.Curve) *CA {
	t.Helper()
	return (*CA)(nil).make(t, "Example Root", newKey(t, curve), nil)
}

// NewRoot returns the root of a company.
func NewRoot(t testing.TB) *CA { return NewRootOf(t, elliptic.P256()) }

// Intermediate returns a CA that this one has signed. change, which may be nil, changes its
// certificate before that.
func (c *CA) Intermediate(name string, change func(*x509.Certificate)) *CA {
	c.t.Helper()
	return c.make(c.t, name, newKey(c.t, elliptic.P256()), change)
}

func (c *CA) make(t testing.TB, name string, own crypto.Signer, change func(*x509.Certificate)) *CA {
	t.Helper()
	now := time.Now()
	cert := &x509.Certificate{Subject: pkix.Name{Organization: []string{"Example"}, CommonName: name},
		NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(5, 0, 0),
		IsCA: true, BasicConstraintsValid: true, MaxPathLen: -1, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign}
	if change != nil {
		change(cert)
	}
	out := &CA{t: t, Key: own, above: c}
	by := c
	if c == nil {
		by = &CA{Cert: cert, Key: out.Key}
	}
	out.Cert = by.sign(t, cert, out.Key.Public())
	return out
}

func newKey(t testing.TB, curve elliptic.Curve) crypto.Signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (c *CA) sign(t testing.TB, cert *x509.Certificate, public crypto.PublicKey) *x509.Certificate {
	t.Helper()
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	cert.SerialNumber = serial
	der, err := x509.CreateCertificate(rand.Reader, cert, c.Cert, public, c.Key)
	if err != nil {
		t.Fatal(err)
	}
	out, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Leaf returns a certificate for both ends of a connection, with those of the given CAs sent along.
func (c *CA) Leaf(name string, groups, names []string, along ...*x509.Certificate) tls.Certificate {
	c.t.Helper()
	key := newKey(c.t, elliptic.P256())
	cert := c.sign(c.t, &x509.Certificate{Subject: pkix.Name{CommonName: name, Organization: groups}, DNSNames: names,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}}, key.Public())
	out := tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}
	for _, other := range along {
		out.Certificate = append(out.Certificate, other.Raw)
	}
	return out
}

// Chain returns the certificates from this CA to the root, PEM.
func (c *CA) Chain() (out []byte) {
	for at := c; at != nil; at = at.above {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: at.Cert.Raw})...)
	}
	return out
}

// KeyPEM returns the key of this CA.
func (c *CA) KeyPEM() []byte {
	c.t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(c.Key)
	if err != nil {
		c.t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// Files writes the chain and the key to files of a directory of the test's.
func (c *CA) Files() (chainFile, keyFile string) {
	c.t.Helper()
	dir := c.t.TempDir()
	chainFile, keyFile = filepath.Join(dir, "chain.pem"), filepath.Join(dir, "ca.key")
	if err := os.WriteFile(chainFile, c.Chain(), 0o644); err != nil {
		c.t.Fatal(err)
	}
	if err := os.WriteFile(keyFile, c.KeyPEM(), 0o600); err != nil {
		c.t.Fatal(err)
	}
	return chainFile, keyFile
}
