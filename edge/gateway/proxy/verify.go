package proxy

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/barque/barque/edge/gateway/model"
)

// errUnverifiable is returned where no certificate of a backend can be right.
var errUnverifiable = errors.New("the backend's certificate cannot be verified")

// Authority has the certificates of CAs in a ConfigMap.
type Authority struct{ Certificates []*x509.Certificate }

// tlsKey tells apart how backends are verified.
type tlsKey struct {
	h2, verify         bool
	hostname           string
	names, authorities string
}

// secured is a transport with the authorities that it has been made with.
type secured struct {
	authorities []*Authority
	transport   *http.Transport
}

// authorities returns the CAs for a backend; none means those of the system.
func (o *outgoing) authorities(v *model.Verify) (all []*Authority, err error) {
	if v == nil {
		return nil, nil
	}
	for _, name := range v.Authorities {
		if a := o.authority(name); a != nil {
			all = append(all, a)
		}
	}
	if v.Invalid != "" || len(v.Authorities) > 0 && len(all) == 0 {
		return nil, errUnverifiable
	}
	return all, nil
}

// tls returns the transport for TLS to backends. It is made anew when the CAs have changed.
func (o *outgoing) tls(v *model.Verify, h2 bool) (*http.Transport, error) {
	authorities, err := o.authorities(v)
	if err != nil {
		return nil, err
	}
	key := tlsKey{h2: h2}
	if v != nil {
		key.verify, key.hostname, key.names = true, v.Hostname, strings.Join(v.Names, "\n")
		for _, name := range v.Authorities {
			key.authorities += name.String() + "\n"
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if of := o.secure[key]; of != nil {
		if slices.Equal(of.authorities, authorities) {
			return of.transport, nil
		}
		// Connections that were verified by the former CAs take no more requests.
		of.transport.CloseIdleConnections()
	}
	t := o.transport()
	t.TLSClientConfig = verifying(v, authorities)
	t.Protocols = new(http.Protocols)
	t.Protocols.SetHTTP1(!h2)
	t.Protocols.SetHTTP2(true)
	o.secure[key] = &secured{authorities, t}
	return t, nil
}

// verifying is the check of a backend's certificate. A backend in TLS without a policy is spoken to
// as by ingress-nginx: nothing says which name or authority to expect.
func verifying(v *model.Verify, authorities []*Authority) *tls.Config {
	if v == nil {
		return &tls.Config{InsecureSkipVerify: true}
	}
	config := &tls.Config{ServerName: v.Hostname}
	if len(authorities) > 0 {
		config.RootCAs = x509.NewCertPool()
		for _, a := range authorities {
			for _, c := range a.Certificates {
				config.RootCAs.AddCert(c)
			}
		}
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
