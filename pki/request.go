package pki

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"fmt"
	"time"
)

// Issuer turns a public key into a certificate (PEM, with any chain after it). A server issues by
// itself; an agent carries a signing request to a server.
type Issuer func(ctx context.Context, key crypto.Signer) ([]byte, error)

// Signs returns an Issuer that signs with the CA that issues at the time. request is called at
// every renewal, so that a certificate follows its holder's names and addresses.
func (t *Trust) Signs(request func() Request, now func() time.Time) Issuer {
	return func(_ context.Context, key crypto.Signer) ([]byte, error) {
		return t.Issue(request(), key.Public(), now())
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
