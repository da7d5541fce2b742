package pki

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/barque/barque/internal/atomicfile"
)

// Issuer turns a public key into a certificate (PEM). A server issues from its own Authority; an
// agent carries a signing request to a server.
type Issuer func(ctx context.Context, key crypto.Signer) ([]byte, error)

// Identity is a key with the certificate of the moment. It renews the certificate when two thirds
// of its life are over, and hands out the newest one on every handshake.
type Identity struct {
	name   string
	key    crypto.Signer
	issue  Issuer
	path   string // where the certificate is kept; empty: in memory only
	now    func() time.Time
	logger *slog.Logger

	current atomic.Pointer[tls.Certificate]
}

// IdentityConfig says whose identity it is and where it comes from.
type IdentityConfig struct {
	Name   string // for errors and logs
	Key    crypto.Signer
	Issue  Issuer
	Path   string // file of the certificate; empty keeps it in memory only
	Now    func() time.Time
	Logger *slog.Logger
}

// NewIdentity loads the certificate from its file when it is still good there, and otherwise has
// one issued.
func NewIdentity(ctx context.Context, c IdentityConfig) (*Identity, error) {
	i := &Identity{name: c.Name, key: c.Key, issue: c.Issue, path: c.Path, now: c.Now, logger: c.Logger}
	if i.path != "" {
		switch certPEM, err := os.ReadFile(i.path); {
		case errors.Is(err, os.ErrNotExist):
		case err != nil:
			return nil, err
		default:
			// A file that does not fit is replaced by a new certificate: nothing is lost by that.
			if err := i.use(certPEM); err != nil {
				i.logger.Warn("certificate on disk is not usable, asking for a new one", "identity", i.name, "file", i.path, "reason", err)
			}
		}
	}
	if cert := i.current.Load(); cert == nil || i.now().After(renewAt(cert.Leaf)) {
		if err := i.renew(ctx); err != nil && (cert == nil || i.now().After(cert.Leaf.NotAfter)) {
			return nil, err
		}
	}
	return i, nil
}

// renewAt is the moment at which two thirds of a certificate's life are over.
func renewAt(cert *x509.Certificate) time.Time {
	return cert.NotAfter.Add(-cert.NotAfter.Sub(cert.NotBefore) / 3)
}

func (i *Identity) renew(ctx context.Context) error {
	certPEM, err := i.issue(ctx, i.key)
	if err != nil {
		return fmt.Errorf("get a certificate for %s: %w", i.name, err)
	}
	if err := i.use(certPEM); err != nil {
		return fmt.Errorf("certificate issued for %s: %w", i.name, err)
	}
	if i.path == "" {
		return nil
	}
	return atomicfile.Write(i.path, certPEM, 0o644)
}

func (i *Identity) use(certPEM []byte) error {
	der, err := decodePEM(certPEM, "CERTIFICATE")
	if err != nil {
		return err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return err
	}
	if !samePublicKey(i.key.Public(), leaf.PublicKey) {
		return errors.New("it belongs to another key")
	}
	i.current.Store(&tls.Certificate{Certificate: [][]byte{der}, PrivateKey: i.key, Leaf: leaf})
	return nil
}

// Run renews the certificate in time until the context ends. A failed renewal is repeated, more
// and more often as the end comes nearer.
func (i *Identity) Run(ctx context.Context) error {
	for {
		cert := i.current.Load().Leaf
		wait := renewAt(cert).Sub(i.now())
		if wait <= 0 {
			if err := i.renew(ctx); err == nil {
				i.logger.Info("certificate renewed", "identity", i.name, "notAfter", i.current.Load().Leaf.NotAfter)
				continue
			} else if ctx.Err() == nil {
				left := cert.NotAfter.Sub(i.now())
				wait = min(max(left/20, 10*time.Second), time.Hour)
				i.logger.Error("certificate could not be renewed", "identity", i.name, "notAfter", cert.NotAfter, "retryIn", wait, "err", err)
			}
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
	}
}

// Certificate returns the certificate of the moment.
func (i *Identity) Certificate() *tls.Certificate { return i.current.Load() }

// GetCertificate is for tls.Config.GetCertificate.
func (i *Identity) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return i.current.Load(), nil
}

// GetClientCertificate is for tls.Config.GetClientCertificate.
func (i *Identity) GetClientCertificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	return i.current.Load(), nil
}

// Issuer returns an Issuer that signs with this Authority. request is asked at every renewal, so
// that a certificate follows its holder's names and addresses.
func (a *Authority) Issuer(request func() Request, now func() time.Time) Issuer {
	return func(_ context.Context, key crypto.Signer) ([]byte, error) {
		return a.Issue(request(), key.Public(), now())
	}
}

// SigningRequest makes the PEM signing request that proves the possession of the key.
func SigningRequest(key crypto.Signer) ([]byte, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, fmt.Errorf("make a signing request: %w", err)
	}
	return encodePEM("CERTIFICATE REQUEST", der), nil
}
