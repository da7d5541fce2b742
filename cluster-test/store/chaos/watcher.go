package main

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/barque/barque/cluster-test/schedule"
	"github.com/barque/barque/cluster-test/store"
	"github.com/barque/barque/cluster-test/store/member"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/check"
)

const (
	// nextWait is for how long one question for the next batch waits.
	nextWait = 500 * time.Millisecond
	// progressEvery is how often watchers get progress.
	progressEvery = 100 * time.Millisecond
)

// watcher follows the store for as long as the turn lasts. When its member is gone it goes on where
// it was, on the member that pick returns then.
type watcher struct {
	*turn
	name   string
	prefix string               // empty: everything
	pick   func() *store.Member // nil while there is none
	last   atomic.Uint64        // everything up to here was delivered
	items  []raftstore.Item     // at last, where it has begun anew
	watch  *check.Watch         // the newest one
}

func (w *watcher) work(ctx context.Context) {
	for ctx.Err() == nil {
		m := w.pick()
		if m == nil || !m.Running() {
			schedule.Pause(ctx, 20*time.Millisecond)
			continue
		}
		if err := w.follow(ctx, m); errors.Is(err, raftstore.ErrCompacted) {
			w.restart(ctx, m)
		} else {
			schedule.Pause(ctx, 20*time.Millisecond)
		}
	}
}

// follow watches on one run of a member, until it ends.
func (w *watcher) follow(ctx context.Context, m *store.Member) error {
	from, err := m.Watch(ctx, raftstore.WatchOptions{Prefix: w.prefix, After: w.last.Load(), Progress: progressEvery})
	if err != nil {
		return err
	}
	defer from.Close()
	w.watch = w.record.Watch(&check.Watch{
		Server: m.Index, Prefix: w.prefix, After: w.last.Load(), Items: w.items, Resumes: true, Tap: w.prefix == "",
	})
	w.items = nil
	for {
		batches, err := from.Next(ctx, nextWait)
		for _, b := range batches {
			w.record.Deliver(w.watch, b)
			w.last.Store(max(w.last.Load(), b.Revision))
		}
		if err != nil {
			return err
		}
	}
}

// restart begins anew, as an informer does after 410 Gone. A watcher of everything reads
// everything: the history may have to go on with that.
func (w *watcher) restart(ctx context.Context, m *store.Member) {
	limited, cancel := operation(ctx)
	defer cancel()
	read := w.read(m, check.Linearizable)
	if w.prefix != "" {
		read.Keys = []string{} // that something is missing is not looked for
	}
	items, revision, err := m.List(limited, member.ListArgs{Prefix: w.prefix})
	if err != nil {
		return
	}
	if last := w.last.Load(); revision < last {
		w.Fail("the watcher %s began anew at revision %d, and had seen %d", w.name, revision, last)
	}
	w.record.Read(read, view{revision, items})
	if w.prefix == "" {
		w.items = items
	}
	w.last.Store(revision)
}
