package node

import (
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// Whether a cluster had a quorum when one of its servers was recovered is what decides which of the two goes on: see
// outlived.go. So each server keeps a record of when it was in touch with a leader, which nobody is without a quorum, and
// keeps it on its disk, where it outlives a restart of all: see presencefile.go. It is in wall time, because it is compared with
// what another process says.
//
//	in touch ──no leader, or no look at the clock, for leaderlessAfter, or the clock was set──▶ out of touch, from the last look on
//	    ▲                                                                                          │
//	    └───────────────────────────a leader: a new span begins────────────────────────────────────┘
//
// A look that comes late by the wall clock and by the one that nobody sets means that the process was suspended, and certainly
// was not in touch. Where the two do not agree, the wall clock was set, or the machine slept: then it is not known which of its times
// are right, those from before or those from after, and nothing is certain that is not by both.

const (
	// presenceLook is how often a server looks whether it is in touch, and presenceWrite how often it writes that down.
	presenceLook  = time.Second
	presenceWrite = 5 * time.Second
	// presenceSlack is by how much the moment may be wrong that another server asks for, and how late one notices that a leader is
	// gone. A clock that is set by less was not set.
	presenceSlack = 2 * time.Second
	// presenceKept is how many spans are kept.
	presenceKept = 64
)

// instant is what the clocks of this machine say at a moment.
type instant struct {
	wall time.Time
	ran  time.Duration // since the record was opened. Nobody sets that clock; it stands still while the machine sleeps
}

// clocks returns how to read them, from now on.
func clocks(wall func() time.Time) func() instant {
	began := time.Now()
	return func() instant {
		for {
			before := time.Since(began)
			now := instant{wall().Round(0).UTC(), time.Since(began)}
			if now.ran-before < presenceSlack/2 { // else the process was suspended between the two
				return now
			}
		}
	}
}

// ago is how long ago something was. What several clocks say of that need not agree: it is between the two.
type ago struct {
	Least time.Duration `json:"least"` // nanoseconds, never negative
	Most  time.Duration `json:"most"`
}

// sound tells whether it makes sense, as another server sends it.
func (a ago) sound() bool { return 0 <= a.Least && a.Least <= a.Most }

// span is a time in which a server was in touch with leaders, with no longer between two than an election takes.
type span struct {
	Since time.Time `json:"since"`
	Until time.Time `json:"until"`
	// Over tells that it ended then. Else the process did, or the machine, up to presenceWrite and a look after Until.
	Over bool `json:"over,omitempty"`
	// Back and Ahead are by how much the clock was set back and forward since: by the clock as it is now, the span may have been
	// earlier, or later, by as much. Nanoseconds.
	Back  time.Duration `json:"back,omitempty"`
	Ahead time.Duration `json:"ahead,omitempty"`

	own bool // of this process. What was set since is no matter of the clock that an earlier one had: it may have been another boot
}

// presence is when this server was in touch with a leader.
type presence struct {
	file    presenceFile
	cluster string
	logger  *slog.Logger
	clock   func() instant // called with the lock only: who reads it first notes first what it said

	mu      sync.Mutex // not held while the disk is waited for
	spans   []span     // oldest first
	open    bool       // the last one goes on
	seen    time.Duration
	began   time.Time // when the record was opened, as the wall clock has it now; zero before the first look
	changes int       // how many there were that have to be written down at once

	pen   chan struct{} // held by whoever writes, and by close for good
	ended chan struct{} // closed when nothing is written any more
	ink   ink           // with the pen
}

// word is what a server knows of whether it was in touch with a leader at some time.
type word string

const (
	wasInTouch  word = "yes"
	wasNot      word = "no"
	unknownWord word = "" // as from a program that does not know the question
)

// openPresence reads the record. One that cannot be read, or is of another cluster, tells nothing.
func openPresence(cfg *Config, cluster string) (*presence, error) {
	wall := cfg.Now
	if wall == nil {
		wall = time.Now
	}
	p := &presence{
		file: presenceIn(cfg), cluster: cluster, logger: cfg.Logger, clock: clocks(wall),
		pen: make(chan struct{}, 1), ended: make(chan struct{}),
	}
	var err error
	p.spans, err = p.file.read(cluster, cfg.Logger)
	return p, err
}

// look takes note of whether a leader is known.
func (p *presence) look(led bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	if !led {
		return
	}
	if !p.open {
		p.spans = append(p.spans, span{Since: now.wall, Until: now.wall, own: true})
		p.spans = slices.Delete(p.spans, 0, max(0, len(p.spans)-presenceKept))
		p.open = true
		p.changes++
	}
	p.seen = now.ran
	if last := &p.spans[len(p.spans)-1]; now.wall.After(last.Until) { // a little earlier after a small step back
		last.Until = now.wall
	}
}

// now reads the clocks and ends the span when it was not looked at for too long, or when the wall clock was set. Nothing else does. It is
// called with the lock held.
func (p *presence) now() instant {
	now := p.clock()
	began := now.wall.Add(-now.ran)
	if p.began.IsZero() {
		p.began = began
		p.doubtFuture(now.wall)
	}
	if set := began.Sub(p.began); set.Abs() > presenceSlack {
		p.began = began
		p.doubtAll(set)
		p.doubtFuture(now.wall)
	}
	if p.open && now.ran-p.seen >= leaderlessAfter {
		p.end()
	}
	return now
}

// doubtAll is for a wall clock that was set, and is called with the lock held.
func (p *presence) doubtAll(set time.Duration) {
	if p.open {
		p.end()
	}
	for i := range p.spans {
		if s := &p.spans[i]; s.own {
			s.Back, s.Ahead = s.Back+max(0, -set), s.Ahead+max(0, set)
			p.changes++
		}
	}
}

// doubtFuture is for spans that end after now: the clock was ahead when they were recorded. It is called with the lock held.
func (p *presence) doubtFuture(now time.Time) {
	for i := range p.spans {
		if s := &p.spans[i]; s.Until.Add(-s.Back - presenceSlack).After(now) {
			s.Back = s.Until.Sub(now)
			p.changes++
		}
	}
}

// end is called with the lock held.
func (p *presence) end() {
	p.spans[len(p.spans)-1].Over = true
	p.open = false
	p.changes++
}

// at tells what is known of a moment. It says no more than what is certain of all the time in which that may have been.
func (p *presence) at(when ago) word {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	from, to := now.wall.Add(-when.Most), now.wall.Add(-when.Least)
	if !when.sound() || len(p.spans) == 0 || from.Before(p.spans[0].Since.Add(-p.spans[0].Back-presenceSlack)) {
		return unknownWord // before the record
	}
	answer := wasNot
	for i, s := range p.spans {
		if !from.Before(s.Since.Add(s.Ahead+presenceSlack)) && !to.After(s.Until.Add(-s.Back-presenceSlack)) {
			return wasInTouch
		}
		end := s.Until.Add(s.Ahead + presenceSlack)
		if !s.Over && (i < len(p.spans)-1 || !p.open) {
			end = end.Add(presenceWrite + presenceLook)
		}
		if !to.Before(s.Since.Add(-s.Back-presenceSlack)) && !from.After(end) {
			answer = unknownWord
		}
	}
	if to.After(now.wall.Add(-presenceSlack)) {
		return unknownWord // it is about now: who asks again learns it
	}
	return answer
}

// goesOn tells whether this server has been in touch without a break since before a moment, certainly: at says so, too, once a little
// time has passed.
func (p *presence) goesOn(when ago) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	return when.sound() && p.open && !p.spans[len(p.spans)-1].Since.Add(presenceSlack).After(now.wall.Add(-when.Most))
}

// keepPresence keeps the record until the node ends.
func (n *Node) keepPresence() {
	ticker := time.NewTicker(presenceLook)
	defer ticker.Stop()
	for {
		n.notePresence()
		n.presence.tryWrite()
		select {
		case <-n.ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (n *Node) notePresence() { n.presence.look(n.isLed()) }

// isLed tells whether this server is in touch with a leader. One that holds back is not.
func (n *Node) isLed() bool {
	_, leader := n.leaderWithID()
	return leader != raft.ServerID("") && n.heirs.held.Load() == nil
}
