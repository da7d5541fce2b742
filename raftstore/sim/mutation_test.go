package sim

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/internal/history"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/check"
	"github.com/barque/barque/raftstore/kv"
)

// TestChecksFindFaults spoils a store in ways that its clients can see, and demands that the
// promise that is broken is named. A check that cannot fail shows nothing.
func TestChecksFindFaults(t *testing.T) {
	for _, c := range []struct {
		name    string
		promise string
		only    []string // of the faults; default: all
		edit    func(s *server, m *mount, cfg *raftstore.Config)
		spoil   func(*raftstore.Server) api
	}{
		{name: "a log that says it has synced, and forgets in a crash", promise: history.OneHistory,
			only: []string{"crash of a majority", "crash of all"}, edit: forgetful},
		{name: "reads that do not ask the leader", promise: history.Linearizes,
			spoil: func(s *raftstore.Server) api { return staleReads{s} }},
		{name: "watches that leave out an event", promise: history.Reliable,
			spoil: watches(func(w raftstore.Watcher) raftstore.Watcher { return &skipping{Watcher: w} })},
		{name: "watches that repeat an event", promise: history.Unique,
			spoil: watches(func(w raftstore.Watcher) raftstore.Watcher { return &repeating{Watcher: w} })},
		{name: "watches that split a revision", promise: history.Atomic,
			spoil: watches(func(w raftstore.Watcher) raftstore.Watcher { return &splitting{Watcher: w} })},
		{name: "progress that overtakes events", promise: history.Bookmarkable,
			spoil: watches(func(w raftstore.Watcher) raftstore.Watcher { return &hasty{Watcher: w} })},
		{name: "watches that begin too late", promise: history.Resumable,
			spoil: func(s *raftstore.Server) api { return lateWatches{s} }},
		{name: "fences that nobody looks at", promise: check.Fence,
			spoil: func(s *raftstore.Server) api { return unfenced{s} }},
		{name: "writes that are done twice", promise: history.Once,
			spoil: func(s *raftstore.Server) api { return twice{s} }},
		{name: "writes that are called refused, and are done", promise: history.NotExecuted,
			spoil: func(s *raftstore.Server) api { return liar{s} }},
		{name: "preconditions that nobody looks at", promise: check.Preconditions,
			spoil: func(s *raftstore.Server) api { return unconditional{s} }},
		{name: "keys that expire early", promise: check.ExpiryOnTime,
			spoil: func(s *raftstore.Server) api { return shortLived{s} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for seed := uint64(1); seed <= 5; seed++ {
				var result Result
				synctest.Test(t, func(*testing.T) {
					result = Run(
						Options{Seed: seed, Servers: 3, Leaders: 12, only: c.only, Limit: 2 * time.Minute,
							Pace: 15 * time.Millisecond, edit: c.edit, spoil: c.spoil})
				})
				for _, v := range append(result.Problems,
					result.Record.Verdict(check.Options{Clocks: result.Clocks})...) {
					if v.Promise == c.promise {
						t.Logf("seed %d: %v", seed, v)
						return
					}
				}
			}
			t.Errorf("nobody noticed that this is broken: %s", c.promise)
		})
	}
}

// forgetful makes the disk lose, in a crash, writes that it has called synced a short while before.
func forgetful(_ *server, m *mount, _ *raftstore.Config) { m.forgets = 20 }

// staleReads answers from the server's own state.
type staleReads struct{ *raftstore.Server }

func (s staleReads) View(ctx context.Context, opts raftstore.ViewOptions) (raftstore.View, error) {
	if opts == (raftstore.ViewOptions{}) {
		opts.Stale = true
	}
	return s.Server.View(ctx, opts)
}

func watches(wrap func(raftstore.Watcher) raftstore.Watcher) func(*raftstore.Server) api {
	return func(s *raftstore.Server) api { return wrapped{s, wrap} }
}

type wrapped struct {
	*raftstore.Server
	wrap func(raftstore.Watcher) raftstore.Watcher
}

func (s wrapped) Watch(opts raftstore.WatchOptions) (raftstore.Watcher, error) {
	w, err := s.Server.Watch(opts)
	if err != nil {
		return nil, err
	}
	return s.wrap(w), nil
}

type skipping struct {
	raftstore.Watcher
	n int
}

func (w *skipping) Next(ctx context.Context) (raftstore.Batch, error) {
	if w.n++; w.n == 5 {
		w.Watcher.Next(ctx)
	}
	return w.Watcher.Next(ctx)
}

type repeating struct {
	raftstore.Watcher
	n    int
	last raftstore.Batch
}

func (w *repeating) Next(ctx context.Context) (raftstore.Batch, error) {
	if w.n++; w.n == 5 {
		return w.last, nil
	}
	var err error
	w.last, err = w.Watcher.Next(ctx)
	return w.last, err
}

type splitting struct{ raftstore.Watcher }

func (w *splitting) Next(ctx context.Context) (raftstore.Batch, error) {
	b, err := w.Watcher.Next(ctx)
	if len(b.Events) > 1 {
		b.Events = b.Events[:1]
	}
	return b, err
}

type hasty struct{ raftstore.Watcher }

func (w *hasty) Next(ctx context.Context) (raftstore.Batch, error) {
	b, err := w.Watcher.Next(ctx)
	if err == nil && len(b.Events) == 0 {
		b.Revision += 10
	}
	return b, err
}

type lateWatches struct{ *raftstore.Server }

func (s lateWatches) Watch(opts raftstore.WatchOptions) (raftstore.Watcher, error) {
	opts.After += 2
	return s.Server.Watch(opts)
}

type unfenced struct{ *raftstore.Server }

func (s unfenced) Commit(ctx context.Context, txn raftstore.Txn) (raftstore.Result, error) {
	txn.Term = 0
	return s.Server.Commit(ctx, txn)
}

type twice struct{ *raftstore.Server }

func (s twice) Commit(ctx context.Context, txn raftstore.Txn) (raftstore.Result, error) {
	result, err := s.Server.Commit(ctx, txn)
	if err == nil && len(txn.Require) == 0 {
		s.Server.Commit(ctx, txn)
	}
	return result, err
}

type liar struct{ *raftstore.Server }

func (s liar) Commit(ctx context.Context, txn raftstore.Txn) (raftstore.Result, error) {
	result, err := s.Server.Commit(ctx, txn)
	if errors.Is(err, raftstore.ErrUnknownOutcome) || err == nil && strings.HasPrefix(txn.Ops[0].Key, "/s/4") {
		return raftstore.Result{}, kv.ErrUnavailable
	}
	return result, err
}

type unconditional struct{ *raftstore.Server }

func (s unconditional) Commit(ctx context.Context, txn raftstore.Txn) (raftstore.Result, error) {
	txn.Require = nil
	return s.Server.Commit(ctx, txn)
}

type shortLived struct{ *raftstore.Server }

func (s shortLived) Commit(ctx context.Context, txn raftstore.Txn) (raftstore.Result, error) {
	for i := range txn.Ops {
		if txn.Ops[i].TTL > 0 {
			txn.Ops = append([]raftstore.Op(nil), txn.Ops...)
			txn.Ops[i].TTL = time.Millisecond
		}
	}
	return s.Server.Commit(ctx, txn)
}
