// Package certs verifies the certificates of backends and of clients by CAs from the cluster.
package certs

import (
	"crypto/tls"
	"crypto/x509"
	"net/url"
	"slices"
	"strings"

	"github.com/barque/barque/edge/gateway/model"
)

// Authority has the certificates of CAs in a ConfigMap.
type Authority struct{ Certificates []*x509.Certificate }

// Pool returns the certificates of CAs as crypto/x509 wants them.
func Pool(all []*Authority) *x509.CertPool {
	pool := x509.NewCertPool()
	for _, a := range all {
		for _, c := range a.Certificates {
			pool.AddCert(c)
		}
	}
	return pool
}

// Vouch reports whether CAs vouch for the certificate of a client.
func Vouch(chain []*x509.Certificate, by []*Authority) bool {
	opts := x509.VerifyOptions{Roots: Pool(by), Intermediates: x509.NewCertPool(),
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	for _, c := range chain[1:] {
		opts.Intermediates.AddCert(c)
	}
	_, err := chain[0].Verify(opts)
	return err == nil
}

// Verifying is the check of a backend's certificate. A backend in TLS without a policy is spoken to
// as by ingress-nginx: nothing says which name or authority to expect.
func Verifying(v *model.Verify, authorities []*Authority) *tls.Config {
	if v == nil {
		return &tls.Config{InsecureSkipVerify: true}
	}
	config := &tls.Config{ServerName: v.Hostname}
	if len(authorities) > 0 {
		config.RootCAs = Pool(authorities)
	}
	if len(v.Names) == 0 {
		return config
	}
	// Other names than the one of the greeting are accepted, so the chain is verified here.
	config.InsecureSkipVerify = true
	config.VerifyConnection = func(state tls.ConnectionState) error {
		opts := x509.VerifyOptions{Roots: config.RootCAs, Intermediates: x509.NewCertPool()}
		for _, c := range state.PeerCertificates[1:] {
			opts.Intermediates.AddCert(c)
		}
		_, err := state.PeerCertificates[0].Verify(opts)
		if err == nil {
			if err = oneOf(state.PeerCertificates[0], v.Names); err == nil {
				return nil
			}
		}
		return &tls.CertificateVerificationError{UnverifiedCertificates: state.PeerCertificates, Err: err}
	}
	return config
}

// oneOf checks that a certificate has one of several names.
func oneOf(c *x509.Certificate, names []string) (err error) {
	for _, name := range names {
		if err = named509(c, name); err == nil {
			return nil
		}
	}
	return err
}

// named509 checks that a certificate has a DNS name or a URI. A name behind "*." is one in the
// certificate, or stands for its first label.
func named509(c *x509.Certificate, name string) error {
	if slices.ContainsFunc(c.URIs, func(u *url.URL) bool { return u.String() == name }) {
		return nil
	}
	parent, star := strings.CutPrefix(name, "*.")
	if !star {
		return c.VerifyHostname(name)
	}
	for _, of := range c.DNSNames {
		if _, rest, ok := strings.Cut(strings.ToLower(of), "."); ok && rest == parent {
			return nil
		}
	}
	return x509.HostnameError{Certificate: c, Host: name}
}
