package raftfix

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

const (
	// entriesFollow is the time between two entries below which another one is expected, and
	// broadcastPause how long it is expected.
	entriesFollow  = 3 * time.Millisecond
	broadcastPause = time.Millisecond
)

// CommitBroadcast sends the commit index to the followers as soon as no more entries are on their
// way.
//
// Raft sends it with the next entry, or after tens of milliseconds without one. A watcher on a
// follower, and a reader after a write, would wait for that. So when the newest entry in the log is
// applied, the leader sends Raft's next message at once: no entries, the position of the newest
// one, and the commit index. Each of these facts stays true forever. So a late message is harmless,
// and Raft's own message makes up for a lost one.
//
// In a stream of entries, the next one carries the index almost as soon, and two more messages for
// each would slow all of them down. So it is sent after a moment without an entry.
type CommitBroadcast struct {
	Raft      *raft.Raft
	Transport Transport
	// Header goes into each message. It has this server's ID.
	Header func() raft.RPCHeader
	// Applied is the newest entry that is applied, and AwaitApplied waits for one.
	Applied      func() (index, term uint64)
	AwaitApplied func(ctx context.Context, index uint64) error
	Logger       *slog.Logger
}

// Run sends the commit index while this server leads in the term. It ends with ctx, once the last
// messages are answered or have timed out.
func (b *CommitBroadcast) Run(ctx context.Context, term uint64) {
	var sending sync.WaitGroup
	defer sending.Wait()
	self := raft.ServerID(b.Header().ID)
	busy := make(map[raft.ServerID]chan struct{}) // a token: one message at a time to each server
	at, _ := b.Applied()
	var last time.Time
	for {
		if b.AwaitApplied(ctx, at+1) != nil {
			return
		}
		if now := time.Now(); now.Sub(last) < entriesFollow {
			select {
			case <-time.After(broadcastPause):
			case <-ctx.Done():
				return
			}
		}
		last = time.Now()
		index, of := b.Applied()
		at = index
		if index < b.Raft.LastIndex() {
			continue // the next entry carries it
		}
		for _, s := range b.Raft.GetConfiguration().Configuration().Servers {
			if s.ID == self {
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
			sending.Go(func() { // ends with the answer, or after the transport's timeout
				defer func() { <-slot }()
				b.send(s, term, index, of)
			})
		}
	}
}

// send reports to one server that the entry with the index, of that term, is committed.
func (b *CommitBroadcast) send(s raft.Server, term, index, of uint64) {
	err := b.Transport.AppendEntries(s.ID, s.Address, &raft.AppendEntriesRequest{
		RPCHeader: b.Header(), Term: term, PrevLogEntry: index, PrevLogTerm: of, LeaderCommitIndex: index,
	}, &raft.AppendEntriesResponse{})
	if err != nil {
		b.Logger.Debug("a server did not hear what is committed", "server", s.ID, "err", err)
	}
}
