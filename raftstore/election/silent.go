package election

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/rpc"
)

// Is the leader silent? It may be so without breaking a connection: its process is stopped, its
// machine hangs or has lost power, the network is cut. Raft finds that out after one to two times
// Timeouts.Heartbeat. It is found out sooner here:
//
//	heard ──nothing for Timeouts.Silence──▶ in doubt ──a quorum hears nothing either──▶ silent
//	  ▲                                        │
//	  └────────────any sign of life────────────┘
//
// The signs that keep a leader on a busy machine:
//
//   - Any message from the leader to Raft, or over the connection for calls, is a sign of life. The
//     goroutine that reads that connection answers pings. Word from others does not count.
//   - A leader that was silent for a while and came back is allowed three times that, for some
//     minutes, but no more than Raft allows anyway. So is its successor, when the leader was
//     deposed for its silence and is heard again soon after: it was slow, and not gone.
//   - A server that is short of CPU itself, or is told that the leader is, allows more: extend.go.
//   - A quorum, the leader not counted, must hear nothing, each for nearly as long as it allows the
//     leader itself.
//
// A server that was partitioned itself must not learn from that: it would find, and confirm, the
// next silence late. It ignores a silence much longer than its limit, and one in which Raft gave
// the leader up.

const (
	// allowance is how many times its longest recent silence a leader may be silent.
	allowance = 3
	// allowanceLasts is for how long a silence is remembered.
	allowanceLasts = 5 * time.Minute
	// afterTicks is for how many ticks a deposed leader is listened to.
	afterTicks = 2 * group.SilenceTicks
	// lateTicks is for how many ticks beyond its limit a silence counts. Then it is left to Raft:
	// most likely this server is the partitioned one.
	lateTicks = 4 * group.SilenceTicks
)

// silence is that of the leader.
type silence struct {
	most int // ticks that no pause allows more than: Raft does not wait for longer

	mu     sync.Mutex
	leader raft.ServerID // the last one known; empty: none yet
	ticks  int           // since the last sign of life
	extra  int           // ticks by which the limit is extended
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

func newSilence(t group.Timeouts) *silence {
	s := new(silence)
	if every := t.Tick(); every > 0 {
		s.most = max(group.SilenceTicks, int(2*t.Heartbeat/every))
	}
	return s
}

// extend extends the limit by so many ticks until it is called again.
func (s *silence) extend(ticks int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.extra = ticks
}

// tick takes the sample of a tick: the leader as Raft knows it, and whether there was a sign of
// life of the last one known. It reports whether it is time to ask.
func (s *silence) tick(leader raft.ServerID, life bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if life {
		if !s.given && s.ticks <= s.limit()+lateTicks {
			s.remember(s.ticks)
		}
		s.ticks, s.given = 0, false
		return false
	}
	s.ticks++
	s.given = s.given || leader == ""
	late := s.ticks - s.limit()
	return leader != "" && late >= 0 && late <= lateTicks
}

// follow begins with another leader. It returns for how many ticks the one before was silent, if
// that may be why it was deposed. After more this server was partitioned, say.
func (s *silence) follow(leader raft.ServerID) (before int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ticks >= shareTicks && s.ticks <= s.limit()+group.SilenceTicks {
		before = s.ticks
	}
	s.leader, s.ticks, s.given = leader, 0, false
	return before
}

// deposed remembers that a live leader was given up after so many ticks of silence. It returns how
// many are allowed from now on.
func (s *silence) deposed(ticks int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remember(ticks)
	return s.limit()
}

// remember remembers a silence that ended. It is called with mu held.
func (s *silence) remember(ticks int) {
	if ticks < shareTicks { // so much is normal
		return
	}
	for len(s.pauses) > 0 && s.pauses[len(s.pauses)-1].ticks <= ticks {
		s.pauses = s.pauses[:len(s.pauses)-1]
	}
	s.pauses = append(s.pauses, pause{ticks, time.Now()})
}

// limit returns after how many ticks of silence the leader is in doubt. It is called with mu held.
func (s *silence) limit() int {
	for len(s.pauses) > 0 && time.Since(s.pauses[0].ended) >= allowanceLasts {
		s.pauses = s.pauses[1:]
	}
	extended := group.SilenceTicks + s.extra
	if len(s.pauses) == 0 {
		return extended
	}
	// It was silent in parts of the ticks before and after, too.
	return max(extended, min(allowance*(s.pauses[0].ticks+1), s.most))
}

// misses reports whether the silence of the leader has nearly reached this server's limit.
func (s *silence) misses(leader raft.ServerID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leader == leader && s.ticks >= s.limit()-(group.SilenceTicks-shareTicks)
}

// signs are the last signs of life of the leader, and of the one before. Only Detect uses them.
type signs struct {
	leader  raft.Server // the last one known
	contact time.Time   // when Raft last heard from it, or voted for another server
	calls   lastRead

	before      raft.Server // the leader before
	beforeCalls lastRead
	silent      int // ticks of silence for which it was deposed; 0: it was not
	left        int // ticks for which it is still listened to
}

// lastRead is how far the connection for calls to a server was read.
type lastRead struct {
	link *rpc.Link
	read int64
}

// hears reports whether there was any message since the last call, and pings. Each tick does, so
// that at most one of a silence goes uncounted.
func (r *lastRead) hears(link *rpc.Link) bool {
	if link == nil {
		return false
	}
	was := *r
	*r = lastRead{link, link.Heard()}
	link.Ping()
	return *r != was
}

// listen returns the leader as Raft knows it, and whether there was a sign of life of the last one
// known since the last tick.
func (e *Elector) listen(s *signs) (leader raft.ServerID, life bool) {
	contact := e.raft.LastContact()
	addr, leader := e.leader() // asked second: Raft forgets the leader before it votes
	if leader != "" {
		if leader != s.leader.ID {
			s.before, s.beforeCalls, s.calls = s.leader, s.calls, lastRead{}
			s.silent, s.left = e.silence.follow(leader), afterTicks
		}
		s.leader = raft.Server{ID: leader, Address: addr}
		life = leader == e.opts.ID || contact.After(s.contact)
	}
	s.contact = contact
	if s.leader.ID != "" && s.leader.ID != e.opts.ID {
		life = s.calls.hears(e.peers.At(string(s.leader.Address)).Current()) || life
	}
	e.listenToFormer(s)
	return leader, life
}

// listenToFormer finds out whether the leader before was alive when it was deposed for its silence:
// whether anything still comes over the connection that this server had with it. A dead process
// leaves none.
func (e *Elector) listenToFormer(s *signs) {
	if s.silent == 0 || s.left == 0 {
		return
	}
	s.silent++
	s.left--
	if s.beforeCalls.hears(s.beforeCalls.link) {
		s.left = 0
		tick, allowed := e.opts.Timeouts.Tick(), e.silence.deposed(s.silent)
		e.opts.Logger.Warn("the leader before this one was alive and only silent: "+
			"leaders may be silent for longer from now on", "before", s.before.ID,
			"silent", time.Duration(s.silent)*tick, "allowed", time.Duration(allowed)*tick, "for", allowanceLasts)
	}
}
