package proxy

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/barque/barque/edge/gateway/proxyheader"
	"github.com/barque/barque/internal/connlimit"
)

// helloTimeout limits the time until a client has said where it wants to.
const helloTimeout = 10 * time.Second

// queue is a net.Listener of connections that come from elsewhere.
type queue struct {
	addr  net.Addr
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newQueue(addr net.Addr) *queue {
	return &queue{addr: addr, conns: make(chan net.Conn), done: make(chan struct{})}
}

// put hands a connection over, and closes it if nobody takes connections any more.
func (q *queue) put(c net.Conn) {
	select {
	case q.conns <- c:
	case <-q.done:
		_ = c.Close()
	}
}

// Accept implements net.Listener.
func (q *queue) Accept() (net.Conn, error) {
	select {
	case c := <-q.conns:
		return c, nil
	case <-q.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (q *queue) Close() error {
	q.once.Do(func() { close(q.done) })
	return nil
}

// Addr implements net.Listener.
func (q *queue) Addr() net.Addr { return q.addr }

// from is a connection whose first bytes have been read, or whose client has another address.
type from struct {
	net.Conn
	r      io.Reader
	remote net.Addr
}

// Read implements net.Conn.
func (c *from) Read(p []byte) (int, error) { return c.r.Read(p) }

// RemoteAddr implements net.Conn.
func (c *from) RemoteAddr() net.Addr { return c.remote }

// CloseWrite ends one direction.
func (c *from) CloseWrite() error { return closeWrite(c.Conn) }

func closeWrite(c net.Conn) error {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Close()
}

// client is a counted connection. It ends when its client does not take what is sent to it.
type client struct{ *connlimit.Conn }

// Write implements net.Conn.
func (c client) Write(p []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(writePatience)); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

func contains(all []netip.Prefix, addr netip.Addr) bool {
	return slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Contains(addr) })
}

func addrOf(a net.Addr) netip.AddrPort {
	if tcp, ok := a.(*net.TCPAddr); ok {
		at := tcp.AddrPort()
		return netip.AddrPortFrom(at.Addr().Unmap().WithZone(""), at.Port())
	}
	at, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(at.Addr().Unmap().WithZone(""), at.Port())
}

// named reads the PROXY protocol of a balancer.
func named(c net.Conn) (net.Conn, error) {
	_ = c.SetReadDeadline(time.Now().Add(helloTimeout))
	r := bufio.NewReader(c)
	client, err := proxyheader.Read(r)
	if err != nil {
		return nil, err
	}
	_ = c.SetReadDeadline(time.Time{})
	remote := c.RemoteAddr()
	if client.IsValid() {
		remote = net.TCPAddrFromAddrPort(client)
	}
	return &from{Conn: c, r: r, remote: remote}, nil
}

var errPeeked = errors.New("the greeting was read")

// longestHello bounds a client's greeting.
const longestHello = 64 << 10

// hello reads a client's greeting of TLS and returns the server name in it. The returned connection
// has the greeting before it.
func hello(c net.Conn) (string, net.Conn, error) {
	_ = c.SetReadDeadline(time.Now().Add(helloTimeout))
	var seen bytes.Buffer
	var name string
	err := tls.Server(mute{r: io.TeeReader(io.LimitReader(c, longestHello), &seen), Conn: c}, &tls.Config{
		GetConfigForClient: func(info *tls.ClientHelloInfo) (*tls.Config, error) {
			name = info.ServerName
			return nil, errPeeked
		},
	}).Handshake()
	if !errors.Is(err, errPeeked) {
		return "", nil, err
	}
	_ = c.SetReadDeadline(time.Time{})
	return name, &from{Conn: c, r: io.MultiReader(&seen, c), remote: c.RemoteAddr()}, nil
}

// mute is a connection to read from only: an alert of the handshake that is broken off must not
// reach the client.
type mute struct {
	net.Conn
	r io.Reader
}

// Read implements net.Conn.
func (m mute) Read(p []byte) (int, error) { return m.r.Read(p) }

// Write implements net.Conn.
func (mute) Write(p []byte) (int, error) { return len(p), nil }

// SetDeadline implements net.Conn.
func (mute) SetDeadline(time.Time) error { return nil }

// join copies between two connections until both directions have ended.
func join(a, b net.Conn) {
	var wg sync.WaitGroup
	one := func(to, from net.Conn) {
		if _, err := io.Copy(to, from); err != nil {
			_ = to.Close()
			_ = from.Close()
			return
		}
		_ = closeWrite(to)
	}
	wg.Go(func() { one(a, b) })
	wg.Go(func() { one(b, a) })
	wg.Wait()
}
