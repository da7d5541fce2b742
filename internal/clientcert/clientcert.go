// Package clientcert verifies the certificates that the client of a TLS connection has sent. A
// handshake verifies them at most once. A connection lasts, so each request is verified.
package clientcert

import (
	"crypto/x509"
	"errors"
	"slices"
	"time"

	"k8s.io/utils/lru"
)

// Verify verifies the first of a client's certificates. The others may be intermediates between it
// and the CAs of options.
func Verify(sent []*x509.Certificate, options x509.VerifyOptions) ([][]*x509.Certificate, error) {
	if len(sent) == 0 {
		return nil, errors.New("the client has sent no certificate")
	}
	options.Intermediates = x509.NewCertPool()
	for _, other := range sent[1:] {
		options.Intermediates.AddCert(other)
	}
	return sent[0].Verify(options)
}

// Chain is a verified chain from a certificate to CAs, without the signatures.
type Chain struct {
	by                  *x509.CertPool
	sent                []*x509.Certificate
	notBefore, notAfter time.Time // when the chain is valid
}

// NewChain verifies the signatures.
func NewChain(sent []*x509.Certificate, options x509.VerifyOptions) (*Chain, error) {
	chains, err := Verify(sent, options)
	if err != nil {
		return nil, err
	}
	c := &Chain{by: options.Roots, sent: slices.Clone(sent), notBefore: sent[0].NotBefore, notAfter: sent[0].NotAfter}
	for _, authority := range chains[0][1:] {
		if authority.NotBefore.After(c.notBefore) {
			c.notBefore = authority.NotBefore
		}
		if authority.NotAfter.Before(c.notAfter) {
			c.notAfter = authority.NotAfter
		}
	}
	return c, nil
}

// Holds reports whether the chain proves these certificates: the pool of trusted CAs is the same,
// and the whole chain is valid now. Connections with the same certificate share its pointer.
func (c *Chain) Holds(sent []*x509.Certificate, options x509.VerifyOptions) bool {
	now := options.CurrentTime
	if now.IsZero() {
		now = time.Now()
	}
	return c.by == options.Roots && slices.Equal(c.sent, sent) && !now.Before(c.notBefore) && !now.After(c.notAfter)
}

// Memory verifies the signatures of a client's certificates once.
type Memory struct {
	chains *lru.Cache // *Chain by *x509.Certificate
}

// NewMemory returns a memory of size certificates. Each takes some kilobytes.
func NewMemory(size int) *Memory { return &Memory{lru.New(size)} }

// Verify returns an error unless the CAs of options vouch for the certificates. The key usages of
// options are the same in all calls.
func (m *Memory) Verify(sent []*x509.Certificate, options x509.VerifyOptions) error {
	if len(sent) > 0 {
		if known, ok := m.chains.Get(sent[0]); ok && known.(*Chain).Holds(sent, options) {
			return nil
		}
	}
	c, err := NewChain(sent, options)
	if err != nil {
		return err
	}
	m.chains.Add(sent[0], c)
	return nil
}
