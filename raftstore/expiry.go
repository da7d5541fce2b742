package raftstore

import (
	"context"
	"time"

	"github.com/barque/barque/raftstore/command"
	"github.com/barque/barque/raftstore/kv"
)

const (
	expireEvery = time.Second // how late an item may be deleted
	expireBatch = 256         // items deleted without a look at the clock
)

// expire deletes what is due, whenever this server leads. It decides by its own clock and commits
// the deletes like any other write: each names the revision that it saw, so that a key which was
// written meanwhile stays, and the term, so that nobody decides who does not lead any more.
func (s *Store) expire(ctx context.Context) {
	for ctx.Err() == nil {
		leading, term, err := s.consensus.AwaitLeadership(ctx)
		if err != nil {
			return
		}
		ticker := time.NewTicker(expireEvery)
		for leading.Err() == nil {
			select {
			case <-leading.Done():
			case <-ticker.C:
				s.expireDue(leading, term)
				s.dropAbandoned(leading, term)
			}
		}
		ticker.Stop()
	}
}

func (s *Store) expireDue(ctx context.Context, term uint64) {
	for ctx.Err() == nil {
		due := s.state.Expired(s.now().UnixMilli(), expireBatch)
		for _, p := range due {
			_, err := s.consensus.Propose(ctx, &command.Request{Kind: command.KindTxn, Txn: kv.Txn{
				Require: []kv.Precondition{p},
				Ops:     []kv.Op{{Kind: kv.Delete, Key: p.Key}},
				Term:    term,
			}})
			if err != nil {
				s.logger.Debug("expiry waits for its next turn", "key", p.Key, "err", err)
				return
			}
		}
		if len(due) < expireBatch {
			return
		}
	}
}
