package identity

import (
	"context"
	"crypto"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/barque/barque/pki"
)

func newCA(t *testing.T) *pki.Authority {
	t.Helper()
	ca, err := pki.NewAuthority("test", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func TestIdentityKeepsAGoodCertificateFromDisk(t *testing.T) {
	ca := newCA(t)
	key, err := pki.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "node.crt")
	issued := 0
	config := Config{Name: "n1", Key: key, Path: path, Now: time.Now, Logger: quiet(),
		Issue: func(ctx context.Context, k crypto.Signer) ([]byte, error) {
			issued++
			return ca.Issue(pki.Request{CommonName: "n1", Usage: pki.Client}, k.Public(), time.Now())
		}}
	for range 2 {
		if _, err := New(t.Context(), config); err != nil {
			t.Fatal(err)
		}
	}
	if issued != 1 {
		t.Fatalf("issued %d certificates; the one on disk was good", issued)
	}
	if err := os.WriteFile(path, []byte("torn"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := New(t.Context(), config); err != nil || issued != 2 {
		t.Fatalf("a torn file: issued %d in all, err %v", issued, err)
	}
}

// An identity without a fixed key has a new key with each certificate. A stolen key does not fit
// the next one.
func TestKeysAreRenewedWithTheirCertificates(t *testing.T) {
	trust := pki.TrustOf(newCA(t))
	config := Config{Name: "s1", Now: time.Now, Logger: quiet(),
		Issue: trust.Signs(func() pki.Request { return pki.Request{CommonName: "s1", Usage: pki.Server} }, time.Now)}
	i, err := New(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	before := i.Certificate()
	if err := i.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	after := i.Certificate()
	own, ok := after.PrivateKey.(crypto.Signer)
	if !ok || pki.SamePublicKey(before.Leaf.PublicKey, after.Leaf.PublicKey) ||
		!pki.SamePublicKey(own.Public(), after.Leaf.PublicKey) {
		t.Errorf("the key is the same, or not that of the certificate")
	}
	config.Path = filepath.Join(t.TempDir(), "s1.crt")
	if _, err := New(t.Context(), config); err == nil {
		t.Error("a certificate is kept in a file, and its key is not")
	}
}

func TestHandshakeWithIssuedCertificates(t *testing.T) {
	ca := newCA(t)
	holder := func(name string, usage pki.Usage, names ...string) *Identity {
		key, err := pki.GenerateKey()
		if err != nil {
			t.Fatal(err)
		}
		i, err := New(t.Context(), Config{Name: name, Key: key, Now: time.Now, Logger: quiet(),
			Issue: pki.TrustOf(ca).Signs(func() pki.Request {
				return pki.Request{CommonName: name, Usage: usage, Names: names}
			}, time.Now)})
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	server, client := holder("s1", pki.Server, "127.0.0.1"), holder("c", pki.Client)
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	result := make(chan error, 1)
	go func() {
		result <- tls.Server(a,
			&tls.Config{GetCertificate: server.GetCertificate, ClientAuth: tls.RequireAndVerifyClientCert,
				ClientCAs: ca.Pool()}).Handshake()
	}()
	if err := tls.Client(b,
		&tls.Config{ServerName: "127.0.0.1", RootCAs: ca.Pool(),
			GetClientCertificate: client.GetClientCertificate}).Handshake(); err != nil {
		t.Fatal(err)
	}
	if err := <-result; err != nil {
		t.Fatal(err)
	}
}
