// Package balancer gives a machine one local address that always leads to a living API server.
//
// It forwards TCP connections, so TLS stays end to end and client certificates arrive. It probes
// the servers' readiness all the time. New connections go to ready servers at once.
//
// Connections to a server that has failed are cut: a client whose connection hangs would otherwise
// move only after its own timeout. A busy machine makes a server silent, too, for many seconds. A
// cut breaks the requests under way, and a write may not be repeated safely. No byte on the way
// shows which it is, because TLS hides the requests. So connections stay with a silent server for
// Config.Requests: as long as a request may take. They stay for Config.Patience alone when the
// server is dead, or cut off: the other machines have lost it as well (Config.Lost), and its
// machine accepts no connections. The kernel accepts them for a process that does not run for a
// while, which the others lose after some seconds, too. A connection is cut only if a better server
// exists. Without a quorum no server is ready, and the living servers still answer some requests.
// The kernel closes the connections of a dead process.
//
// A server in use is probed each Interval. A silent one is detected after Interval and
// Timeout, 0.8 s:
//
//	answered ──Interval──▶ a probe ──Hedge──▶ a second one, over another connection; ──────▶ silent: new connections
//	                                          the other servers are probed, too    Timeout   go elsewhere
//
// If another server answers meanwhile, the silent one gets one more probe with the time of Hedge.
// After a short failure of the whole network any server may answer first. Detection still takes
// 0.8 s if the others answer at once, and 1 s if they take 0.2 s.
package balancer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"
)

// Config of a Balancer.
type Config struct {
	Listener net.Listener
	// Servers returns the API servers that are believed to exist, best first; see Spread.
	Servers func() []netip.AddrPort
	// Probe returns nil if the server can serve now, and ErrNotReady if it answers that it cannot.
	// It returns when the context ends. At most three probes of a server run at once, over lanes 0
	// to 2. Lanes are independent connections: one that hangs, or waits for a lost packet, does not
	// delay the others.
	Probe func(ctx context.Context, server netip.AddrPort, lane int) error
	// Interval is the time between probes of a server in use. Other servers are probed more rarely,
	// and at once when one in use is in doubt. Default: 300 ms.
	Interval time.Duration
	// Hedge is how long a probe stays unanswered before the second one begins. Timeout is the total
	// time after which a server that answers neither is silent. Defaults: 200 ms and 500 ms.
	Hedge, Timeout time.Duration
	// Patience is how long connections stay with a server that is silent, lost, and accepts none,
	// or that answers that it is not ready. Most of the time that is a busy machine or an
	// election, which end by themselves. Default: 5 s.
	Patience time.Duration
	// Lost reports whether the other machines miss a server as well. nil reports it of none.
	Lost func(server netip.AddrPort) bool
	// Requests is how long connections stay with another silent server. Default: the time that the
	// API server gives a request, 60 s.
	Requests time.Duration
	// Return is how long a better server, by the order of Servers, must have been ready before
	// connections move back to it. They move one by one, when idle, after this time and up to twice
	// as long. 0 is never.
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
	conns    sync.WaitGroup
}

// New returns a Balancer that listens already.
func New(c Config) *Balancer {
	c.Interval = cmp.Or(c.Interval, 300*time.Millisecond)
	c.Hedge = cmp.Or(c.Hedge, 200*time.Millisecond)
	c.Timeout = cmp.Or(c.Timeout, 500*time.Millisecond)
	c.Patience = cmp.Or(c.Patience, 5*time.Second)
	c.Requests = max(c.Patience, cmp.Or(c.Requests, time.Minute))
	if c.Lost == nil {
		c.Lost = func(netip.AddrPort) bool { return false }
	}
	if c.Dial == nil {
		c.Dial = (&net.Dialer{KeepAlive: 5 * time.Second}).DialContext
	}
	c.Servers = others(c.Servers, c.Listener.Addr())
	return &Balancer{config: c, backends: map[netip.AddrPort]*backend{}}
}

// others removes the balancer's own address from the servers. If a server were configured with the
// agent's own port, the balancer would forward each connection to itself forever.
func others(servers func() []netip.AddrPort, self net.Addr) func() []netip.AddrPort {
	own, err := netip.ParseAddrPort(self.String())
	if err != nil {
		return servers // no TCP: no server has such an address
	}
	return func() []netip.AddrPort {
		return slices.DeleteFunc(slices.Clone(servers()), func(s netip.AddrPort) bool {
			return s.Port() == own.Port() &&
				(s.Addr().Unmap() == own.Addr().Unmap() || own.Addr().IsUnspecified() && s.Addr().IsLoopback())
		})
	}
}

// Run serves until the context ends, then cuts all connections and waits for them.
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
		conn, err = b.config.Listener.Accept()
		if err != nil && isPassing(err) && ctx.Err() == nil {
			b.config.Logger.Warn("a connection cannot be accepted", "on", b.config.Listener.Addr(), "retryIn",
				acceptAgain, "err", err)
			select {
			case <-ctx.Done():
			case <-time.After(acceptAgain):
			}
			continue
		}
		if err != nil {
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

// acceptAgain is how soon a connection is accepted again after one could not be.
const acceptAgain = 100 * time.Millisecond

// isPassing reports whether accepting failed for a temporary reason: too many open files, too
// little memory, or a client that is gone already.
func isPassing(err error) bool {
	for _, passing := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM,
		syscall.ECONNABORTED} {
		if errors.Is(err, passing) {
			return true
		}
	}
	return false
}

// discover starts a watcher for each known server.
func (b *Balancer) discover(ctx context.Context, watchers *sync.WaitGroup) {
	ticker := time.NewTicker(b.config.Interval)
	defer ticker.Stop()
	for {
		want := b.config.Servers()
		b.mu.Lock()
		for _, addr := range want {
			if b.backends[addr] == nil {
				watchCtx, stop := context.WithCancel(ctx)
				be := &backend{addr: addr, links: map[*link]struct{}{}, since: time.Now(),
					woken: make(chan struct{}, 1), anew: make(chan struct{}, 1), stop: stop}
				b.backends[addr] = be
				watchers.Go(func() { b.watch(watchCtx, be) })
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

// Living returns the servers that answer, ready or not, and those in use.
func (b *Balancer) Living() []netip.AddrPort {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []netip.AddrPort
	for addr, be := range b.backends {
		if be.grade > silent || len(be.links) > 0 {
			out = append(out, addr)
		}
	}
	return out
}

func (b *Balancer) cutAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, be := range b.backends {
		be.cut()
	}
}

// candidates returns the servers to try: the ready ones, then those that are not ready, then the
// silent ones, which may have recovered. Each group has the order of Servers.
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

// dialTimeout bounds the connection to a server if there are others to try.
const dialTimeout = 700 * time.Millisecond

func (b *Balancer) forward(ctx context.Context, client net.Conn) {
	defer client.Close()
	// A server that is chosen while Run comes to its end would be missed by the last cut.
	defer context.AfterFunc(ctx, func() { client.Close() })()
	for _, be := range b.candidates() {
		dialCtx, cancel := context.WithTimeout(ctx, dialTimeout)
		server, err := b.config.Dial(dialCtx, "tcp", be.addr.String())
		cancel()
		if err != nil {
			continue
		}
		l := newLink(client)
		if !b.use(be, l) {
			server.Close()
			continue
		}
		l.pipe(server, b.config.Return > 0)
		b.mu.Lock()
		delete(be.links, l)
		b.mu.Unlock()
		return
	}
	b.config.Logger.Debug("no API server can be reached", "client", client.RemoteAddr())
}
