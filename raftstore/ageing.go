package raftstore

import (
	"context"
	"time"

	"github.com/barque/barque/raftstore/command"
	"github.com/barque/barque/raftstore/kv"
)

// looksPerAge is how often the leader looks at the revision while history reaches its age.
const looksPerAge = 10

// quietKey is written by the leader when nothing was written since its last look. The newest
// revision never leaves history, so a page of a list at it expires only when a newer one comes.
// Kubernetes' conformance suite waits for that. API servers on etcd write a key every five minutes.
const quietKey = kv.ReservedPrefix + "quiet"

// ageing compacts history that is older than Limits.HistoryAge, while this server leads. So history
// begins at the same revision on all servers.
//
// Time is this server's monotonic clock. A wall clock that jumps neither drops history nor keeps
// it. A new leader does not know how old history is, and counts from when it came to lead.
//
// After its last write an idle cluster gets one write of quietKey and one compaction, and then no
// more.
type ageing struct {
	looked time.Time
	marks  []mark // oldest first, each of another revision
}

// mark is a revision that was the newest one at some time. All older ones had been replaced then.
type mark struct {
	revision uint64
	at       time.Time
}

// look marks the newest revision, and has history compacted to the newest mark that is old enough.
func (a *ageing) look(ctx context.Context, s *Store, term uint64) {
	now, age := time.Now(), s.limits.HistoryAge
	if now.Sub(a.looked) < age/looksPerAge {
		return
	}
	a.looked = now
	view, compacted := s.state.Latest(), s.state.Compacted()
	if n := len(a.marks); n == 0 || a.marks[n-1].revision != view.Revision() {
		a.marks = append(a.marks, mark{view.Revision(), now})
	} else if quiet, _ := view.Get(quietKey); quiet.ModRevision != view.Revision() && view.Revision() > compacted {
		put := Txn{Ops: []Op{{Kind: Put, Key: quietKey}}, Term: term}
		s.keepTidy(ctx, &command.Request{Kind: command.KindTxn, Txn: put})
	}
	for len(a.marks) > 1 && now.Sub(a.marks[1].at) >= age {
		a.marks = a.marks[1:]
	}
	if oldest := a.marks[0]; now.Sub(oldest.at) >= age && oldest.revision > compacted {
		s.keepTidy(ctx, &command.Request{Kind: command.KindCompact, Revision: oldest.revision})
	}
}

// keepTidy proposes a request. When that fails, the next look does it again.
func (s *Store) keepTidy(ctx context.Context, req *command.Request) {
	outcome, err := s.consensus.Propose(ctx, req)
	if err != nil || outcome.Code != command.Applied {
		s.logger.Debug("history waits for its next turn", "outcome", outcome.Code, "err", err)
	}
}
