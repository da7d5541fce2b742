package main

import (
	"context"
	"errors"
	"time"

	"github.com/barque/barque/cluster-test/schedule"
	"github.com/barque/barque/cluster-test/store"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/storetest/audit"
)

const (
	// nextWait is for how long one question for the next batch waits.
	nextWait = 500 * time.Millisecond
	// progressEvery is how often watchers get progress.
	progressEvery = 100 * time.Millisecond
)

// watcher follows the store for as long as the run lasts. When its member is gone it goes on where
// it was, on the member that pick returns then.
type watcher struct {
	stream *audit.Stream
	prefix string
	pick   func() *store.Member // nil while there is none
}

func (w *watcher) run(ctx context.Context) {
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
	from, err := m.Watch(ctx, raftstore.WatchOptions{Prefix: w.prefix, After: w.stream.Last(), Progress: progressEvery})
	if err != nil {
		return err
	}
	defer from.Close()
	for {
		batches, err := from.Next(ctx, nextWait)
		for _, b := range batches {
			w.stream.Batch(b)
		}
		if err != nil {
			return err
		}
	}
}

// restart begins anew, as an informer does that is told 410 Gone.
func (w *watcher) restart(ctx context.Context, m *store.Member) {
	limited, cancel := operation(ctx)
	defer cancel()
	if _, _, revision, err := m.Get(limited, "/", raftstore.ViewOptions{}); err == nil {
		w.stream.Restart(revision)
	}
}
