package addresses

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/barque/barque/edge/announce"
	"github.com/barque/barque/edge/hold"
	"github.com/barque/barque/internal/lifecycle"
)

// Agent is an agent's part.
type Agent struct {
	Own []netip.Addr // its addresses
	// Servers returns the addresses of all servers, and TLS how to call them.
	Servers   func() []netip.AddrPort
	TLS       func() *tls.Config
	Conflicts *Conflicts
	Logger    *slog.Logger
}

// Start starts what answers for addresses of Services. It stops before gossip does, which
// liveness.Processes relies on.
func (a *Agent) Start(ctx context.Context, stack *lifecycle.Stack) error {
	holder := hold.NewHolder(hold.Boot)
	node := hold.NewNode(
		hold.NodeConfig{Holder: holder, Dial: a.dial, Clock: hold.Boot, Pause: agentPause, Logger: a.Logger})
	announcer := announce.New(
		announce.Config{Holder: holder, Own: a.Own, Conflict: a.Conflicts.note, Logger: a.Logger})
	for _, c := range announcer.Collectors() {
		if err := legacyregistry.Registerer().Register(c); err != nil {
			return err
		}
	}
	return stack.Start(ctx, lifecycle.Component{Name: "addresses", Run: func(ctx context.Context) error {
		return lifecycle.All(ctx, node.Run, announcer.Run)
	}})
}

// agentPause lies between an agent's attempts to find the leader. Each costs a handshake with each
// server, and all agents look for a new leader at the same time.
const agentPause = 200 * time.Millisecond

// dial asks all servers for a session. The leader gives one.
func (a *Agent) dial(ctx context.Context) (hold.Link, <-chan struct{}, error) {
	at, link, err := a.findLeader(ctx, netip.AddrPort{})
	if err != nil {
		return nil, nil, err
	}
	w := &waryLink{Link: link, sent: make(chan struct{}, 1), heard: make(chan struct{}, 1), closed: make(chan struct{})}
	over := make(chan struct{})
	go func() { // ends with the link
		if w.watch(func() bool { return a.leadsElsewhere(ctx, at) }) {
			close(over)
		}
	}()
	return w, over, nil
}

// findLeader asks all servers but one, at the same time, and returns the first session.
func (a *Agent) findLeader(ctx context.Context, but netip.AddrPort) (netip.AddrPort, hold.Link, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		at   netip.AddrPort
		link hold.Link
		err  error
	}
	servers := a.Servers()
	results := make(chan result, len(servers))
	asked := 0
	for _, at := range servers {
		if at == but {
			continue
		}
		asked++
		go func() { // ends with ctx, or with Dial's patience
			link, err := hold.Dial(ctx, at, a.TLS())
			results <- result{at, link, err}
		}()
	}
	var errs []error
	for ; asked > 0; asked-- {
		r := <-results
		if r.err != nil {
			errs = append(errs, r.err)
			continue
		}
		go func() { // a second one, while leadership changes, is not used
			for asked--; asked > 0; asked-- {
				if other := <-results; other.err == nil {
					other.link.Close()
				}
			}
		}()
		return r.at, r.link, nil
	}
	return netip.AddrPort{}, nil, fmt.Errorf("no server gives a session for addresses: %w", errors.Join(errs...))
}

// leadsElsewhere reports whether another server than the one at the address leads, as that or a
// third one says.
func (a *Agent) leadsElsewhere(ctx context.Context, at netip.AddrPort) bool {
	_, link, err := a.findLeader(ctx, at)
	if err == nil {
		link.Close()
		return true
	}
	elsewhere, ok := errors.AsType[*hold.ElsewhereError](err)
	return ok && elsewhere.Leader.IsValid() && elsewhere.Leader != at
}

// leaderPatience is how long a leader may take to answer before the other servers are asked who
// leads.
const leaderPatience = 600 * time.Millisecond

// waryLink asks the other servers when the leader takes long to answer: it may be dead, and the
// agent hears of another leader from nobody else.
type waryLink struct {
	hold.Link
	sent, heard chan struct{} // hold a token
	once        sync.Once
	closed      chan struct{}
}

// Send implements hold.Link.
func (w *waryLink) Send(m hold.Message) error {
	poke(w.sent)
	return w.Link.Send(m)
}

// Receive implements hold.Link.
func (w *waryLink) Receive() (hold.Message, error) {
	m, err := w.Link.Receive()
	if err == nil {
		poke(w.heard)
	}
	return m, err
}

// Close implements hold.Link.
func (w *waryLink) Close() error {
	w.once.Do(func() { close(w.closed) })
	return w.Link.Close()
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// watch returns true when an answer is missing and another server leads, and false at the end.
func (w *waryLink) watch(elsewhere func() bool) bool {
	for {
		select {
		case <-w.sent:
		case <-w.closed:
			return false
		}
		for waits := true; waits; {
			timer := time.NewTimer(leaderPatience)
			select {
			case <-w.heard:
				waits = false
			case <-w.closed:
				timer.Stop()
				return false
			case <-timer.C:
				if elsewhere() {
					return true
				}
			}
			timer.Stop()
		}
	}
}
