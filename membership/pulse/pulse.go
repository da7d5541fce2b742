// Package pulse knows within two seconds which nodes do not answer this server.
//
// Gossip finds a dead node by members that ask each other at random. That costs each of them the
// same in a cluster of any size, but the time until somebody happens to ask has no bound that is
// worth a promise: with a thousand members, one death in fifty is noticed only after four seconds,
// and then suspicion takes as long again on purpose. Where a node's death has to be known in a few
// seconds, each server asks every node itself, once a second: one packet of UDP and one back, a
// thousand a second for a thousand nodes. All servers do, so that one that begins to lead knows
// what the one before it knew.
//
// A node whose answer is missing is asked again five times a second, each time with two packets.
// When it has missed Misses answers in a row it is silent, since the first question that it did not
// answer: packets that are lost here and there make nobody silent, and neither does a pause of the
// asking server, whatever its length, because one answer ends the count. What this package says is
// evidence: whoever acts on it asks the node by another way first.
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
	// Nodes returns the names of those to ask, and Changed a channel that is closed when they
	// change.
	Nodes   func() []string
	Changed func() <-chan struct{}
	// Ask asks one node and returns nil when it has answered. It takes a fraction of a second at
	// most, and little more than a round trip when there is an answer.
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

// New returns a Pulse that asks nobody yet.
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
	return &Pulse{config: c, heard: map[string]time.Time{}, silent: map[string]time.Time{}, changed: make(chan struct{})}
}

// Silent reports whether a node does not answer, and since when: the time of the first question, by
// this server's clock, since which it has answered none.
func (p *Pulse) Silent(node string) (since time.Time, silent bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	since, silent = p.silent[node]
	return since, silent
}

// Heard is when a node last answered; zero when it has not, or is not asked any more.
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

// Run asks until ctx ends, and waits for what is under way.
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
	p.config.Logger.Warn("a node does not answer", "node", node, "asked", time.Since(since).Round(time.Millisecond), "err", err)
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

// forget drops what is known of a node.
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
