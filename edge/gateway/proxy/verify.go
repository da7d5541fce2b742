package proxy

import (
	"crypto/tls"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/barque/barque/edge/gateway/certs"
	"github.com/barque/barque/edge/gateway/model"
)

// errUnverifiable is returned where no certificate of a backend can be right.
var errUnverifiable = errors.New("the backend's certificate cannot be verified")

// tlsKey tells apart how backends are verified.
type tlsKey struct {
	h2, verify         bool
	hostname           string
	names, authorities string
	shown              types.NamespacedName
}

// secured is a transport with the authorities and the certificate that it has been made with.
type secured struct {
	authorities []*certs.Authority
	shown       *tls.Certificate
	transport   *http.Transport
	used        time.Time // by the last request that began
}

// authorities returns the CAs for a backend; none means those of the system.
func (o *outgoing) authorities(v *model.Verify) (all []*certs.Authority, err error) {
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
			of.used = time.Now()
			return of.transport, nil
		}
		// Connections of the former CAs and the former certificate take no more requests.
		of.transport.CloseIdleConnections()
	}
	o.forget()
	t := o.transport()
	t.TLSClientConfig = certs.Verifying(v, authorities)
	show(t.TLSClientConfig, certificate)
	t.Protocols = new(http.Protocols)
	t.Protocols.SetHTTP1(!h2)
	t.Protocols.SetHTTP2(true)
	o.secure[key] = &secured{authorities, certificate, t, time.Now()}
	return t, nil
}

// forget drops the transports that no request has asked for as long as a connection may be idle:
// policies change, and each has a transport of its own. Requests under way keep theirs. The caller
// holds mu.
func (o *outgoing) forget() {
	for key, of := range o.secure {
		if time.Since(of.used) > idleBackend {
			of.transport.CloseIdleConnections()
			delete(o.secure, key)
		}
	}
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
