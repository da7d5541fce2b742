// Package secureport is the API's port: TLS with certificates that change, the limits for clients
// without credentials, and the end of its connections.
//
// The generic server has an HTTPS server of its own, which can neither bound strangers nor their
// log lines. So it gets a listener that never has a connection: a Port serves while the generic
// server accepts, and drains when it closes the listener.
package secureport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"

	"github.com/barque/barque/internal/connlimit"
	"github.com/barque/barque/internal/httpserver"
	"github.com/barque/barque/internal/tlsoptions"
)

// Config of a Port. Only TLS, Limits, HTTP2Streams, Renewed, OwnProxyCA, ProxyCA and the hooks are
// optional.
type Config struct {
	Listener net.Listener // without TLS
	// Certificate gives the serving certificate, and ClientCA the PEM bundle of the authorities for
	// client certificates. Renewed returns a channel that is closed when either of them changes.
	Certificate func() (*tls.Certificate, error)
	ClientCA    func() ([]byte, error)
	// OwnProxyCA gives the authorities for the API servers' certificate that names its users in
	// headers; nil uses ClientCA.
	OwnProxyCA func() ([]byte, error)
	// ProxyCA returns further authorities, in PEM, for certificates that name no user. The port
	// lists them among the acceptable CAs, too.
	ProxyCA func() []byte
	Renewed func() <-chan struct{}
	// Handler returns the handler. It is called when the port opens.
	Handler func() http.Handler
	// Opens is called before the port accepts connections, Closes when it stops to.
	Opens, Closes func()
	// Patience bounds how long connections in use may stay after that.
	Patience time.Duration

	TLS          tlsoptions.Options
	Limits       connlimit.Limits
	HTTP2Streams int // of one connection; 0 means DefaultHTTP2Streams
	Now          func() time.Time
	Logger       *slog.Logger
}

// DefaultHTTP2Streams is the number of streams that a client may have open on a connection, as in
// kube-apiserver.
const DefaultHTTP2Streams = 100

const (
	// headerTimeout and idleTimeout are kube-apiserver's: a client's own idle time is 90 s.
	headerTimeout = 32 * time.Second
	idleTimeout   = 90 * time.Second
	// streamBuffer is the room for the body of a request of HTTP/2. Nearly all objects are smaller.
	streamBuffer = 256 << 10
)

// Port is the API's port. It implements net.Listener for the generic server.
type Port struct {
	config     Config
	cert       *servingCertificate
	ca         *clientCA
	ownProxy   *clientCA
	sni        dynamiccertificates.SNICertKeyContentProvider
	loopbackCA []byte

	mu      sync.Mutex
	server  *httpserver.Server // nil: the port is not open
	closed  bool
	drained chan struct{} // closed after Close, when the connections have ended or Patience is over
}

// New returns a Port that is not open.
func New(c Config) (*Port, error) {
	if c.HTTP2Streams == 0 {
		c.HTTP2Streams = DefaultHTTP2Streams
	}
	p := &Port{config: c, drained: make(chan struct{})}
	var err error
	if p.cert, err = newServingCertificate(c.Certificate, c.Renewed, c.Logger); err != nil {
		return nil, err
	}
	if p.ca, err = newClientCA(c.ClientCA, c.Logger); err != nil {
		return nil, err
	}
	if p.ownProxy = p.ca; c.OwnProxyCA != nil {
		if p.ownProxy, err = newClientCA(c.OwnProxyCA, c.Logger); err != nil {
			return nil, err
		}
	}
	cert, key, err := selfSigned(genericapiserver.LoopbackClientServerNameOverride, c.Now())
	if err != nil {
		return nil, fmt.Errorf("loopback certificate: %w", err)
	}
	p.loopbackCA = cert
	if p.sni, err = dynamiccertificates.NewStaticSNICertKeyContent("loopback", cert, key,
		genericapiserver.LoopbackClientServerNameOverride); err != nil {
		return nil, fmt.Errorf("loopback certificate: %w", err)
	}
	return p, nil
}

// ForGeneric is the generic server's configuration. Its own server never gets a connection.
func (p *Port) ForGeneric() *genericapiserver.SecureServingInfo {
	return &genericapiserver.SecureServingInfo{Listener: p}
}

// ClientCA gives the authorities for client certificates.
func (p *Port) ClientCA() dynamiccertificates.CAContentProvider { return p.ca }

// OwnProxyCA gives the authorities for the API servers' certificate that names its users in
// headers.
func (p *Port) OwnProxyCA() dynamiccertificates.CAContentProvider { return p.ownProxy }

// LoopbackCA is the certificate that the port shows to LoopbackClientServerNameOverride, in PEM.
func (p *Port) LoopbackCA() []byte { return p.loopbackCA }

// Accept implements net.Listener: it serves until Close.
func (p *Port) Accept() (net.Conn, error) {
	ctx, stop := context.WithCancel(context.Background())
	var following sync.WaitGroup // certificates
	defer following.Wait()
	defer stop()
	server := httpserver.New(httpserver.Config{
		Listener: p.config.Listener, Handler: p.config.Handler(), TLS: p.tls(ctx, &following), Limits: p.config.Limits,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: p.config.HTTP2Streams, MaxReadFrameSize: streamBuffer,
			MaxReceiveBufferPerStream:     streamBuffer,
			MaxReceiveBufferPerConnection: streamBuffer * p.config.HTTP2Streams,
		},
		HeaderTimeout: headerTimeout, IdleTimeout: idleTimeout,
		HandshakeFailed: metrics.TLSHandshakeErrors.Inc, Logger: p.config.Logger,
	})
	if !p.open(server) {
		return nil, net.ErrClosed
	}
	if p.config.Opens != nil {
		p.config.Opens()
	}
	err := server.Serve()
	if errors.Is(err, http.ErrServerClosed) {
		err = net.ErrClosed
	}
	return nil, err
}

func (p *Port) open(server *httpserver.Server) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.server = server
	return true
}

// tls returns the configuration, which follows the certificates until ctx ends.
func (p *Port) tls(ctx context.Context, following *sync.WaitGroup) *tls.Config {
	base := &tls.Config{
		NextProtos: []string{"h2", "http/1.1"},
		ClientAuth: tls.RequestClientCert, // the authenticator verifies: there are other credentials
	}
	p.config.TLS.Apply(base)
	controller := dynamiccertificates.NewDynamicServingCertificateController(base, shownCAs{p.ca, p.moreCAs}, p.cert,
		[]dynamiccertificates.SNICertKeyContentProvider{p.sni}, nil)
	p.cert.AddListener(controller)
	if err := controller.RunOnce(); err != nil {
		p.config.Logger.Error("cannot use the serving certificate yet", "err", err)
	}
	following.Go(func() { p.cert.Run(ctx, 1) })            // ends with ctx
	following.Go(func() { controller.Run(1, ctx.Done()) }) // ends with ctx
	base.GetConfigForClient = controller.GetConfigForClient
	return base
}

// moreCAs are the authorities beside the clients'.
func (p *Port) moreCAs() []byte {
	var more []byte
	if p.ownProxy != p.ca {
		more = p.ownProxy.CurrentCABundleContent()
	}
	if p.config.ProxyCA != nil {
		more = slices.Concat(more, p.config.ProxyCA())
	}
	return more
}

// Close implements net.Listener: the port stops to accept, and drains.
func (p *Port) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	if p.config.Closes != nil {
		p.config.Closes()
	}
	if p.server == nil {
		close(p.drained)
		return p.config.Listener.Close()
	}
	go func() { // ends after Patience
		defer close(p.drained)
		ctx, cancel := context.WithTimeout(context.Background(), p.config.Patience)
		defer cancel()
		if err := p.server.Shutdown(ctx); err != nil {
			p.config.Logger.Debug("connections are left, which end with the process", "err", err)
		}
	}()
	return nil
}

// Addr implements net.Listener.
func (p *Port) Addr() net.Addr { return p.config.Listener.Addr() }

// Drain waits until the connections have ended, if Close was called.
func (p *Port) Drain() {
	p.mu.Lock()
	closed := p.closed
	p.mu.Unlock()
	if closed {
		<-p.drained
	}
}

// Authenticator returns an authenticator that lifts the limits for connections of known clients.
// They count again when the client's certificate is refused, as a revoked one: a connection has one
// certificate. Without a further request the connection ends by idleTimeout. A connection whose
// requests have many users stays as it is when one of them is refused: shared reports which.
func Authenticator(next authenticator.Request, shared func(*http.Request) bool) authenticator.Request {
	return authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		response, ok, err := next.AuthenticateRequest(r)
		if ok && err == nil && response.User.GetName() != user.Anonymous {
			httpserver.Authenticate(r.Context())
		} else if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 && !shared(r) {
			httpserver.Estrange(r.Context())
		}
		return response, ok, err
	})
}
