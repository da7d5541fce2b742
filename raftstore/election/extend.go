package election

import (
	"time"

	"github.com/hashicorp/raft"
)

// A server that is short of CPU hears late, answers late, and its timers end late. Extension is by
// how much its time-outs are extended for that: by its own scheduling delay or by the leader's last
// reported one. It applies to
//
//   - the silence after which the leader is in doubt, and the time without a leader, in ticks;
//   - the time for answers to a question;
//   - Raft's own time-outs, by which it gives a leader up, and repeats an election.
//
// A leader's heartbeats stay as they are: Raft sends ten in its time-out. So the time-outs of a
// leader are never extended. That of its lease is: see raftfix.Lease.

// extend extends all limits for a leader; empty: none is known. Detect calls it in each tick.
func (e *Elector) extend(leader raft.ServerID) {
	extension := e.server.Extension(string(leader))
	ticks := int(extension / e.opts.Timeouts.Tick())
	e.silence.extend(ticks)
	e.absence.extend(ticks)
	e.extendRaft(extension)
}

// extendRaft gives Raft the time-outs that it should have.
func (e *Elector) extendRaft(extension time.Duration) {
	base := e.opts.Timeouts.Heartbeat
	err := e.raft.Reload(func(c *raft.ReloadableConfig) {
		c.HeartbeatTimeout = raftHeartbeat(c.HeartbeatTimeout, base, extension, e.raft.State() == raft.Leader,
			time.Since(e.raft.LastContact()))
		c.ElectionTimeout = max(e.opts.Timeouts.Election, base) + c.HeartbeatTimeout - base
	})
	if err != nil {
		e.opts.Logger.Warn("the time-outs of Raft cannot be changed", "extension", extension, "err", err)
	}
}

// raftHeartbeat returns Raft's heartbeat time-out. now is the present one, base the ordinary one,
// and heard how long ago the leader was heard.
//
// Raft looks at once for a leader when the time-out becomes shorter. So it becomes shorter only
// while a leader is heard; else a server would campaign for no other reason.
func raftHeartbeat(now, base, extension time.Duration, leads bool, heard time.Duration) time.Duration {
	want := base + extension
	if leads {
		want = base
	}
	switch step := base / 4; {
	case want < now && !leads && heard >= base/2:
		return now
	case want != base && want-now < step && now-want < step:
		return now
	default:
		return want
	}
}
