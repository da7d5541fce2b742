package transport

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Config of a Mux. Listener, Certificate and Roots are needed.
type Config struct {
	// Listener accepts the raw connections. The Mux closes it.
	Listener net.Listener
	// Advertise is the address at which the other servers reach this one. Default: the
	// listener's.
	Advertise string
	// Certificate returns this server's certificate, and Roots the CAs that its peers'
	// certificates must come from. Both are asked at each connection, so that certificates and
	// CAs can be replaced while the server runs.
	Certificate func() *tls.Certificate
	Roots       func() *x509.CertPool
	// Barred returns the reason why the holder of a genuine certificate may not speak here, or nil:
	// it was removed, or is no member. A reason with ErrStranger lets it ask to become one. It is
	// asked at each connection and call; nil bars none. others are the peer's further certificates.
	Barred func(leaf *x509.Certificate, others []*x509.Certificate) error
	// HandshakeTimeout bounds how long a peer may take until it is authenticated. Default: 5 s.
	HandshakeTimeout time.Duration
	// MaxHandshakes bounds the peers in authentication at once, and MaxHandshakesFrom those of one
	// address (of IPv6: one /64). Beyond it, the oldest of the address with the most is closed, so
	// that others need not wait. Defaults: 128, and half of MaxHandshakes.
	MaxHandshakes     int
	MaxHandshakesFrom int
	// MaxConns bounds the connections of one authenticated peer, identified by its certificate;
	// more are closed at once. A healthy server has about ten. Default: 128.
	MaxConns int
	Logger   *slog.Logger
}

// Mux is a Stream over TLS.
type Mux struct {
	cfg     Config
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	running sync.WaitGroup
	// slots bound the goroutines that authenticate peers. There are more than handshakes: a
	// connection closed to make room ends only when it gets a CPU.
	slots      chan struct{}
	handshakes *handshakes
	perPeer    *perPeer
	hosts      hosts
	checks     atomic.Uint64 // counts the calls of Forget and Recheck
	complaints *complaints

	mu     sync.Mutex
	protos map[string]*queue
	closed bool
}

// NewMux returns a Mux that accepts connections until it is closed.
func NewMux(cfg Config) (*Mux, error) {
	if cfg.Listener == nil || cfg.Certificate == nil || cfg.Roots == nil {
		return nil, errors.New("transport: Listener, Certificate and Roots are needed")
	}
	if cfg.Advertise == "" {
		cfg.Advertise = cfg.Listener.Addr().String()
	}
	if cfg.HandshakeTimeout <= 0 {
		cfg.HandshakeTimeout = 5 * time.Second
	}
	if cfg.MaxHandshakes <= 0 {
		cfg.MaxHandshakes = 128
	}
	if cfg.MaxHandshakesFrom <= 0 {
		cfg.MaxHandshakesFrom = max(cfg.MaxHandshakes/2, 1)
	}
	if cfg.MaxConns <= 0 {
		cfg.MaxConns = 128
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	m := &Mux{
		cfg: cfg, protos: make(map[string]*queue), slots: make(chan struct{}, 2*cfg.MaxHandshakes),
		handshakes: newHandshakes(cfg.MaxHandshakes, cfg.MaxHandshakesFrom), perPeer: newPerPeer(cfg.MaxConns),
		complaints: newComplaints(cfg.Logger),
	}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	m.running.Go(m.accept) // ends when Close closes the listener; Close waits for it
	return m, nil
}

// Addr returns the address at which peers reach this server.
func (m *Mux) Addr() string { return m.cfg.Advertise }

// Listener returns the connections for a protocol.
func (m *Mux) Listener(proto string) net.Listener {
	m.mu.Lock()
	defer m.mu.Unlock()
	q, ok := m.protos[proto]
	if !ok {
		q = newQueue(m.cfg.Advertise)
		m.protos[proto] = q
		if m.closed {
			q.Close()
		}
	}
	return q
}

// Close stops to accept and closes all listeners.
func (m *Mux) Close() error {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil
	}
	m.closed = true
	m.cancel()
	err := m.cfg.Listener.Close()
	m.handshakes.close()
	for _, q := range m.protos {
		q.Close()
	}
	m.mu.Unlock()
	m.running.Wait()
	return err
}

func (m *Mux) accept() {
	for {
		conn, err := m.cfg.Listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // probably out of file descriptors: it continues when others end
			m.complaints.warn("cannot accept connections of other servers", "err", err)
			select {
			case <-time.After(50 * time.Millisecond):
				continue
			case <-m.ctx.Done():
				return
			}
		}
		p := m.handshakes.enter(conn)
		if p == nil {
			return
		}
		select {
		case m.slots <- struct{}{}:
		case <-m.ctx.Done():
			return // the connection is closed already
		}
		m.running.Go(func() { // ends with the handshake, which has a deadline
			defer func() { <-m.slots }()
			m.admit(p)
		})
	}
}

// keepAlive finds peers whose machine is gone or partitioned, so that their connections do not
// stay.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 4}

// admit authenticates a connection and hands it to the listener of its protocol.
func (m *Mux) admit(p *pending) {
	ctx, cancel := context.WithTimeout(m.ctx, m.cfg.HandshakeTimeout)
	defer cancel()
	conn, err := m.authenticate(p)
	if err != nil {
		p.Close()
		if hungUp(err) {
			// A server that restarts does so, and so does a client that only checks whether the
			// port is open.
			m.complaints.logger.Debug("a connection ended before its peer was known", "remote", p.RemoteAddr(), "err",
				err)
			return
		}
		m.complaints.warnOf(p.source, "closed a connection that is not from a server of this cluster", p.RemoteAddr(),
			err)
		return
	}
	peer, err := m.perPeer.admit(conn, m)
	if err != nil {
		conn.Close()
		m.complaints.warnOf(p.source, "closed a connection of another server", p.RemoteAddr(), err)
		return
	}
	m.mu.Lock()
	q := m.protos[conn.ConnectionState().NegotiatedProtocol]
	m.mu.Unlock()
	if q == nil || !q.offer(ctx, peer) {
		peer.Close()
	}
}

// authenticate makes the handshake. The connection is not pending any more when it returns.
func (m *Mux) authenticate(p *pending) (*tls.Conn, error) {
	err := p.SetDeadline(time.Now().Add(m.cfg.HandshakeTimeout))
	conn := tls.Server(p.Conn, m.serverConfig())
	if err == nil {
		err = conn.Handshake()
	}
	if m.handshakes.leave(p) {
		return nil, errTooMany
	}
	if err != nil {
		return nil, err
	}
	if tcp, ok := p.Conn.(*net.TCPConn); ok {
		if err := tcp.SetKeepAliveConfig(keepAlive); err != nil {
			return nil, err
		}
	}
	return conn, p.SetDeadline(time.Time{})
}

// hungUp reports whether a handshake failed because a side closed the connection: the peer is
// unknown.
func hungUp(err error) bool {
	for _, end := range []error{io.EOF, net.ErrClosed, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, end) {
			return true
		}
	}
	return false
}

// errTooMany is the reason why an unauthenticated connection was closed.
var errTooMany = errors.New("too many connections were not authenticated yet, and this one had waited the longest")

// Dial opens a connection to a server of the cluster. Recheck may close it.
func (m *Mux) Dial(ctx context.Context, addr, proto string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.HandshakeTimeout)
	defer cancel()
	var d net.Dialer
	raw, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("connect to server %s: %w", addr, err)
	}
	conn := tls.Client(raw, m.clientConfig(proto))
	if err := conn.HandshakeContext(ctx); err != nil {
		raw.Close()
		return nil, fmt.Errorf("connect to server %s: %w", addr, err)
	}
	if got := conn.ConnectionState().NegotiatedProtocol; got != proto {
		conn.Close()
		return nil, fmt.Errorf("connect to server %s: it does not speak %s", addr, proto)
	}
	h := m.hosts.add(conn)
	if err := m.mayHost(conn.ConnectionState()); err != nil { // Recheck was between the handshake and here
		h.Close()
		return nil, fmt.Errorf("connect to server %s: %w", addr, err)
	}
	return h, nil
}

// mayHost returns the reason why a server that this one calls may not be called, or nil.
func (m *Mux) mayHost(s tls.ConnectionState) error {
	if err := m.verify(s, x509.ExtKeyUsageServerAuth); err != nil {
		return err
	}
	if err := m.barred(s.PeerCertificates); err != nil && !errors.Is(err, ErrStranger) {
		return err
	}
	return nil
}

func (m *Mux) serverConfig() *tls.Config {
	m.mu.Lock()
	defer m.mu.Unlock()
	protos := slices.Sorted(maps.Keys(m.protos)) // in one order: of several that the peer offers, the first is taken
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		NextProtos:             protos,
		ClientAuth:             tls.RequireAnyClientCert, // verified below, against roots that may change
		SessionTicketsDisabled: true,
		GetCertificate:         func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return m.certificate() },
		VerifyConnection: func(s tls.ConnectionState) error {
			if s.NegotiatedProtocol == "" {
				return errors.New("the peer asks for no protocol")
			}
			return m.verify(s, x509.ExtKeyUsageClientAuth)
		},
	}
}

// clientConfig omits the check of names: certificates identify servers, not addresses, which may
// change.
func (m *Mux) clientConfig(proto string) *tls.Config {
	return &tls.Config{
		MinVersion:           tls.VersionTLS13,
		NextProtos:           []string{proto},
		InsecureSkipVerify:   true, // VerifyConnection verifies the chain and that it is a server
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return m.certificate() },
		VerifyConnection:     m.mayHost,
	}
}

// ErrStranger is part of a reason of Config.Barred for a server that is no member, and was not
// removed: it may say hello and ask to become one.
var ErrStranger = errors.New("it is no member of this cluster's store")

func (m *Mux) barred(shown []*x509.Certificate) error {
	if m.cfg.Barred == nil {
		return nil
	}
	return m.cfg.Barred(shown[0], shown[1:])
}

// Forget makes the Mux ask Config.Barred again about each open connection, at its next use. It is
// for answers that change unseen: a peer that is no stranger only because no leader is known yet.
func (m *Mux) Forget() { m.checks.Add(1) }

// Recheck closes the connections of peers that were removed, or whose CA is not believed any more:
// those that it has accepted, and those that it has dialed. Those of strangers stay, with few
// rights. It is for when the answers of Config.Barred or Config.Roots have changed.
func (m *Mux) Recheck() {
	m.Forget()
	for _, g := range m.perPeer.all() {
		err := g.Barred()
		if err == nil || errors.Is(err, ErrStranger) { // a stranger may be about to join
			err = m.verify(g.ConnectionState(), x509.ExtKeyUsageClientAuth)
		}
		if err != nil {
			m.complaints.logger.Info("closed a connection of another server", "remote", g.RemoteAddr(), "reason", err)
			g.Close()
		}
	}
	for _, h := range m.hosts.all() {
		if err := m.mayHost(h.ConnectionState()); err != nil {
			m.complaints.logger.Info("closed a connection to another server", "remote", h.RemoteAddr(), "reason", err)
			h.Close()
		}
	}
}

func (m *Mux) certificate() (*tls.Certificate, error) {
	if c := m.cfg.Certificate(); c != nil {
		return c, nil
	}
	return nil, errors.New("this server has no certificate yet")
}

// verify demands a certificate of the cluster's CA that makes its holder a server.
func (m *Mux) verify(s tls.ConnectionState, usage x509.ExtKeyUsage) error {
	if len(s.PeerCertificates) == 0 {
		return errors.New("the peer shows no certificate")
	}
	leaf := s.PeerCertificates[0]
	opts := x509.VerifyOptions{
		Roots: m.cfg.Roots(), Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{usage},
	}
	for _, c := range s.PeerCertificates[1:] {
		opts.Intermediates.AddCert(c)
	}
	if _, err := leaf.Verify(opts); err != nil {
		return fmt.Errorf("certificate of %q: %w", leaf.Subject.CommonName, err)
	}
	if !slices.Contains(leaf.Subject.Organization, ServerOrganization) {
		return fmt.Errorf("certificate of %q is not a server's: its organization is %q, not %q",
			leaf.Subject.CommonName, leaf.Subject.Organization, ServerOrganization)
	}
	return nil
}
