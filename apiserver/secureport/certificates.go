package secureport

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"slices"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
)

// servingCertificate shows a provider of certificates to the generic server, which polls it.
type servingCertificate struct {
	get     func() (*tls.Certificate, error)
	renewed func() <-chan struct{} // nil: no notice of renewals
	logger  *slog.Logger

	mu        sync.Mutex
	cert, key []byte // the last valid pair
	listeners []dynamiccertificates.Listener
}

func newServingCertificate(
	get func() (*tls.Certificate, error), renewed func() <-chan struct{}, logger *slog.Logger,
) (*servingCertificate, error) {
	s := &servingCertificate{get: get, renewed: renewed, logger: logger}
	var err error
	s.cert, s.key, err = s.load()
	return s, err
}

func (s *servingCertificate) load() (cert, key []byte, err error) {
	c, err := s.get()
	if err != nil {
		return nil, nil, fmt.Errorf("serving certificate: %w", err)
	}
	var chain bytes.Buffer
	for _, der := range c.Certificate {
		if err := pem.Encode(&chain, &pem.Block{Type: "CERTIFICATE", Bytes: der}); err != nil {
			return nil, nil, err
		}
	}
	der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		return nil, nil, fmt.Errorf("serving key: %w", err)
	}
	return chain.Bytes(), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// Name implements dynamiccertificates.CertKeyContentProvider.
func (s *servingCertificate) Name() string { return "serving-certificate" }

// AddListener implements dynamiccertificates.Notifier.
func (s *servingCertificate) AddListener(l dynamiccertificates.Listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listeners = append(s.listeners, l)
}

// RunOnce implements dynamiccertificates.ControllerRunner.
func (s *servingCertificate) RunOnce(context.Context) error { return nil }

// Run implements dynamiccertificates.ControllerRunner: the generic server runs it, and stops it
// when it ends. It notifies the server, which otherwise checks every minute, of a new certificate.
// Client CAs are read again then, too.
func (s *servingCertificate) Run(ctx context.Context, _ int) {
	for {
		var renewed <-chan struct{}
		if s.renewed != nil {
			renewed = s.renewed()
		}
		s.mu.Lock()
		listeners := s.listeners
		s.mu.Unlock()
		for _, l := range listeners { // also at the start: there may have been a change before
			l.Enqueue()
		}
		select {
		case <-ctx.Done():
			return
		case <-renewed:
		}
	}
}

// CurrentCertKeyContent implements dynamiccertificates.CertKeyContentProvider. When the provider
// fails, the last certificate stays in use.
func (s *servingCertificate) CurrentCertKeyContent() (cert, key []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	cert, key, err := s.load()
	if err != nil {
		s.logger.Error("keeping the old serving certificate", "err", err)
		return s.cert, s.key
	}
	s.cert, s.key = cert, key
	return cert, key
}

// clientCA shows a provider of a CA bundle to the generic server and to the authenticator.
type clientCA struct {
	get    func() ([]byte, error)
	logger *slog.Logger

	mu      sync.Mutex
	bundle  []byte
	options x509.VerifyOptions
}

func newClientCA(get func() ([]byte, error), logger *slog.Logger) (*clientCA, error) {
	c := &clientCA{get: get, logger: logger}
	return c, c.load()
}

// load reads the bundle; the caller holds mu, or is the constructor.
func (c *clientCA) load() error {
	bundle, err := c.get()
	if err != nil {
		return fmt.Errorf("client CA: %w", err)
	}
	if bytes.Equal(bundle, c.bundle) {
		return nil
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(bundle) {
		return fmt.Errorf("client CA: the bundle holds no certificate")
	}
	c.bundle = bundle
	c.options = x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	return nil
}

// Name implements dynamiccertificates.CAContentProvider.
func (c *clientCA) Name() string { return "client-ca" }

// AddListener implements dynamiccertificates.Notifier. It notifies no listener: the generic server
// reads the CAs whenever the serving certificate changes.
func (c *clientCA) AddListener(dynamiccertificates.Listener) {}

// CurrentCABundleContent implements dynamiccertificates.CAContentProvider.
func (c *clientCA) CurrentCABundleContent() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.load(); err != nil {
		c.logger.Error("keeping the old client CA", "err", err)
	}
	return c.bundle
}

// VerifyOptions implements dynamiccertificates.CAContentProvider. It is called for each certificate
// that is verified: a CA that has come or gone counts at once.
func (c *clientCA) VerifyOptions() (x509.VerifyOptions, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.load(); err != nil {
		c.logger.Error("keeping the old client CA", "err", err)
	}
	return c.options, true
}

// shownCAs are the authorities that the port names to clients, which choose a certificate by them.
type shownCAs struct {
	*clientCA
	more func() []byte
}

// CurrentCABundleContent implements dynamiccertificates.CAContentProvider.
func (s shownCAs) CurrentCABundleContent() []byte {
	return slices.Concat(s.clientCA.CurrentCABundleContent(), s.more())
}

// selfSigned makes a certificate for the connection of this process to itself. It lives as long as
// the process, which is never started for longer than ten years.
func selfSigned(host string, now time.Time) (cert, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 126))
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: host},
		DNSNames:              []string{host},
		NotBefore:             now.Add(-time.Hour),
		NotAfter:              now.AddDate(10, 0, 0),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		return nil, nil, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), nil
}
