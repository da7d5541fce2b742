package memnet

import (
	"context"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/barque/barque/raftstore/transport"
)

// Host is one server's place in a Network. It implements transport.Stream.
type Host struct {
	net       *Network
	addr      string
	mu        sync.Mutex
	listeners map[string]*listener
	closed    bool
}

var _ transport.Stream = (*Host)(nil)

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

// silence is how long connecting to nowhere takes at most. Connecting that is only slow takes its
// time: real transports leave that to the caller, too.
const silence = time.Second

// Dial connects to another host. If packets are dropped it takes until the context ends, or a
// second.
func (h *Host) Dial(ctx context.Context, to, proto string) (net.Conn, error) {
	// There and back again, as connecting takes.
	if err := pause(ctx, h.net.travel(h.addr, to, 0)+h.net.travel(to, h.addr, 0)); err != nil {
		return nil, fmt.Errorf("connect to %s: %w", to, err)
	}
	ctx, cancel := context.WithTimeout(ctx, silence)
	defer cancel()
	if !h.net.reachable(h.addr, to) {
		<-ctx.Done()
		return nil, fmt.Errorf("connect to %s: %w", to, context.Cause(ctx))
	}
	l := h.net.listener(to, proto)
	if l == nil || h.net.refuses(to) {
		return nil, fmt.Errorf("connect to %s: %w", to, syscall.ECONNREFUSED)
	}
	near, far, err := h.connect(to)
	if err != nil {
		return nil, err
	}
	select {
	case l.conns <- far:
		return near, nil
	case <-l.done:
	case <-ctx.Done():
	}
	near.Close()
	far.Close()
	return nil, fmt.Errorf("connect to %s: %w", to, syscall.ECONNREFUSED)
}

func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (n *Network) listener(host, proto string) *listener {
	n.mu.Lock()
	h := n.hosts[host]
	n.mu.Unlock()
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.listeners[proto]
}

// connect makes both ends of a connection. It fails for a closed host, and for hosts that were cut
// apart since the caller's check.
func (h *Host) connect(to string) (near, far net.Conn, err error) {
	n := h.net
	there, back := newPipe(n, h.addr, to), newPipe(n, to, h.addr)
	a, b := &conn{net: n, in: back, out: there}, &conn{net: n, in: there, out: back}
	n.mu.Lock()
	defer n.mu.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed || n.cut[pair(h.addr, to)] {
		return nil, nil, fmt.Errorf("connect to %s: %w", to, net.ErrClosed)
	}
	n.conns[a], n.conns[b] = struct{}{}, struct{}{}
	return a, b, nil
}

// Close closes the host's listeners and breaks its connections.
func (h *Host) Close() error {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	h.mu.Lock()
	h.closed = true
	for _, l := range h.listeners {
		l.Close()
	}
	h.mu.Unlock()
	h.net.resetAll(h.addr)
	return nil
}

// Vanish closes the host like a power loss. Its peers learn of it only from a new host at the
// address, which does not know the old connections.
func (h *Host) Vanish() {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	h.mu.Lock()
	h.closed = true
	for _, l := range h.listeners {
		l.Close()
	}
	h.mu.Unlock()
	h.net.gone[h.addr] = true
	for c := range h.net.conns {
		if c.in.to == h.addr { // this end of it
			c.in.change(func() { c.in.readerLost = true })
			c.out.change(func() { c.out.writerLost = true })
		}
	}
}

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
