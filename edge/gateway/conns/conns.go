// Package conns has what the gateway does with a connection before it serves something on it: it
// reads who the client is, which server name it wants and which address it has asked for, and hands
// the connection over.
package conns

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/barque/barque/edge/gateway/proxyheader"
	"github.com/barque/barque/internal/connlimit"
)

// HelloTimeout limits the time until a client has said where it wants to.
const HelloTimeout = 10 * time.Second

// Queue is a net.Listener of connections that come from elsewhere.
type Queue struct {
	addr  net.Addr
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

// NewQueue returns an open one with that address.
func NewQueue(addr net.Addr) *Queue {
	return &Queue{addr: addr, conns: make(chan net.Conn), done: make(chan struct{})}
}

// Put hands a connection over, and closes it if nobody takes connections any more.
func (q *Queue) Put(c net.Conn) {
	select {
	case q.conns <- c:
	case <-q.done:
		_ = c.Close()
	}
}

// Accept implements net.Listener.
func (q *Queue) Accept() (net.Conn, error) {
	select {
	case c := <-q.conns:
		return c, nil
	case <-q.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (q *Queue) Close() error {
	q.once.Do(func() { close(q.done) })
	return nil
}

// Addr implements net.Listener.
func (q *Queue) Addr() net.Addr { return q.addr }

// from is a connection whose first bytes have been read, or whose client has another address.
type from struct {
	net.Conn
	r      io.Reader
	remote net.Addr
}

// From is a connection that is read from r, and whose client has the address remote.
func From(c net.Conn, r io.Reader, remote net.Addr) net.Conn {
	return &from{Conn: c, r: r, remote: remote}
}

// Read implements net.Conn.
func (c *from) Read(p []byte) (int, error) { return c.r.Read(p) }

// RemoteAddr implements net.Conn.
func (c *from) RemoteAddr() net.Addr { return c.remote }

// CloseWrite ends one direction.
func (c *from) CloseWrite() error { return CloseWrite(c.Conn) }

// CloseWrite ends one direction, where a connection has two, and else the connection.
func CloseWrite(c net.Conn) error {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Close()
}

// Limited is a counted connection. It ends when its client does not take what is sent to it for so
// long.
type Limited struct {
	*connlimit.Conn
	Patience time.Duration
}

// Write implements net.Conn.
func (c Limited) Write(p []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(c.Patience)); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

// AddrOf returns the address of an end of a connection; none if it is no IP address.
func AddrOf(a net.Addr) netip.AddrPort {
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

// Named reads the PROXY protocol of a balancer.
func Named(c net.Conn) (net.Conn, error) {
	_ = c.SetReadDeadline(time.Now().Add(HelloTimeout))
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

// LongestHello bounds a client's greeting.
const LongestHello = 64 << 10

// Hello reads a client's greeting of TLS and returns the server name in it. The returned connection
// has the greeting before it.
func Hello(c net.Conn) (string, net.Conn, error) {
	_ = c.SetReadDeadline(time.Now().Add(HelloTimeout))
	var seen bytes.Buffer
	var name string
	err := tls.Server(mute{r: io.TeeReader(io.LimitReader(c, LongestHello), &seen), Conn: c}, &tls.Config{
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

// Join copies between two connections until both directions have ended.
func Join(a, b net.Conn) {
	var wg sync.WaitGroup
	one := func(to, from net.Conn) {
		if _, err := io.Copy(to, from); err != nil {
			_ = to.Close()
			_ = from.Close()
			return
		}
		_ = CloseWrite(to)
	}
	wg.Go(func() { one(a, b) })
	wg.Go(func() { one(b, a) })
	wg.Wait()
}
