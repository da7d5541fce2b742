package election

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/rpc"
)

// A leader may fall silent without breaking a connection: its process is stopped, its machine hangs
// or has lost power, the network is cut. Raft finds that out after one to two times
// Timeouts.Heartbeat, which leaves room for a leader that is only short of CPU. It is found out
// sooner here, because more is known:
//
//	heard ──nothing for Timeouts.Silence, nor answers to pings──▶ in doubt ──a quorum hears nothing either──▶ lost
//	  ▲                                                              │
//	  └────────────────────────any sign of life──────────────────────┘
//
// What keeps a leader that lives on a busy machine:
//
//   - A sign of life is anything it says to Raft or over the connection for calls, where the
//     goroutine that reads answers a ping by itself. What others say is none.
//   - Time counts only while this server runs: by the ticks of its own clock, of which one that
//     comes late is one. Servers that wait for the same CPU lose count together.
//   - A leader that was silent for a good while and came back is allowed three times that, for some
//     minutes, but no more than Raft allows anyway. So is the next one when the one before was
//     deposed for its silence, and is heard again soon after: it was slow, and not gone. A server
//     that has heard nothing for much longer than it allows was cut off itself, and learns nothing
//     from that.
//   - A quorum, the leader not counted, must hear nothing, each for nearly as long as it allows the
//     leader itself.
//
// When it is lost, things go as when its process has died: see lostleader.go.

const (
	// shareTicks is after how many of them a server agrees with one who asks. So much less than its
	// own limit may be every server's: their ticks are not at the same time.
	shareTicks = 3
	// allowance is how many times as long as it has been silent before a leader may be silent.
	allowance = 3
	// afterTicks is for how many ticks a leader that fell silent is listened to after another one
	// leads.
	afterTicks = 2 * group.SilenceTicks
	// allowanceLasts is for how long that is remembered.
	allowanceLasts = 5 * time.Minute
	// lateTicks is for how many ticks behind its limit a silence is this server's to end. After
	// that it is Raft's to elect somebody, as when this server is the one that is cut off.
	lateTicks = 4 * group.SilenceTicks
)

// detector is how this server hears its leader.
type detector struct {
	most int // ticks that no limit exceeds: Raft does not wait for longer

	mu     sync.Mutex
	leader raft.ServerID // the one that is listened to; empty: none
	silent int           // ticks since the last sign of life
	given  bool          // whether Raft has given the leader up in this silence
	// pauses are the silences of late that ended with a sign of life, of which none was shorter
	// than one after it. They say something about these machines, and not about one leader.
	pauses []pause
}

// pause is a silence that ended.
type pause struct {
	ticks int
	ended time.Time
}

func newDetector(t group.Timeouts) *detector {
	e := new(detector)
	if every := t.Tick(); every > 0 {
		e.most = max(group.SilenceTicks, int(2*t.Heartbeat/every))
	}
	return e
}

// sample is what was heard of the leader in one tick.
type sample struct {
	life bool // any sign of it
	led  bool // whether Raft takes it for the leader
}

// attend begins to listen to a leader.
func (e *detector) attend(leader raft.ServerID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.leader, e.silent, e.given = leader, 0, false
}

// sample takes note of what was heard since the last tick, and returns for how many ticks there was
// no sign of life.
func (e *detector) sample(heard sample) (silent int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !heard.life {
		e.silent++
		e.given = e.given || !heard.led
		return e.silent
	}
	// Else it was no leader that is slow: this server was cut off, say, or somebody has stood for
	// election.
	if !e.given && e.doubtsLocked(e.silent) {
		e.remember(e.silent)
	}
	e.silent, e.given = 0, false
	return 0
}

// remember remembers a silence that ended.
func (e *detector) remember(ticks int) {
	if ticks < shareTicks { // so much is normal
		return
	}
	for len(e.pauses) > 0 && e.pauses[len(e.pauses)-1].ticks <= ticks {
		e.pauses = e.pauses[:len(e.pauses)-1]
	}
	e.pauses = append(e.pauses, pause{ticks, time.Now()})
}

// silence returns for how many ticks the leader has been silent.
func (e *detector) silence() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.silent
}

// doubts tells whether a silence is one that this server finds, or agrees to, and not one that
// lasts so long that it is this server which hears nobody.
func (e *detector) doubts(silent int) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.doubtsLocked(silent)
}

func (e *detector) doubtsLocked(silent int) bool { return silent <= e.limitLocked()+lateTicks }

// deposed takes note that a leader was alive that had been given up after so many ticks of silence.
func (e *detector) deposed(silent int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.remember(silent)
}

// limit returns after how many ticks of silence the leader is in doubt.
func (e *detector) limit() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.limitLocked()
}

func (e *detector) limitLocked() int {
	for len(e.pauses) > 0 && time.Since(e.pauses[0].ended) >= allowanceLasts {
		e.pauses = e.pauses[1:]
	}
	if len(e.pauses) == 0 {
		return group.SilenceTicks
	}
	return min(allowance*(e.pauses[0].ticks+1), e.most) // it was silent in a part of the ticks before and after, too
}

// misses tells whether this server, too, hears nothing of the leader, for nearly as long as it
// allows.
func (e *detector) misses(leader raft.ServerID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.leader == leader && e.silent >= e.limitLocked()-(group.SilenceTicks-shareTicks)
}

// listen finds out when the leader falls silent. It ends with leading, which does when
// another leader is known; what comes after that ends with ctx.
func (e *Elector) listen(ctx, leading context.Context, addr string, leader raft.ServerID) {
	every := e.opts.Timeouts.Tick()
	if every == 0 {
		return
	}
	e.detector.attend(leader)
	signs := signsOfLife{contact: e.raft.LastContact, leads: func() bool { return e.follows(leader) }, client: e.peers.At(addr)}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-leading.Done():
			// One that was not heard for longer was not deposed for that: this server was cut off,
			// say.
			if missed := e.detector.silence(); missed >= shareTicks && missed <= e.detector.limit()+group.SilenceTicks && signs.link != nil {
				e.after.Go(func() { e.listenAfter(ctx, signs.link, signs.read, every, missed, leader) }) // ends soon, or with ctx
			}
			return
		}
		if missed, limit := e.detector.sample(signs.heard()), e.detector.limit(); missed >= limit && e.detector.doubts(missed) {
			e.campaignFor(leading, leader, doubt{why: silent, turns: turns(missed-limit, group.SilenceTicks)})
		}
	}
}

// listenAfter finds out whether a leader was alive after all that was silent for some ticks and is
// none any more: whether anything comes over the connection that this server had with it then,
// which a process that dies does not leave behind.
func (e *Elector) listenAfter(ctx context.Context, link *rpc.Link, read int64, every time.Duration, missed int, leader raft.ServerID) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for range afterTicks {
		link.Ping()
		select {
		case <-ticker.C:
		case <-link.Done():
			return
		case <-ctx.Done():
			return
		}
		if missed++; link.Heard() != read {
			e.detector.deposed(missed)
			e.opts.Logger.Warn("the leader before this one was alive: it was only silent, and leaders are allowed more from now on", "before", leader,
				"silent", time.Duration(missed)*every, "allowed", time.Duration(e.detector.limit())*every, "for", allowanceLasts)
			return
		}
	}
}

// follows tells whether Raft takes a server for the leader.
func (e *Elector) follows(leader raft.ServerID) bool {
	_, id := e.leader()
	return id == leader
}

// signsOfLife looks for what was heard of a leader since it looked last.
type signsOfLife struct {
	contact func() time.Time // when Raft heard last from the leader, or gave somebody else its vote
	leads   func() bool      // whether Raft knows the leader, which it forgets before it gives anybody its vote
	client  *rpc.Client

	last time.Time
	link *rpc.Link
	read int64 // of the link: link.Heard
}

// heard tells what there is, and asks for a sign. It does so each time, so that no more than a tick
// of a silence goes uncounted.
func (s *signsOfLife) heard() (h sample) {
	at := s.contact()
	h.led = s.leads() // asked second: who has given a vote by then has forgotten the leader
	h.life = h.led && at.After(s.last)
	s.last = at
	l := s.client.Current()
	if l == nil {
		return h
	}
	if read := l.Heard(); l != s.link || read != s.read {
		s.link, s.read, h.life = l, read, true
	}
	l.Ping()
	return h
}
