// Package balancer gives a machine one address that always leads to a living API server.
//
// It forwards TCP connections, so TLS stays end to end and client certificates arrive. It probes
// all servers all the time; connections through a server that has fallen ill are cut, because a
// client whose connection hangs finds another server only when its own time-out is over.
package balancer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Config of a Balancer.
type Config struct {
	Listener net.Listener
	// Servers returns the API servers that are believed to exist, best first.
	Servers func() []netip.AddrPort
	// Probe returns nil when the server can serve now. It is called with a deadline.
	Probe func(ctx context.Context, server netip.AddrPort) error
	// Interval between probes of one server, and the time that a probe may take. Defaults: 300 ms
	// and 900 ms.
	Interval, Timeout time.Duration
	// Dial opens a connection to a server; a plain TCP dialer when nil.
	Dial   func(ctx context.Context, network, address string) (net.Conn, error)
	Logger *slog.Logger
}

// Balancer forwards connections. The zero value is not usable; see New.
type Balancer struct {
	config Config

	mu       sync.Mutex
	backends map[netip.AddrPort]*backend
	conns    sync.WaitGroup
}

// backend is one server. It is ill after ill probes in a row, and well after one that succeeds.
type backend struct {
	addr     netip.AddrPort
	healthy  bool
	failures int
	conns    map[net.Conn]struct{} // client sides of what runs through it
	stop     context.CancelFunc
}

// illAfter is how many probes must fail in a row before a server counts as ill: one lost packet
// cuts nobody off.
const illAfter = 2

// New returns a Balancer that listens already.
func New(c Config) *Balancer {
	if c.Interval == 0 {
		c.Interval = 300 * time.Millisecond
	}
	if c.Timeout == 0 {
		c.Timeout = 900 * time.Millisecond
	}
	if c.Dial == nil {
		c.Dial = (&net.Dialer{KeepAlive: 5 * time.Second}).DialContext
	}
	return &Balancer{config: c, backends: map[netip.AddrPort]*backend{}}
}

// Run serves until the context ends, then cuts what is open and waits for it.
func (b *Balancer) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var probers sync.WaitGroup
	probers.Go(func() { b.discover(ctx, &probers) })
	stopAccept := context.AfterFunc(ctx, func() { b.config.Listener.Close() })
	defer stopAccept()

	var err error
	for {
		var conn net.Conn
		if conn, err = b.config.Listener.Accept(); err != nil {
			break
		}
		b.conns.Go(func() { b.forward(ctx, conn) })
	}
	if ctx.Err() != nil {
		err = nil
	} else {
		err = fmt.Errorf("accept on %s: %w", b.config.Listener.Addr(), err)
	}
	cancel()
	probers.Wait()
	b.cutAll()
	b.conns.Wait()
	return err
}

// discover keeps one prober per known server.
func (b *Balancer) discover(ctx context.Context, probers *sync.WaitGroup) {
	ticker := time.NewTicker(b.config.Interval)
	defer ticker.Stop()
	for {
		want := b.config.Servers()
		b.mu.Lock()
		for _, addr := range want {
			if b.backends[addr] == nil {
				probeCtx, stop := context.WithCancel(ctx)
				be := &backend{addr: addr, conns: map[net.Conn]struct{}{}, stop: stop}
				b.backends[addr] = be
				probers.Go(func() { b.probe(probeCtx, be) })
			}
		}
		for addr, be := range b.backends {
			if !slices.Contains(want, addr) {
				be.stop()
				be.cut()
				delete(b.backends, addr)
			}
		}
		b.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (b *Balancer) probe(ctx context.Context, be *backend) {
	ticker := time.NewTicker(b.config.Interval)
	defer ticker.Stop()
	for {
		probeCtx, cancel := context.WithTimeout(ctx, b.config.Timeout)
		err := b.config.Probe(probeCtx, be.addr)
		cancel()
		if ctx.Err() != nil {
			return
		}
		b.mu.Lock()
		was := be.healthy
		if err == nil {
			be.healthy, be.failures = true, 0
		} else if be.failures++; be.failures >= illAfter {
			be.healthy = false
			be.cut()
		}
		now := be.healthy
		b.mu.Unlock()
		if was != now {
			b.config.Logger.Info("API server changed", "server", be.addr, "healthy", now, "reason", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// cut ends what runs through the server. The balancer's mutex is held.
func (be *backend) cut() {
	for conn := range be.conns {
		conn.Close()
	}
}

func (b *Balancer) cutAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, be := range b.backends {
		be.cut()
	}
}

// candidates returns the servers to try: the healthy ones in the order of Servers, then the others,
// whose last probe may be older than their recovery.
func (b *Balancer) candidates() []*backend {
	order := b.config.Servers()
	b.mu.Lock()
	defer b.mu.Unlock()
	var healthy, others []*backend
	for _, addr := range order {
		switch be := b.backends[addr]; {
		case be == nil:
		case be.healthy:
			healthy = append(healthy, be)
		default:
			others = append(others, be)
		}
	}
	return append(healthy, others...)
}

func (b *Balancer) forward(ctx context.Context, client net.Conn) {
	defer client.Close()
	// A server that is chosen while Run comes to its end would be missed by the last cut.
	defer context.AfterFunc(ctx, func() { client.Close() })()
	for _, be := range b.candidates() {
		dialCtx, cancel := context.WithTimeout(ctx, b.config.Timeout)
		server, err := b.config.Dial(dialCtx, "tcp", be.addr.String())
		cancel()
		if err != nil {
			continue
		}
		b.mu.Lock()
		be.conns[client] = struct{}{}
		b.mu.Unlock()
		pipe(client, server)
		b.mu.Lock()
		delete(be.conns, client)
		b.mu.Unlock()
		return
	}
	b.config.Logger.Debug("no API server can be reached", "client", client.RemoteAddr())
}

// pipe copies both ways and returns when both are done. The end of one direction is passed on as
// a half-close, so that protocols that use one keep working; an error ends both.
func pipe(a, b net.Conn) {
	var wg sync.WaitGroup
	one := func(dst, src net.Conn) {
		_, err := io.Copy(dst, src)
		if half, ok := dst.(interface{ CloseWrite() error }); err == nil && ok && !errors.Is(half.CloseWrite(), net.ErrClosed) {
			return
		}
		a.Close()
		b.Close()
	}
	wg.Go(func() { one(a, b) })
	wg.Go(func() { one(b, a) })
	wg.Wait()
	b.Close()
}
