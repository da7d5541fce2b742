package transport

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
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
	// HandshakeTimeout bounds how long a peer may take until it is authenticated. Default: 5 s.
	HandshakeTimeout time.Duration
	// MaxHandshakes bounds how many peers may be on the way there at once. Default: 64.
	MaxHandshakes int
	Logger        *slog.Logger
}

// Mux is a Stream over TLS.
type Mux struct {
	cfg     Config
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	running sync.WaitGroup
	slots   chan struct{}

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
		cfg.MaxHandshakes = 64
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	m := &Mux{cfg: cfg, slots: make(chan struct{}, cfg.MaxHandshakes), protos: make(map[string]*queue)}
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
		if err != nil { // out of file descriptors, most likely: others end, then it goes on
			m.cfg.Logger.Error("cannot accept connections of other servers", "err", err)
			select {
			case <-time.After(50 * time.Millisecond):
				continue
			case <-m.ctx.Done():
				return
			}
		}
		select {
		case m.slots <- struct{}{}:
		case <-m.ctx.Done():
			conn.Close()
			return
		}
		m.running.Go(func() { // ends with the handshake, which has a deadline
			defer func() { <-m.slots }()
			m.admit(conn)
		})
	}
}

// admit authenticates a connection and hands it to the listener of its protocol.
func (m *Mux) admit(raw net.Conn) {
	ctx, cancel := context.WithTimeout(m.ctx, m.cfg.HandshakeTimeout)
	defer cancel()
	conn := tls.Server(raw, m.serverConfig())
	if err := conn.HandshakeContext(ctx); err != nil {
		m.cfg.Logger.Warn("closed a connection that is not from a server of this cluster",
			"remote", raw.RemoteAddr(), "err", err)
		raw.Close()
		return
	}
	m.mu.Lock()
	q := m.protos[conn.ConnectionState().NegotiatedProtocol]
	m.mu.Unlock()
	if q == nil || !q.offer(ctx, conn) {
		conn.Close()
	}
}

// Dial opens a connection to a server of the cluster.
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
	return conn, nil
}

func (m *Mux) serverConfig() *tls.Config {
	m.mu.Lock()
	defer m.mu.Unlock()
	protos := make([]string, 0, len(m.protos))
	for proto := range m.protos {
		protos = append(protos, proto)
	}
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

// clientConfig leaves out the check of names: servers are known by their certificates and not by
// their addresses, which may change.
func (m *Mux) clientConfig(proto string) *tls.Config {
	return &tls.Config{
		MinVersion:           tls.VersionTLS13,
		NextProtos:           []string{proto},
		InsecureSkipVerify:   true, // VerifyConnection verifies the chain and that it is a server
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return m.certificate() },
		VerifyConnection:     func(s tls.ConnectionState) error { return m.verify(s, x509.ExtKeyUsageServerAuth) },
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
