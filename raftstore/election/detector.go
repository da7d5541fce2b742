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
// sooner here:
//
//	heard ──nothing for Timeouts.Silence, nor answers to pings──▶ in doubt ──a quorum hears nothing either──▶ lost
//	  ▲                                                              │
//	  └────────────────────────any sign of life──────────────────────┘
//
// What keeps a leader that lives on a busy machine:
//
//   - Any message from the leader to Raft, or over the connection for calls, is a sign of life. The
//     goroutine that reads that connection answers pings. Word from others does not count.
//   - Time counts only while this server runs: in ticks of its own clock, where a late tick counts
//     once. Servers that wait for the same CPU lose count together.
//   - A leader that was silent for a while and came back is allowed three times that, for some
//     minutes, but no more than Raft allows anyway. So is its successor, when the leader was
//     deposed for its silence and is heard again soon after: it was slow, and not gone. A server
//     that was partitioned itself ignores the sample: it heard nothing for much longer than its
//     limit.
//   - A quorum, the leader not counted, must hear nothing, each for nearly as long as it allows the
//     leader itself.
//
// When it is lost, things go as when its process has died: see lostleader.go.

const (
	// shareTicks is the silence, in ticks, after which a server agrees with one that asks. It is
	// less than the server's own limit: servers do not tick at the same time.
	shareTicks = 3
	// allowance is how many times its longest recent silence a leader may be silent.
	allowance = 3
	// afterTicks is for how many ticks a deposed leader is listened to.
	afterTicks = 2 * group.SilenceTicks
	// allowanceLasts is for how long a silence is remembered.
	allowanceLasts = 5 * time.Minute
	// lateTicks is for how many ticks beyond its limit a silence makes this server campaign. Then
	// it is left to Raft: most likely this server is the partitioned one.
	lateTicks = 4 * group.SilenceTicks
)

// detector is how this server hears its leader.
type detector struct {
	most int // ticks that no limit exceeds: Raft does not wait for longer

	mu     sync.Mutex
	leader raft.ServerID // the one that is listened to; empty: none
	silent int           // ticks since the last sign of life
	given  bool          // whether Raft has given the leader up in this silence
	// pauses are the recent silences that ended with a sign of life, none shorter than one after
	// it. They belong to these machines, and not to one leader.
	pauses []pause
}

// pause is a silence that ended.
type pause struct {
	ticks int
	ended time.Time
}

func newDetector(t group.Timeouts) *detector {
	d := new(detector)
	if every := t.Tick(); every > 0 {
		d.most = max(group.SilenceTicks, int(2*t.Heartbeat/every))
	}
	return d
}

// sample is what was heard of the leader in one tick.
type sample struct {
	life bool // any sign of it
	led  bool // whether Raft takes it for the leader
}

// attend begins to listen to a leader.
func (d *detector) attend(leader raft.ServerID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.leader, d.silent, d.given = leader, 0, false
}

// sample takes the signs of life since the last tick, and returns for how many ticks there was
// none.
func (d *detector) sample(heard sample) (silent int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !heard.life {
		d.silent++
		d.given = d.given || !heard.led
		return d.silent
	}
	// Else the leader was not slow: this server was partitioned, say, or a server has campaigned.
	if !d.given && d.doubtsLocked(d.silent) {
		d.remember(d.silent)
	}
	d.silent, d.given = 0, false
	return 0
}

// remember remembers a silence that ended.
func (d *detector) remember(ticks int) {
	if ticks < shareTicks { // so much is normal
		return
	}
	for len(d.pauses) > 0 && d.pauses[len(d.pauses)-1].ticks <= ticks {
		d.pauses = d.pauses[:len(d.pauses)-1]
	}
	d.pauses = append(d.pauses, pause{ticks, time.Now()})
}

// silence returns for how many ticks the leader has been silent.
func (d *detector) silence() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.silent
}

// doubts tells whether this server acts on a silence of so many ticks, or agrees with a server that
// does. After a longer one it is this server that is partitioned.
func (d *detector) doubts(silent int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.doubtsLocked(silent)
}

func (d *detector) doubtsLocked(silent int) bool { return silent <= d.limitLocked()+lateTicks }

// deposed remembers that a live leader was given up after so many ticks of silence.
func (d *detector) deposed(silent int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.remember(silent)
}

// limit returns after how many ticks of silence the leader is in doubt.
func (d *detector) limit() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.limitLocked()
}

func (d *detector) limitLocked() int {
	for len(d.pauses) > 0 && time.Since(d.pauses[0].ended) >= allowanceLasts {
		d.pauses = d.pauses[1:]
	}
	if len(d.pauses) == 0 {
		return group.SilenceTicks
	}
	return min(allowance*(d.pauses[0].ticks+1), d.most) // it was silent in parts of the ticks before and after, too
}

// misses tells whether the silence of the leader has nearly reached this server's limit.
func (d *detector) misses(leader raft.ServerID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.leader == leader && d.silent >= d.limitLocked()-(group.SilenceTicks-shareTicks)
}

// listen finds out when the leader falls silent. It ends with leading, which ends when another
// leader is known. listenAfter then ends with ctx.
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
			// A longer silence is not why it was deposed: this server was partitioned, say.
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

// listenAfter finds out whether a leader that was deposed for its silence was alive: whether
// anything still comes over the connection that this server had with it. A dead process leaves
// none.
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
			e.opts.Logger.Warn("the leader before this one was alive and only silent: leaders may be silent for longer from now on", "before", leader,
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

// signsOfLife finds signs of life of a leader since the last sample.
type signsOfLife struct {
	contact func() time.Time // when Raft last heard from the leader, or voted for another server
	leads   func() bool      // whether Raft knows the leader; it forgets it before it votes
	client  *rpc.Client

	last time.Time
	link *rpc.Link
	read int64 // of the link: link.Heard
}

// heard returns the sample, and pings. It pings each time, so that at most one tick of a silence
// goes uncounted.
func (s *signsOfLife) heard() (h sample) {
	at := s.contact()
	h.led = s.leads() // asked second: Raft forgets the leader before it votes
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
