// Package memnet is a network in memory, for tests: whole clusters in one process, in virtual time
// if need be, with partitions.
package memnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/barque/barque/raftstore/transport"
)

// Network connects hosts by their addresses. The zero value is ready.
type Network struct {
	mu    sync.Mutex
	hosts map[string]*Host
	cut   map[[2]string]bool
	muted map[[2]string]chan struct{} // closed by Heal
	conns map[*conn]struct{}
}

// Host is one server's place in a Network. It implements transport.Stream.
type Host struct {
	net       *Network
	addr      string
	mu        sync.Mutex
	listeners map[string]*listener
	closed    bool
}

var _ transport.Stream = (*Host)(nil)

// Host returns a place at the address. A host that was there and is closed is replaced.
func (n *Network) Host(addr string) *Host {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.hosts == nil {
		n.hosts = make(map[string]*Host)
		n.cut = make(map[[2]string]bool)
		n.muted = make(map[[2]string]chan struct{})
		n.conns = make(map[*conn]struct{})
	}
	h := &Host{net: n, addr: addr, listeners: make(map[string]*listener)}
	n.hosts[addr] = h
	return h
}

func pair(a, b string) [2]string {
	if a > b {
		a, b = b, a
	}
	return [2]string{a, b}
}

// Cut separates two hosts: their connections break, and new ones do not come about.
func (n *Network) Cut(a, b string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut[pair(a, b)] = true
	for c := range n.conns {
		if c.ends == pair(a, b) {
			c.shut()
			delete(n.conns, c)
		}
	}
}

// Isolate cuts a host off from all others.
func (n *Network) Isolate(addr string) {
	for _, other := range n.others(addr) {
		n.Cut(addr, other)
	}
}

func (n *Network) others(addr string) []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var others []string
	for other := range n.hosts {
		if other != addr {
			others = append(others, other)
		}
	}
	return others
}

// Mute separates a host from all others as a network does that drops packets: connections stay, and what
// is sent over them arrives after Heal. New ones do not come about.
func (n *Network) Mute(addr string) {
	others := n.others(addr)
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, other := range others {
		if ends := pair(addr, other); n.muted[ends] == nil {
			n.muted[ends] = make(chan struct{})
		}
	}
}

// Heal takes back all cuts and mutes.
func (n *Network) Heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.cut)
	for _, healed := range n.muted {
		close(healed)
	}
	clear(n.muted)
}

// Addr returns the host's address.
func (h *Host) Addr() string { return h.addr }

// Listener returns the connections for a protocol.
func (h *Host) Listener(proto string) net.Listener {
	h.mu.Lock()
	defer h.mu.Unlock()
	l, ok := h.listeners[proto]
	if !ok {
		l = &listener{addr: addr(h.addr), conns: make(chan net.Conn), done: make(chan struct{})}
		h.listeners[proto] = l
		if h.closed {
			l.Close()
		}
	}
	return l
}

// Dial connects to another host. Over a cut it takes as long as the context allows, as a network
// that drops packets does.
func (h *Host) Dial(ctx context.Context, to, proto string) (net.Conn, error) {
	h.net.mu.Lock()
	cut, peer := h.net.cut[pair(h.addr, to)] || h.net.muted[pair(h.addr, to)] != nil, h.net.hosts[to]
	h.net.mu.Unlock()
	if cut {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		<-ctx.Done()
		return nil, fmt.Errorf("connect to %s: %w", to, context.Cause(ctx))
	}
	var l *listener
	if peer != nil {
		peer.mu.Lock()
		l = peer.listeners[proto]
		peer.mu.Unlock()
	}
	if l == nil {
		return nil, fmt.Errorf("connect to %s: nobody is there", to)
	}
	near, far := h.net.pipe(h.addr, to)
	select {
	case l.conns <- far:
		return near, nil
	case <-l.done:
	case <-ctx.Done():
	}
	near.Close()
	far.Close()
	return nil, fmt.Errorf("connect to %s: refused", to)
}

// Close closes the host's listeners and breaks its connections.
func (h *Host) Close() error {
	h.mu.Lock()
	h.closed = true
	for _, l := range h.listeners {
		l.Close()
	}
	h.mu.Unlock()
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	for c := range h.net.conns {
		if c.ends[0] == h.addr || c.ends[1] == h.addr {
			c.shut()
			delete(h.net.conns, c)
		}
	}
	return nil
}

func (n *Network) pipe(a, b string) (net.Conn, net.Conn) {
	near, far := net.Pipe()
	ca := &conn{Conn: near, net: n, ends: pair(a, b), local: addr(a), remote: addr(b), done: make(chan struct{})}
	cb := &conn{Conn: far, net: n, ends: pair(a, b), local: addr(b), remote: addr(a), done: make(chan struct{})}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cut[ca.ends] { // since Dial looked
		near.Close()
	}
	n.conns[ca], n.conns[cb] = struct{}{}, struct{}{}
	return ca, cb
}

type conn struct {
	net.Conn
	net           *Network
	ends          [2]string
	local, remote addr

	once     sync.Once
	done     chan struct{} // closed with the connection
	mu       sync.Mutex
	deadline time.Time // for reading
}

// Read holds back what comes while the two hosts are muted.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil {
		return n, err
	}
	return n, c.hold()
}

func (c *conn) hold() error {
	c.net.mu.Lock()
	healed := c.net.muted[c.ends]
	c.net.mu.Unlock()
	if healed == nil {
		return nil
	}
	c.mu.Lock()
	deadline := c.deadline
	c.mu.Unlock()
	var expired <-chan time.Time
	if !deadline.IsZero() {
		timer := time.NewTimer(time.Until(deadline))
		defer timer.Stop()
		expired = timer.C
	}
	select {
	case <-healed:
		return nil
	case <-c.done:
		return net.ErrClosed
	case <-expired:
		return os.ErrDeadlineExceeded
	}
}

func (c *conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	c.deadline = t
	c.mu.Unlock()
	return c.Conn.SetReadDeadline(t)
}

func (c *conn) shut() error {
	c.once.Do(func() { close(c.done) })
	return c.Conn.Close()
}

func (c *conn) Close() error {
	c.net.mu.Lock()
	delete(c.net.conns, c)
	c.net.mu.Unlock()
	return c.shut()
}

func (c *conn) LocalAddr() net.Addr  { return c.local }
func (c *conn) RemoteAddr() net.Addr { return c.remote }

type addr string

func (addr) Network() string  { return "mem" }
func (a addr) String() string { return string(a) }

type listener struct {
	addr  addr
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

func (l *listener) Addr() net.Addr { return l.addr }
