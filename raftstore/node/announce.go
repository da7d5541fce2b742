package node

import (
	"context"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/fsm"
)

const (
	// entriesFollow is the time between two entries below which another one is expected, and
	// announcePause how long it is expected.
	entriesFollow = 3 * time.Millisecond
	announcePause = time.Millisecond
)

// announce tells the followers what is committed as soon as nothing more is on its way to them.
//
// Raft tells it with the next entry, or after tens of milliseconds when there is none. A watcher on
// a follower, and a reader who has just written, would wait for that. So when the newest entry in
// the log is applied, the leader sends what Raft would send then: no entries, the place of the
// newest one, and that it is committed. Each of these facts stays true for ever, so a message that
// comes late does no harm, and one that is lost is made good by Raft's own.
//
// While one entry follows the other, the next one tells it almost as soon, and two messages more
// for each would slow all of them down. So then it is told when no entry has followed for a moment.
//
// It ends with the tenure.
func (n *Node) announce(ctx context.Context, term uint64) {
	busy := make(map[raft.ServerID]chan struct{}) // a token: one message at a time to each server
	at, last := n.fsm.Applied(), time.Time{}
	for {
		if n.fsm.Waiter().Wait(ctx, at.Index+1) != nil {
			return
		}
		if now := time.Now(); now.Sub(last) < entriesFollow {
			select {
			case <-time.After(announcePause):
			case <-ctx.Done():
				return
			}
		}
		last = time.Now()
		newest := n.fsm.Applied() // of this turn: the goroutines below read it
		at = newest
		if at.Index < n.raft.LastIndex() {
			continue // the next entry carries it
		}
		for _, s := range n.raft.GetConfiguration().Configuration().Servers {
			if string(s.ID) == n.id.ServerID {
				continue
			}
			slot, ok := busy[s.ID]
			if !ok {
				slot = make(chan struct{}, 1)
				busy[s.ID] = slot
			}
			select {
			case slot <- struct{}{}:
			default:
				continue
			}
			n.offices.Go(func() { // ends with the answer, or after the transport's timeout
				defer func() { <-slot }()
				n.announceTo(s, newest, term)
			})
		}
	}
}

func (n *Node) announceTo(s raft.Server, newest fsm.Position, term uint64) {
	err := n.transport.AppendEntries(s.ID, s.Address, &raft.AppendEntriesRequest{
		RPCHeader: n.rpcHeader(), Term: term,
		PrevLogEntry: newest.Index, PrevLogTerm: newest.Term, LeaderCommitIndex: newest.Index,
	}, &raft.AppendEntriesResponse{})
	if err != nil {
		n.cfg.Logger.Debug("a server did not hear what is committed", "server", s.ID, "err", err)
	}
}
