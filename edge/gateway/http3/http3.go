// Package http3 serves HTTP/3 at a UDP socket, by quic-go. It adds the bounds that the gateway has
// for TCP, and an end that lets requests end first.
//
// A QUIC client may write any address into its first packet. A connection counts for its source
// when the client has answered from there: by a token of a Retry packet, or by the end of its
// handshake. Handshakes before that are bounded in number. With that many, every further client has
// to answer a Retry first, which costs the server no memory.
//
// There is no early data (0-RTT), so no request can be replayed, and no resumption, so each
// connection is checked by the certificates of its time.
package http3

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"
	upstream "github.com/quic-go/quic-go/http3"

	"github.com/barque/barque/internal/connlimit"
)

const (
	// mostStrangers bounds the handshakes of clients whose addresses are not known to be theirs.
	mostStrangers = 128
	// uniStreams are those of a client for control and compression, and some for types to come.
	uniStreams = 8
	// Windows of flow control bound what the server keeps for one stream and one connection.
	firstStreamWindow = 256 << 10
	mostStreamWindow  = 1 << 20
	firstWindow       = 384 << 10
	mostWindow        = 1 << 20
	// goodbye is the pause between the end of the last request and that of connections. The last
	// bytes of responses arrive in it, and clients close their connections by themselves.
	goodbye = time.Second
)

// errRefused ends handshakes of clients that get no connection.
var errRefused = errors.New("no connection for this source")

// Config of a Server.
type Config struct {
	// TLS is asked at each handshake. Its protocols and resumption are set here.
	TLS *tls.Config
	// Handler has the context of Context in its requests.
	Handler http.Handler
	// Connections counts them.
	Connections *connlimit.Limiter
	// Refuse reports whether a source gets no connection; nil is none.
	Refuse func(netip.Addr) bool
	// Context is that of the requests of one connection; nil is the connection's own.
	Context func(context.Context) context.Context
	// MaxHeader bounds a header in bytes, and Streams the requests of one connection at a time.
	MaxHeader, Streams int
	// Handshake bounds a handshake, First the time until the first request after it, and Idle the
	// time without a request.
	Handshake, First, Idle time.Duration
}

// Server serves one socket, from Serve until Close.
type Server struct {
	config    Config
	socket    net.PacketConn
	transport *quic.Transport
	listener  *quic.Listener
	server    *upstream.Server
	strangers atomic.Int64
	served    chan struct{}

	mu       sync.Mutex
	requests int
	quiet    chan struct{} // closed while no request is under way
}

// Serve takes over a socket, and serves it until Close.
func Serve(socket net.PacketConn, config Config) (*Server, error) {
	s := &Server{config: config, socket: socket, served: make(chan struct{}), quiet: make(chan struct{})}
	close(s.quiet)
	s.transport = &quic.Transport{Conn: socket, VerifySourceAddress: s.suspicious, ConnContext: s.enter}
	var err error
	// Not ListenEarly: its connections have requests before the client's certificate is verified.
	s.listener, err = s.transport.Listen(upstream.ConfigureTLSConfig(forQUIC(config.TLS)), &quic.Config{
		HandshakeIdleTimeout: config.Handshake / 2, // twice this time bounds the whole handshake
		MaxIdleTimeout:       config.Idle, MaxIncomingStreams: int64(config.Streams), MaxIncomingUniStreams: uniStreams,
		InitialStreamReceiveWindow: firstStreamWindow, MaxStreamReceiveWindow: mostStreamWindow,
		InitialConnectionReceiveWindow: firstWindow, MaxConnectionReceiveWindow: mostWindow,
	})
	if err != nil {
		return nil, errors.Join(err, s.transport.Close(), socket.Close())
	}
	s.server = &upstream.Server{Handler: s, MaxHeaderBytes: config.MaxHeader, ConnContext: s.accepted}
	// Ends with Close, which closes the listener.
	go func() {
		defer close(s.served)
		_ = s.server.ServeListener(s.listener) // it ends in no other way
	}()
	return s, nil
}

// forQUIC is a configuration without resumption, and with the version that QUIC needs.
func forQUIC(config *tls.Config) *tls.Config {
	of := config.Clone()
	of.SessionTicketsDisabled = true
	of.MinVersion = tls.VersionTLS13
	if asking := of.GetConfigForClient; asking != nil {
		of.GetConfigForClient = func(info *tls.ClientHelloInfo) (*tls.Config, error) {
			other, err := asking(info)
			if other == nil || err != nil {
				return nil, err
			}
			return forQUIC(other), nil
		}
	}
	return of
}

// Close takes no more connections and no more requests. It ends when all requests have ended, or
// cuts them when ctx ends.
func (s *Server) Close(ctx context.Context) {
	_ = s.listener.Close()
	<-s.served
	gone := make(chan struct{})
	go func() { // announces the end, and waits until clients have closed their connections
		defer close(gone)
		_ = s.server.Shutdown(ctx)
	}()
	for s.wait(ctx, gone) && s.busy() { // some came while the announcement was on its way
	}
	_ = s.server.Close()
	<-gone
	_ = s.transport.Close()
	_ = s.socket.Close()
}

// wait waits until no request is under way, and then for the last bytes of responses: a connection
// that is closed drops them. It returns false when nothing is left to wait for, because all
// connections are gone or ctx has ended.
func (s *Server) wait(ctx context.Context, gone <-chan struct{}) bool {
	s.mu.Lock()
	quiet := s.quiet
	s.mu.Unlock()
	select {
	case <-quiet:
	case <-gone:
		return false
	case <-ctx.Done():
		return false
	}
	pause := time.NewTimer(goodbye)
	defer pause.Stop()
	select {
	case <-pause.C:
		return true
	case <-gone:
	case <-ctx.Done():
	}
	return false
}

func (s *Server) busy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests > 0
}

// Addr is the address of the socket.
func (s *Server) Addr() net.Addr { return s.socket.LocalAddr() }

// suspicious reports whether a client has to show first that its address is its own.
func (s *Server) suspicious(net.Addr) bool { return s.strangers.Load() >= mostStrangers }

// client is a QUIC connection. Its states:
//
//	stranger ── handshake ends ──▶ counted ──▶ closed
//	known by a token ── counted during its handshake
type client struct {
	// Conn is nil: connlimit asks for the address and closes, and reads nothing itself.
	net.Conn
	server *Server
	remote net.Addr

	mu       sync.Mutex
	stranger bool
	closed   bool
	counted  *connlimit.Conn
	quic     *quic.Conn  // nil during the handshake
	running  int         // requests
	timer    *time.Timer // ends a connection without requests
}

type clientKey struct{}

// RemoteAddr implements net.Conn.
func (c *client) RemoteAddr() net.Addr { return c.remote }

// Close implements net.Conn. A handshake that is under way is refused at its end.
func (c *client) Close() error {
	c.mu.Lock()
	c.closed = true
	conn := c.quic
	c.mu.Unlock()
	if conn == nil {
		return nil
	}
	return conn.CloseWithError(quic.ApplicationErrorCode(upstream.ErrCodeExcessiveLoad), "too many connections")
}

// enter begins a handshake.
func (s *Server) enter(ctx context.Context, info *quic.ClientInfo) (context.Context, error) {
	if s.config.Refuse != nil && s.config.Refuse(addrOf(info.RemoteAddr)) {
		return nil, errRefused
	}
	c := &client{server: s, remote: info.RemoteAddr, stranger: !info.AddrVerified}
	if c.stranger {
		s.strangers.Add(1)
	} else if !c.count() {
		c.leave()
		return nil, errRefused
	}
	context.AfterFunc(ctx, c.leave)
	return context.WithValue(ctx, clientKey{}, c), nil
}

// accepted begins the requests of a connection whose handshake has ended.
func (s *Server) accepted(ctx context.Context, conn *quic.Conn) context.Context {
	if c, ok := ctx.Value(clientKey{}).(*client); ok {
		c.mu.Lock()
		was := c.stranger
		c.stranger, c.quic = false, conn
		c.timer = time.AfterFunc(s.config.First, c.expire)
		c.mu.Unlock()
		if was {
			s.strangers.Add(-1)
		}
		if was && !c.count() || c.isClosed() {
			_ = c.Close() // has no connection to close twice
		}
		if ctx.Err() != nil { // leave has run before the count
			c.leave()
		}
	}
	if s.config.Context != nil {
		ctx = s.config.Context(ctx)
	}
	return ctx
}

func (c *client) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// count counts the connection for its source; false if there are too many.
func (c *client) count() bool {
	counted := c.server.config.Connections.Enter(c)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counted = counted
	return !c.closed
}

// leave ends the counting of a connection that has ended.
func (c *client) leave() {
	c.mu.Lock()
	was, counted := c.stranger, c.counted
	c.stranger, c.closed, c.counted = false, true, nil
	if c.timer != nil {
		c.timer.Stop()
	}
	c.mu.Unlock()
	if was {
		c.server.strangers.Add(-1)
	}
	if counted != nil {
		_ = counted.Close()
	}
}

// expire ends a connection that has had no request for long. A header that is not complete is none.
func (c *client) expire() {
	c.mu.Lock()
	conn, running := c.quic, c.running
	c.mu.Unlock()
	if running == 0 {
		_ = conn.CloseWithError(quic.ApplicationErrorCode(upstream.ErrCodeNoError), "idle")
	}
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.begin()
	defer s.end()
	if c, ok := r.Context().Value(clientKey{}).(*client); ok {
		c.begin()
		defer c.end()
	}
	s.config.Handler.ServeHTTP(w, r)
}

func (s *Server) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.requests++; s.requests == 1 {
		s.quiet = make(chan struct{})
	}
}

func (s *Server) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.requests--; s.requests == 0 {
		close(s.quiet)
	}
}

func (c *client) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running++
	c.timer.Stop()
}

func (c *client) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running--; c.running == 0 && !c.closed {
		c.timer.Reset(c.server.config.Idle)
	}
}

func addrOf(a net.Addr) netip.Addr {
	at, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.Addr{}
	}
	return at.Addr().Unmap().WithZone("")
}
