package proxy

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

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
	shown              types.NamespacedName
}

// secured is a transport with the authorities and the certificate that it has been made with.
type secured struct {
	authorities []*Authority
	shown       *tls.Certificate
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

// certificate returns the certificate that backends are shown. One that is not there is none: a
// backend that wants it refuses the connection.
func (o *outgoing) certificate(shown types.NamespacedName) *tls.Certificate {
	if shown.Name == "" {
		return nil
	}
	return o.shows(shown)
}

// tls returns the transport for TLS to backends. It is made anew when the CAs or the shown
// certificate have changed.
func (o *outgoing) tls(v *model.Verify, shown types.NamespacedName, h2 bool) (*http.Transport, error) {
	authorities, err := o.authorities(v)
	if err != nil {
		return nil, err
	}
	certificate := o.certificate(shown)
	key := tlsKey{h2: h2, shown: shown}
	if v != nil {
		key.verify, key.hostname, key.names = true, v.Hostname, strings.Join(v.Names, "\n")
		for _, name := range v.Authorities {
			key.authorities += name.String() + "\n"
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if of := o.secure[key]; of != nil {
		if of.shown == certificate && slices.Equal(of.authorities, authorities) {
			return of.transport, nil
		}
		// Connections of the former CAs and the former certificate take no more requests.
		of.transport.CloseIdleConnections()
	}
	t := o.transport()
	t.TLSClientConfig = verifying(v, authorities)
	show(t.TLSClientConfig, certificate)
	t.Protocols = new(http.Protocols)
	t.Protocols.SetHTTP1(!h2)
	t.Protocols.SetHTTP2(true)
	o.secure[key] = &secured{authorities, certificate, t}
	return t, nil
}

// show shows a certificate to each server that asks for one, also where the server names other CAs:
// its refusal says more than its answer to somebody unknown.
func show(config *tls.Config, certificate *tls.Certificate) {
	if certificate != nil {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return certificate, nil
		}
	}
}

// verifying is the check of a backend's certificate. A backend in TLS without a policy is spoken to
// as by ingress-nginx: nothing says which name or authority to expect.
func verifying(v *model.Verify, authorities []*Authority) *tls.Config {
	if v == nil {
		return &tls.Config{InsecureSkipVerify: true}
	}
	config := &tls.Config{ServerName: v.Hostname}
	if len(authorities) > 0 {
		config.RootCAs = poolOf(authorities)
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
