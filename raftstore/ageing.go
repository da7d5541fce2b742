package raftstore

import (
	"context"
	"time"

	"github.com/barque/barque/raftstore/command"
	"github.com/barque/barque/raftstore/kv"
)

// looksPerAge is how often the leader records the revision within the history's age.
const looksPerAge = 10

// quietKey is written by the leader if nothing was written since its last look. The newest revision
// never leaves history, so a page of a list at it only expires when a newer one comes. Kubernetes'
// conformance suite waits for that. API servers on etcd write a key every five minutes.
const quietKey = kv.ReservedPrefix + "quiet"

// ageing compacts history older than Limits.HistoryAge, while this server leads. So history begins
// at the same revision on all servers.
//
// Time is this server's monotonic clock. A jump of the wall clock neither drops history nor keeps
// it. A new leader does not know the age of history, and counts from the begin of its term.
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

// look records the newest revision, and compacts history up to the newest recorded one that is old
// enough.
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

// keepTidy proposes a request. After a failure the next look repeats it.
func (s *Store) keepTidy(ctx context.Context, req *command.Request) {
	outcome, err := s.consensus.Propose(ctx, req)
	if err != nil || outcome.Code != command.Applied {
		s.logger.Debug("history waits for its next turn", "outcome", outcome.Code, "err", err)
	}
}
