package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/barque/barque/cluster-test/store"
	"github.com/barque/barque/cluster-test/store/member"
)

// putsForWatchers is the number of puts a second that the watchers get.
const putsForWatchers = 100

// watches measures how long a put takes to come to each watcher of its prefix, from the time of the
// call.
func (b *bench) watches(ctx context.Context) error {
	t := table{
		title: fmt.Sprintf("Watches: from the call of a put to the event's delivery, %d puts/s of 256 B, 3 members",
			putsForWatchers), unit: "events"}
	return b.withBoth(ctx, 3, func(ours group, theirs *etcd) error {
		for _, watchers := range []int{1, 100, 5000} {
			for _, where := range []place{onLeader, onFollower} {
				row := tableRow{what: fmt.Sprintf("%d watchers, %s", watchers, where)}
				var err error
				row.barque, err = b.watchAgain(ctx, "barque",
					func() (outcome, error) { return b.watchOnce(ctx, ours, watchers, where) })
				if err != nil {
					return err
				}
				if theirs != nil {
					s, err := b.watchAgain(ctx, "etcd", func() (outcome, error) {
						return theirs.load(ctx,
							load{kind: member.Watches, clients: watchers, bytes: 256, length: b.length}, where)
					})
					if err != nil {
						return err
					}
					row.etcd = &s
				}
				t.rows = append(t.rows, row)
			}
		}
		t.print(os.Stdout)
		return nil
	})
}

func (b *bench) watchAgain(ctx context.Context, name string, once func() (outcome, error)) (series, error) {
	var s series
	for range b.repeats {
		o, err := once()
		if err != nil {
			return s, err
		}
		s.add(o)
		progress("  %s: %.0f events/s, p50 %v, p99 %v, %.1f µs of CPU each %s", name, o.perSecond(), o.P50, o.P99,
			cpuEach(o), o.Error)
	}
	return s, context.Cause(ctx)
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
	before, err := g.cpu(ctx)
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
		Kind: member.Puts, ValueBytes: 256, Prefix: prefix, Keys: keyCount, For: b.length,
		Every: time.Second / putsForWatchers,
	})
	watching.Wait()
	after, cpuErr := g.cpu(ctx)
	o := outcomeOf(results)
	o.Elapsed, o.CPU = b.length, after-before // events come only while there are puts
	return o, errors.Join(err, watchErr, cpuErr)
}

// fill writes new keys, from many clients.
func fill(ctx context.Context, m *store.Member, keys, bytes int) error {
	r, err := m.Load(ctx,
		member.Load{Kind: member.Puts, Clients: 1000, ValueBytes: bytes, Prefix: prefix, Keys: keys, Ops: keys,
			Each: true})
	if err == nil && r.Errors > 0 {
		err = fmt.Errorf("%d of %d keys were not written: %s", r.Errors, keys, r.Error)
	}
	return err
}
