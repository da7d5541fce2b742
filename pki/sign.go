package pki

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"slices"
	"time"
)

// onRequest marks the certificates of Sign, in the arc of OIDs that needs no registration (ITU-T
// X.667). Joining issues certificates with the same names and without the mark.
var onRequest = asn1.ObjectIdentifier{2, 25, 1590486219}

// SignedOnRequest reports whether a certificate comes from Sign. Its holder was approved through
// the API, and has not joined the cluster with a token.
func SignedOnRequest(cert *x509.Certificate) bool {
	return slices.ContainsFunc(cert.Extensions, func(e pkix.Extension) bool { return e.Id.Equal(onRequest) })
}

// Sign signs a certificate for an approved public key by a template. The serial number is new; the
// certificate ends with the CA's at the latest. A template for a CA is refused. So is a template
// whose certificate would have ended already, because the CA has. The certificate has the mark that
// SignedOnRequest looks for. The result is PEM.
func (a *Authority) Sign(template *x509.Certificate, public crypto.PublicKey, now time.Time) ([]byte, error) {
	if a.key == nil {
		return nil, errNoKey
	}
	if template.IsCA {
		return nil, errors.New("the cluster's CA signs no other CAs on request")
	}
	serial, err := serialNumber()
	if err != nil {
		return nil, err
	}
	cert := *template
	cert.SerialNumber, cert.BasicConstraintsValid = serial, true
	cert.ExtraExtensions = append(slices.Clone(cert.ExtraExtensions),
		pkix.Extension{Id: onRequest, Value: asn1.NullBytes})
	cert.NotBefore, cert.NotAfter = a.since(cert.NotBefore, now), earlier(cert.NotAfter, a.cert.NotAfter)
	if !now.Before(cert.NotAfter) || !cert.NotBefore.Before(cert.NotAfter) {
		return nil, fmt.Errorf("a certificate for %q would have ended at %s; the cluster's CA ends at %s",
			cert.Subject.CommonName, cert.NotAfter.UTC().Format(time.RFC3339),
			a.cert.NotAfter.UTC().Format(time.RFC3339))
	}
	der, err := x509.CreateCertificate(rand.Reader, &cert, a.cert, public, a.key)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate of %q: %w", cert.Subject.CommonName, err)
	}
	return encodePEM("CERTIFICATE", der), nil
}

// Sign is Authority.Sign by the CA that issues, with the bridges after the certificate.
func (t *Trust) Sign(template *x509.Certificate, public crypto.PublicKey, now time.Time) ([]byte, error) {
	is := t.current()
	own, err := ownExtensions(t.dating(), "", is.bundle.Origin)
	if err != nil {
		return nil, err
	}
	cert := *template
	cert.ExtraExtensions = append(slices.Clone(cert.ExtraExtensions), own...)
	out, err := is.clients.cas[0].Sign(&cert, public, now)
	if err != nil {
		return nil, err
	}
	if err := is.clients.cas[0].checkIssued(out); err != nil {
		return nil, err
	}
	return append(out, is.bridges...), nil
}
