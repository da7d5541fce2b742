package raftstore

import (
	"context"
	"time"

	"github.com/barque/barque/raftstore/command"
)

const (
	tidyEvery = time.Second // how late an item may be deleted
	// expireBatch is the largest number of items that one entry of the log deletes, at one
	// revision. expireMost is the largest number before the next look at the clock. A mass expiry
	// does not delay the writes of others.
	expireBatch = 512
	expireMost  = 64 * expireBatch
)

// tidy drops expired items, abandoned restores, and old history, whenever this server leads.
func (s *Store) tidy(ctx context.Context) {
	for ctx.Err() == nil {
		leading, term, err := s.consensus.AwaitLeadership(ctx)
		if err != nil {
			return
		}
		var old ageing
		ticker := time.NewTicker(tidyEvery)
		for leading.Err() == nil {
			select {
			case <-leading.Done():
			case <-ticker.C:
				s.expireDue(leading, term)
				s.dropAbandoned(leading, term)
				old.look(leading, s, term)
			}
		}
		ticker.Stop()
	}
}

// expireDue selects the passed deadlines by this server's wall clock. The state machine then finds
// the items, so that a key written meanwhile stays. The term ensures that only the leader decides.
func (s *Store) expireDue(ctx context.Context, term uint64) {
	now := s.now().UnixMilli()
	for range expireMost / expireBatch {
		if first := s.state.NextDeadline(); first == 0 || first > now {
			return
		}
		outcome, err := s.consensus.Propose(ctx, &command.Request{
			Kind: command.KindExpire, Expire: command.Expire{Term: term, Due: now, Most: expireBatch},
		})
		if err != nil || outcome.Code != command.Applied {
			s.logger.Debug("expiry waits for its next turn", "outcome", outcome.Code, "err", err)
			return
		}
	}
}
