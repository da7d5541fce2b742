// Package pulse detects within two seconds which nodes do not answer this server.
//
// Gossip finds a dead node by probes between random members. Its cost per member does not grow with
// the cluster, but the time until the first probe has no useful bound. With a thousand members, one
// death in fifty is noticed only after four seconds, and then suspicion takes as long again on
// purpose. For detection within a few seconds, each server probes every node once a second. That is
// one UDP packet and one back, a thousand a second for a thousand nodes. All servers probe, so that
// a new leader knows the state at once.
//
// A node whose answer is missing is probed five times a second, each time with two packets. After
// Misses missing answers in a row it is silent, since the first missed probe. Occasional lost
// packets make no node silent. Neither does a pause of the probing server, because one answer ends
// the count. The result is evidence: its user confirms it by another path before acting.
package pulse

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"
)

// Config of a Pulse. Times that are zero get their defaults.
type Config struct {
	// Nodes returns the names of the nodes to probe, and Changed a channel that is closed when they
	// change.
	Nodes   func() []string
	Changed func() <-chan struct{}
	// Ask probes one node and returns nil if it has answered. It takes a fraction of a second at
	// most, and little more than a round trip with an answer.
	Ask func(node string) error
	// Every is how often a node is asked that answers. Default 1 s.
	Every time.Duration
	// Again is how often one is asked that does not. Default 200 ms.
	Again time.Duration
	// Misses is how many answers in a row are missing when a node is called silent. Default 5.
	Misses int
	Logger *slog.Logger
}

// calmAfter is after how long a silent node is asked like any other.
const calmAfter = time.Minute

// Pulse asks nodes. Make it with New and run it once.
type Pulse struct {
	config Config

	mu      sync.Mutex
	heard   map[string]time.Time
	silent  map[string]time.Time
	changed chan struct{} // closed and replaced with silent
}

// New returns a Pulse that probes no node yet.
func New(c Config) *Pulse {
	if c.Every == 0 {
		c.Every = time.Second
	}
	if c.Again == 0 {
		c.Again = 200 * time.Millisecond
	}
	if c.Misses == 0 {
		c.Misses = 5
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Pulse{config: c, heard: map[string]time.Time{}, silent: map[string]time.Time{},
		changed: make(chan struct{})}
}

// Silent reports whether a node does not answer, and since when: the time of its first unanswered
// probe, by this server's clock.
func (p *Pulse) Silent(node string) (since time.Time, silent bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	since, silent = p.silent[node]
	return since, silent
}

// Heard returns the time of a node's last answer; zero without one, or if the node is not probed
// any more.
func (p *Pulse) Heard(node string) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.heard[node]
}

// Changed returns a channel that is closed when a node falls silent or answers again.
func (p *Pulse) Changed() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changed
}

// Run probes until ctx ends, and waits for running probes.
func (p *Pulse) Run(ctx context.Context) error {
	var asking sync.WaitGroup
	defer asking.Wait()
	followed := map[string]context.CancelFunc{}
	defer func() {
		for _, stop := range followed {
			stop()
		}
	}()
	for {
		changed := p.config.Changed()
		wanted := map[string]bool{}
		for _, node := range p.config.Nodes() {
			wanted[node] = true
			if followed[node] == nil {
				following, stop := context.WithCancel(ctx)
				followed[node] = stop
				asking.Go(func() { p.follow(following, node) })
			}
		}
		for node, stop := range followed {
			if !wanted[node] {
				stop()
				delete(followed, node)
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// follow asks one node. The first question comes at any time within the period, so that not all are
// asked at the same moment.
func (p *Pulse) follow(ctx context.Context, node string) {
	timer := time.NewTimer(rand.N(p.config.Every))
	defer timer.Stop()
	defer p.forget(node)
	misses, since := 0, time.Time{}
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		asked := time.Now()
		wait := p.config.Every
		if err := p.ask(node, misses > 0); err == nil {
			p.answers(node)
			misses = 0
		} else {
			if misses++; misses == 1 {
				since = asked
			}
			if misses == p.config.Misses {
				p.falls(node, since, err)
			}
			if asked.Sub(since) < calmAfter {
				wait = p.config.Again
			}
		}
		timer.Reset(max(0, wait-time.Since(asked)))
	}
}

// ask asks a node once, or twice at the same time: then one answer is enough.
func (p *Pulse) ask(node string, twice bool) error {
	if !twice {
		return p.config.Ask(node)
	}
	answers := make(chan error, 2)
	for range 2 {
		go func() { answers <- p.config.Ask(node) }() // ends in a fraction of a second; ask waits for both
	}
	first, second := <-answers, <-answers
	if first == nil {
		return nil
	}
	return second
}

func (p *Pulse) falls(node string, since time.Time, err error) {
	p.config.Logger.Warn("a node does not answer", "node", node, "asked", time.Since(since).Round(time.Millisecond),
		"err", err)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.silent[node] = since
	p.publish()
}

func (p *Pulse) answers(node string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.heard[node] = time.Now()
	if since, silent := p.silent[node]; silent {
		p.config.Logger.Info("a node answers again", "node", node, "after", time.Since(since).Round(time.Millisecond))
		delete(p.silent, node)
		p.publish()
	}
}

// forget drops a node's state.
func (p *Pulse) forget(node string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.heard, node)
	if _, silent := p.silent[node]; silent {
		delete(p.silent, node)
		p.publish()
	}
}

// publish is called with the lock held.
func (p *Pulse) publish() {
	close(p.changed)
	p.changed = make(chan struct{})
}
