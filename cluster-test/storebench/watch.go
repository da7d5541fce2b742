package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/barque/barque/cluster-test/store"
	"github.com/barque/barque/cluster-test/store/member"
)

// putsForWatchers is how many puts a second the watchers are told of.
const putsForWatchers = 100

// watches measures how long a put takes to come to each watcher of its prefix, by the time of the put.
func (b *bench) watches(ctx context.Context) error {
	fmt.Printf("\n### Watches: from the call of a put on the leader to the event's delivery, %d puts/s of 256 B, 3 members\n\n", putsForWatchers)
	fmt.Println("| watchers | events/s min / median / max | p50 | p99 |\n|---|---|---|---|")
	return b.withGroup(ctx, 3, member.Options{}, func(g group) error {
		for _, watchers := range []int{1, 100, 5000} {
			for _, where := range []place{onLeader, onFollower} {
				var row series
				for range b.repeats {
					o, err := b.watchOnce(ctx, g, watchers, where)
					if err != nil {
						return err
					}
					row.add(o)
					progress("  %d watchers, %s: %.0f events/s, p50 %v, p99 %v %s", watchers, where, o.perSecond(), o.P50, o.P99, o.Error)
				}
				fmt.Printf("| %d, %s | %s |\n", watchers, where, row.cells())
			}
		}
		return nil
	})
}

// settle is how long watchers get to subscribe, and to hear the last events.
const settle = time.Second

func (b *bench) watchOnce(ctx context.Context, g group, watchers int, where place) (outcome, error) {
	leader, err := g.at(ctx, onLeader)
	if err != nil {
		return outcome{}, err
	}
	at, err := g.at(ctx, where)
	if err != nil {
		return outcome{}, err
	}
	var results []member.LoadResult
	var watchErr error
	var watching sync.WaitGroup
	watching.Go(func() {
		results, watchErr = g.spread(ctx, at, member.Load{
			Kind: member.Watches, Clients: watchers, Prefix: prefix, For: settle + b.length + settle,
		})
	})
	select {
	case <-time.After(settle):
	case <-ctx.Done():
	}
	_, err = leader[0].Load(ctx, member.Load{
		Kind: member.Puts, ValueBytes: 256, Prefix: prefix, Keys: keyCount, For: b.length, Every: time.Second / putsForWatchers,
	})
	watching.Wait()
	o := outcomeOf(results)
	o.Elapsed = b.length // events come only while there are puts
	return o, errors.Join(err, watchErr)
}

// fill writes new keys, from many clients.
func fill(ctx context.Context, m *store.Member, keys, bytes int) error {
	r, err := m.Load(ctx, member.Load{Kind: member.Puts, Clients: 1000, ValueBytes: bytes, Prefix: prefix, Keys: keys, Ops: keys, Each: true})
	if err == nil && r.Errors > 0 {
		err = fmt.Errorf("%d of %d keys were not written: %s", r.Errors, keys, r.Error)
	}
	return err
}
