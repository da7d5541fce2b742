package apiendpoints

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// How servers are asked whether they are ready.
const (
	// probeEvery lies between the ends of two questions to one server.
	probeEvery = 500 * time.Millisecond
	// probeTimeout bounds one. A server that does not know within 0.8 s says that it is not ready.
	probeTimeout = time.Second
	// silentAfter is the number of probes in a row without an answer that make a server not ready.
	silentAfter = 2
	// backAfter is the number of good answers in a row that bring it back, so that a flapping
	// server stays out.
	backAfter = 3
)

// health is the state of one server in this term.
//
//	unknown ──the first answer, or silentAfter questions without one──▶ ready, or not ready
//	ready ──it says no, it refuses connections, or silentAfter questions stay without an answer──▶ not ready
//	not ready ──backAfter good answers in a row──▶ ready
type health struct {
	known, ready bool
	good, bad    int // in a row
}

// after is the health after one more question, which err answers: nil is "ready".
func (h health) after(err error) health {
	if err == nil {
		h.good, h.bad = h.good+1, 0
		h.ready = h.ready || !h.known || h.good >= backAfter
		h.known = true
		return h
	}
	h.good, h.bad = 0, h.bad+1
	if unanswered(err) && h.bad < silentAfter {
		return h // one slow answer changes nothing; in a new term the last leader's endpoints stay
	}
	h.known, h.ready = true, false
	return h
}

// unanswered reports whether the failure may be slowness of the server or the network. Any other
// failure counts as an answer: clients would get it too.
func unanswered(err error) bool {
	var timeout net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}

// probers ask the servers, one goroutine for each, while a term lasts.
type probers struct {
	probe   func(ctx context.Context, server netip.AddrPort) error
	changed func() // called when the judgement of a server has changed
	logger  *slog.Logger
	running sync.WaitGroup

	mu      sync.Mutex
	servers map[netip.AddrPort]*probedServer
}

type probedServer struct {
	health health
	stop   context.CancelFunc
}

// follow sets the servers that are probed. New ones are probed at once. The probes end with ctx;
// the caller waits for running.
func (p *probers) follow(ctx context.Context, list []netip.AddrPort) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for addr, s := range p.servers {
		if !slices.Contains(list, addr) {
			s.stop()
			delete(p.servers, addr)
		}
	}
	for _, addr := range list {
		if p.servers[addr] != nil {
			continue
		}
		ctx, stop := context.WithCancel(ctx)
		s := &probedServer{stop: stop}
		p.servers[addr] = s
		p.running.Go(func() { p.ask(ctx, addr, s) })
	}
}

// ask probes one server repeatedly until ctx ends.
func (p *probers) ask(ctx context.Context, addr netip.AddrPort, s *probedServer) {
	for {
		probe, cancel := context.WithTimeout(ctx, probeTimeout)
		err := p.probe(probe, addr)
		cancel()
		if ctx.Err() != nil {
			return
		}
		p.mu.Lock()
		was := s.health
		s.health = was.after(err)
		now := s.health
		p.mu.Unlock()
		if was.known != now.known || was.ready != now.ready {
			p.tell(addr, was, now, err)
			p.changed()
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(probeEvery):
		}
	}
}

// tell logs a change of a server's readiness, except for the expected first one.
func (p *probers) tell(addr netip.AddrPort, was, now health, err error) {
	switch {
	case !now.ready:
		p.logger.Info("an API server is not ready: the kubernetes Service leaves it out", "server", addr, "reason", err)
	case was.known:
		p.logger.Info("an API server is ready", "server", addr)
	}
}

// ready returns the ready servers of the list, and the servers without a result yet.
func (p *probers) ready(list []netip.AddrPort) (ready, unknown []netip.AddrPort) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, addr := range list {
		switch s := p.servers[addr]; {
		case s == nil || !s.health.known:
			unknown = append(unknown, addr)
		case s.health.ready:
			ready = append(ready, addr)
		}
	}
	return ready, unknown
}
