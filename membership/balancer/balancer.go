// Package balancer gives a machine one address that always leads to a living API server.
//
// It forwards TCP connections, so TLS stays end to end and client certificates arrive. It asks the
// servers all the time whether they are ready. New connections go to those that are, at once.
// Connections through one that has fallen ill are cut after Config.Patience, because a client whose
// connection hangs finds another server only when its own time-out is over; not earlier, because a
// server that is busy answers late what others would have to do again. A connection is cut only
// when there is a better server to go to: where the store has lost its quorum no server is ready,
// and those that live still answer what they can. Connections to a process that has died are closed
// by its kernel.
//
// A server in use is asked each Interval. One that goes on without a word is known after Interval
// and Timeout, 0.8 s:
//
//	answered ──Interval──▶ a probe ──Hedge──▶ a second one, over another connection; ──────▶ silent: new connections
//	                                          the other servers are asked, too     Timeout   go elsewhere
//
// When another server answers meanwhile, the silent one is asked once more, and has Hedge for it:
// after a blip of the whole network the first answer may be anybody's. It is 0.8 s yet where the
// others answer at once, and 1 s where they take 0.2 s.
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
	// Probe returns nil when the server can serve now, and an error that is ErrNotReady when it
	// answers that it cannot. It returns when the context ends. A server is asked over three lanes,
	// 0 to 2, at the same time at most: connections that have nothing to do with each other, so
	// that one that hangs or waits for a lost packet does not hold the other up.
	Probe func(ctx context.Context, server netip.AddrPort, lane int) error
	// Interval between questions to a server that connections run through. Others are asked more
	// rarely, and at once when one that is in use is in doubt. Default: 300 ms.
	Interval time.Duration
	// Hedge is how long a probe stays unanswered before the second one, and Timeout how long it
	// takes in all until a server that answers neither is silent. Defaults: 200 ms and 500 ms.
	Hedge, Timeout time.Duration
	// Patience is how long connections stay with a server that is silent, or answers that it is not
	// ready. Most of the time that is a busy machine or an election, which end by themselves.
	// Default: 5 s.
	Patience time.Duration
	// Return is how long a better server, by the order of Servers, must have been ready before
	// connections move back to it: after this time and up to as much again, one after the other,
	// when nothing flows through them. 0 is never.
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
	if c.Dial == nil {
		c.Dial = (&net.Dialer{KeepAlive: 5 * time.Second}).DialContext
	}
	c.Servers = others(c.Servers, c.Listener.Addr())
	return &Balancer{config: c, backends: map[netip.AddrPort]*backend{}}
}

// others leaves the balancer itself out of the servers: who gives an agent its own port for a
// server's would have it forward each connection to itself, again and again.
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
		conn, err = b.config.Listener.Accept()
		if err != nil && isPassing(err) && ctx.Err() == nil {
			b.config.Logger.Warn("a connection cannot be accepted", "on", b.config.Listener.Addr(), "retryIn", acceptAgain, "err", err)
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

// isPassing tells whether accepting failed for a reason that goes by: the process or the machine
// has too many files open, or too little memory, or the client was gone already.
func isPassing(err error) bool {
	for _, passing := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED} {
		if errors.Is(err, passing) {
			return true
		}
	}
	return false
}

// discover has each known server watched.
func (b *Balancer) discover(ctx context.Context, watchers *sync.WaitGroup) {
	ticker := time.NewTicker(b.config.Interval)
	defer ticker.Stop()
	for {
		want := b.config.Servers()
		b.mu.Lock()
		for _, addr := range want {
			if b.backends[addr] == nil {
				watchCtx, stop := context.WithCancel(ctx)
				be := &backend{addr: addr, links: map[*link]struct{}{}, since: time.Now(), woken: make(chan struct{}, 1), anew: make(chan struct{}, 1), stop: stop}
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

// Living returns the servers that answer, ready or not, and those that connections run through.
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

// candidates returns the servers to try: the ready ones, those that say that they are not, and then
// the others, which may have recovered since they were asked; each in the order of Servers.
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

// dialTimeout is how long a server may take to accept a connection, where there are others to try.
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
