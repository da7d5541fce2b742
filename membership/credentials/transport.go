package credentials

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"sync"
	"time"
)

// transport carries an agent's requests to the API, with its current certificate and CAs. The API
// server checks the certificate of each request, and a connection keeps its certificate. So after a
// renewal new requests use new connections. Running requests, watches among them, finish on the old
// ones.
type transport struct {
	ids *Agent
	// anonymous shows no certificate: the requests carry a token of another user.
	anonymous bool

	mu    sync.Mutex
	cert  *tls.Certificate
	roots *x509.CertPool
	now   *http.Transport
}

// NewTransport returns the transport of an agent.
func NewTransport(ids *Agent) http.RoundTripper { return &transport{ids: ids} }

// CallTLS returns the configuration with which an agent calls a server of its cluster at its
// address.
func (ids *Agent) CallTLS() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: ids.Trust.Pool(),
		GetClientCertificate: ids.Client.GetClientCertificate, VerifyConnection: ids.Trust.SameCluster}
}

// NewAnonymousTransport returns a transport without the agent's certificate, for requests with a
// token. It believes the same servers.
func NewAnonymousTransport(ids *Agent) http.RoundTripper {
	return &transport{ids: ids, anonymous: true}
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	return t.current().RoundTrip(r)
}

// CloseIdleConnections is called when a connection seems to lead nowhere.
func (t *transport) CloseIdleConnections() { t.current().CloseIdleConnections() }

func (t *transport) current() *http.Transport {
	t.mu.Lock()
	defer t.mu.Unlock()
	cert, roots := t.ids.Client.Certificate(), t.ids.Trust.Pool()
	if t.now != nil && cert == t.cert && roots == t.roots {
		return t.now
	}
	if t.now != nil {
		t.now.CloseIdleConnections()
	}
	t.cert, t.roots = cert, roots
	t.now = &http.Transport{
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots,
			GetClientCertificate: t.ids.Client.GetClientCertificate, VerifyConnection: t.ids.Trust.SameCluster},
		ForceAttemptHTTP2:   true,
		TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConnsPerHost: 25,
		IdleConnTimeout:     90 * time.Second,
		// The balancer cuts connections to servers that fall silent. This is for a way that is cut
		// for this connection alone.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 5 * time.Second},
	}
	if t.anonymous {
		t.now.TLSClientConfig.GetClientCertificate = nil
	}
	return t.now
}
