// Package balancer gives a machine one address that always leads to a living API server.
//
// It forwards TCP connections, so TLS stays end to end and client certificates arrive. It probes the servers all
// the time; connections through one that has fallen ill are cut, because a client whose connection hangs finds
// another server only when its own time-out is over. A connection is cut only when there is a better server to go to:
// where the store has lost its quorum no server is ready, and those that live still answer what they can.
package balancer

import (
	"cmp"
	"context"
	"fmt"
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
	// Servers returns the API servers that are believed to exist, best first; see Spread.
	Servers func() []netip.AddrPort
	// Probe returns nil when the server can serve now, and an error that is ErrNotReady when it answers that it cannot. It is
	// called with a deadline.
	Probe func(ctx context.Context, server netip.AddrPort) error
	// Interval between probes of a server that connections run through, and the time that a probe may take. Others
	// are probed more rarely, and at once when one that is in use fails. Defaults: 300 ms and 700 ms.
	Interval, Timeout time.Duration
	// Patience is how long connections stay with a server that answers that it is not ready. Most of the time that is an
	// election, which ends by itself. Default: 5 s.
	Patience time.Duration
	// Return is how long a better server, by the order of Servers, must have been ready before connections move back to
	// it: after this time and up to as much again, one after the other, when nothing flows through them. 0 is never.
	Return time.Duration
	// Dial opens a connection to a server; a plain TCP dialer when nil.
	Dial   func(ctx context.Context, network, address string) (net.Conn, error)
	Logger *slog.Logger
}

// Balancer forwards connections. The zero value is not usable; see New.
type Balancer struct {
	config Config

	mu       sync.Mutex
	backends map[netip.AddrPort]*backend
	alarm    chan struct{} // closed and replaced when all servers are to be probed now
	conns    sync.WaitGroup
}

// New returns a Balancer that listens already.
func New(c Config) *Balancer {
	c.Interval = cmp.Or(c.Interval, 300*time.Millisecond)
	c.Timeout = cmp.Or(c.Timeout, 700*time.Millisecond)
	c.Patience = cmp.Or(c.Patience, 5*time.Second)
	if c.Dial == nil {
		c.Dial = (&net.Dialer{KeepAlive: 5 * time.Second}).DialContext
	}
	c.Servers = others(c.Servers, c.Listener.Addr())
	return &Balancer{config: c, backends: map[netip.AddrPort]*backend{}, alarm: make(chan struct{})}
}

// others leaves the balancer itself out of the servers: who gives an agent its own port for a server's would have it
// forward each connection to itself, again and again.
func others(servers func() []netip.AddrPort, self net.Addr) func() []netip.AddrPort {
	own, err := netip.ParseAddrPort(self.String())
	if err != nil {
		return servers // no TCP: no server has such an address
	}
	return func() []netip.AddrPort {
		return slices.DeleteFunc(slices.Clone(servers()), func(s netip.AddrPort) bool {
			return s.Port() == own.Port() && (s.Addr().Unmap() == own.Addr().Unmap() || own.Addr().IsUnspecified() && s.Addr().IsLoopback())
		})
	}
}

// Run serves until the context ends, then cuts what is open and waits for it.
func (b *Balancer) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var own sync.WaitGroup
	own.Go(func() { b.discover(ctx, &own) })
	if b.config.Return > 0 {
		own.Go(func() { b.goHome(ctx) })
	}
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
	own.Wait()
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
				be := &backend{addr: addr, links: map[*link]struct{}{}, stop: stop}
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

func (b *Balancer) cutAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, be := range b.backends {
		be.cut()
	}
}

// candidates returns the servers to try: the ready ones, those that say that they are not, and then the others, whose
// last probe may be older than their recovery; each in the order of Servers.
func (b *Balancer) candidates() []*backend {
	order := b.config.Servers()
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []*backend
	for _, addr := range order {
		if be := b.backends[addr]; be != nil {
			out = append(out, be)
		}
	}
	slices.SortStableFunc(out, func(x, y *backend) int { return cmp.Compare(y.grade, x.grade) })
	return out
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
		l := newLink(client)
		b.mu.Lock()
		if be.links[l] = struct{}{}; len(be.links) == 1 {
			b.probeAll() // it was probed rarely
		}
		b.mu.Unlock()
		l.pipe(server, b.config.Return > 0)
		b.mu.Lock()
		delete(be.links, l)
		b.mu.Unlock()
		return
	}
	b.config.Logger.Debug("no API server can be reached", "client", client.RemoteAddr())
}
