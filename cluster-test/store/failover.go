package store

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/barque/barque/raftstore"
)

// writerTimeout bounds one write of the writers that measure a gap: a write that waits for longer is
// given up and counts for nothing, as that of a client with so little patience.
const writerTimeout = 100 * time.Millisecond

// FailoverGap kills the leader (SIGKILL) and returns how long no write succeeded then: from the kill to
// the end of the first success of one that began after it. There is one writer on each member that stays,
// with one write at a time. In the end the leader is started again, and the group is complete.
func (g *Group) FailoverGap(ctx context.Context) (time.Duration, error) {
	leader, err := g.AwaitLeader(ctx)
	if err != nil {
		return 0, err
	}
	writing, stop := context.WithCancel(ctx)
	defer stop()
	first := make(chan time.Time, len(g.Members()))
	var killed sync.WaitGroup // done when the leader is killed
	var at time.Time
	killed.Add(1)
	var writers sync.WaitGroup
	for _, m := range g.Members() {
		if m == leader || !m.Running() {
			continue
		}
		writers.Go(func() { // ends with its first success after the kill
			killed.Wait()
			for n := 0; writing.Err() == nil; n++ {
				limited, cancel := context.WithTimeout(writing, writerTimeout)
				_, err := m.Commit(limited, raftstore.Txn{Ops: []raftstore.Op{{
					Kind: raftstore.Put, Key: fmt.Sprintf("/failover/%s", m.Name), Value: fmt.Append(nil, n),
				}}})
				cancel()
				if err == nil {
					first <- time.Now()
					return
				}
			}
		})
	}
	at = time.Now()
	err = leader.Kill()
	killed.Done()
	var gap time.Duration
	if err == nil {
		select {
		case success := <-first:
			gap = success.Sub(at)
		case <-ctx.Done():
			err = fmt.Errorf("no write succeeded after the kill of %s: %w", leader.Name, context.Cause(ctx))
		}
	}
	stop()
	writers.Wait()
	if err != nil {
		return 0, err
	}
	if err := leader.Start(ctx); err != nil {
		return 0, err
	}
	// A linearizable read: it has what the others have.
	_, _, _, err = leader.Get(ctx, "/failover", raftstore.ViewOptions{})
	return gap, err
}
