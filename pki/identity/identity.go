package identity

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/barque/barque/internal/atomicfile"
	"github.com/barque/barque/pki"
)

// Identity is a key with its current certificate, which every handshake gets from it. Upkeep renews
// it.
type Identity struct {
	name   string
	key    crypto.Signer // nil: each certificate has a key of its own
	issue  pki.Issuer
	path   string // where the certificate is kept; empty: in memory only
	now    func() time.Time
	logger *slog.Logger

	current atomic.Pointer[tls.Certificate]
}

// Config configures an identity.
type Config struct {
	Name string // for errors, logs and reports
	// Key is kept for all certificates. Without it each certificate has a new key, so that a stolen
	// key ends with its certificate; that is for identities kept in memory only.
	Key    crypto.Signer
	Issue  pki.Issuer
	Path   string // file of the certificate; empty keeps it in memory only
	Now    func() time.Time
	Logger *slog.Logger
}

// New loads the certificate from its file, or has one issued if that is not valid any more.
func New(ctx context.Context, c Config) (*Identity, error) {
	if c.Path != "" && c.Key == nil {
		return nil, fmt.Errorf("identity %s: a certificate in a file needs a key that stays", c.Name)
	}
	i := &Identity{name: c.Name, key: c.Key, issue: c.Issue, path: c.Path, now: c.Now, logger: c.Logger}
	if i.path != "" {
		switch certPEM, err := os.ReadFile(i.path); {
		case errors.Is(err, os.ErrNotExist):
		case err != nil:
			return nil, err
		default:
			// An unfit file is replaced by a new certificate, without a loss.
			if err := i.Use(certPEM); err != nil {
				i.logger.Warn("certificate on disk is not usable, asking for a new one", "identity", i.name, "file",
					i.path, "reason", err)
			}
		}
	}
	if cert := i.current.Load(); cert == nil || !i.Term().good(i.now()) {
		if err := i.Renew(ctx); err != nil && (cert == nil || i.now().After(cert.Leaf.NotAfter)) {
			return nil, err
		}
	}
	return i, nil
}

// Load loads an identity whose certificates come by Use. The certificate in the file may
// have ended.
func Load(name, path string, key crypto.Signer) (*Identity, error) {
	certPEM, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	i := &Identity{name: name, key: key, path: path}
	if err := i.Use(certPEM); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return i, nil
}

// Name is the identity's name in logs and reports.
func (i *Identity) Name() string { return i.name }

// Path is the file of the certificate; empty when it is kept in memory only.
func (i *Identity) Path() string { return i.path }

// Term returns the validity of the current certificate.
func (i *Identity) Term() Term { return TermOf(i.current.Load().Leaf) }

// Renew has a new certificate issued and uses it from now on.
func (i *Identity) Renew(ctx context.Context) error {
	key := i.key
	if key == nil {
		var err error
		if key, err = pki.GenerateKey(); err != nil {
			return fmt.Errorf("make a key for %s: %w", i.name, err)
		}
	}
	return i.RenewFor(ctx, key)
}

// RenewFor is Renew for a key of the caller's.
func (i *Identity) RenewFor(ctx context.Context, key crypto.Signer) error {
	certPEM, err := i.issue(ctx, key)
	if err != nil {
		return fmt.Errorf("get a certificate for %s: %w", i.name, err)
	}
	if err := i.use(certPEM, key); err != nil {
		return fmt.Errorf("certificate issued for %s: %w", i.name, err)
	}
	if i.path == "" {
		return nil
	}
	return atomicfile.Write(i.path, certPEM, 0o644)
}

// Use makes this certificate the current one. It does not write the file.
func (i *Identity) Use(certPEM []byte) error { return i.use(certPEM, i.key) }

func (i *Identity) use(certPEM []byte, key crypto.Signer) error {
	chain, err := pki.SplitPEM(certPEM)
	if err != nil {
		return err
	}
	leaf, err := x509.ParseCertificate(chain[0])
	if err != nil {
		return err
	}
	if !pki.SamePublicKey(key.Public(), leaf.PublicKey) {
		return errors.New("it belongs to another key")
	}
	i.current.Store(&tls.Certificate{Certificate: chain, PrivateKey: key, Leaf: leaf})
	return nil
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
