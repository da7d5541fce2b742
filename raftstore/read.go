package raftstore

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/mvcc"
)

// picture is a View, and how old it may be.
type picture struct {
	*mvcc.View
	asOf time.Time
}

// AsOf implements View.
func (p picture) AsOf() time.Time { return p.asOf }

// freshness is the newest moment for which it is known that the local state reflects all writes
// acknowledged before it. Each linearizable read moves it, at no cost.
type freshness struct {
	clock  func() moment
	newest atomic.Pointer[moment] // nil: none is known
}

// moment is read off both clocks: the monotonic one, which stands still while the machine is suspended, and the
// wall clock, which people and NTP set.
type moment struct {
	at   time.Time // for callers, whose time.Since is by the monotonic clock then
	mono int64     // nanoseconds
	wall int64     // Unix nanoseconds
}

// clockSince returns a clock for moments after start.
func clockSince(start time.Time) func() moment {
	return func() moment {
		now := time.Now()
		return moment{at: now, mono: int64(now.Sub(start)), wall: now.UnixNano()}
	}
}

// reached notes that the state has come to what was acknowledged at the moment.
func (f *freshness) reached(at moment) {
	for {
		known := f.newest.Load()
		if known != nil && at.mono <= known.mono || f.newest.CompareAndSwap(known, &at) {
			return
		}
	}
}

// known returns the newest moment, and whether there is one.
func (f *freshness) known() (moment, bool) {
	if newest := f.newest.Load(); newest != nil {
		return *newest, true
	}
	return moment{}, false
}

// age returns for how long the state may have been out of date, by the clock that says more: one of them misses a
// suspension of the machine, and the other one a step back.
func (f *freshness) age(known moment) time.Duration {
	now := f.clock()
	return time.Duration(max(now.mono-known.mono, now.wall-known.wall))
}

// moment returns the newest moment; the zero time when none is known.
func (f *freshness) moment() time.Time {
	known, _ := f.known()
	return known.at
}

// View returns a picture of the store. See ViewOptions for which one, and for what it may wait.
// It fails with ErrCompacted, ErrFutureRevision, ErrUnavailable, ErrClosed or the context's cause.
// Like Commit and Watch it fails with ErrQuarantined, which is an ErrUnavailable, when the state of this
// server was found to differ from that of most servers.
func (s *Store) View(ctx context.Context, opts ViewOptions) (View, error) {
	err := s.state.Withdrawn()
	var asOf time.Time
	switch {
	case err != nil:
	case opts.Revision != 0:
		return s.viewAt(ctx, opts)
	case opts.Stale:
		asOf, err = s.staleSince(ctx, opts.MaxStale)
	case opts.MinRevision != 0:
		asOf, err = s.fresh.moment(), s.state.Wait(ctx, opts.MinRevision)
	default:
		asOf, err = s.synchronize(ctx)
	}
	if err != nil {
		return nil, err
	}
	return picture{s.state.Latest(), asOf}, nil
}

// viewAt returns the picture at a revision. This server may not have seen a revision yet that
// another one handed out, so before it is called a future one, the leader is asked.
func (s *Store) viewAt(ctx context.Context, opts ViewOptions) (View, error) {
	v, err := s.state.At(opts.Revision)
	if errors.Is(err, kv.ErrFutureRevision) && !opts.Stale {
		if _, err := s.synchronize(ctx); err != nil {
			return nil, err
		}
		v, err = s.state.At(opts.Revision)
	}
	if err != nil {
		return nil, fmt.Errorf("view at revision %d: %w", opts.Revision, err)
	}
	return picture{View: v}, nil
}

// synchronize waits until the local state reflects everything acknowledged before the call. It returns when
// that was.
func (s *Store) synchronize(ctx context.Context) (time.Time, error) {
	began := s.fresh.clock()
	var revision uint64
	err := s.retry(ctx, func() (err error) {
		began = s.fresh.clock()
		revision, err = s.consensus.ReadRevision(ctx)
		return err
	})
	if err == nil {
		err = s.state.Wait(ctx, revision)
	}
	if err == nil {
		s.fresh.reached(began)
	}
	return began.at, err
}

// staleSince returns how old the local state may be, and makes sure that it is no more than most, when that
// is not 0.
func (s *Store) staleSince(ctx context.Context, most time.Duration) (time.Time, error) {
	known, ok := s.fresh.known()
	if most <= 0 || ok && s.fresh.age(known) <= most {
		return known.at, nil
	}
	limited, cancel := context.WithTimeoutCause(ctx, most, errSlowLeader)
	defer cancel()
	began := s.fresh.clock()
	revision, err := s.consensus.ReadRevision(limited)
	if err == nil {
		err = s.state.Wait(limited, revision)
	}
	switch {
	case err == nil:
		s.fresh.reached(began)
		return began.at, nil
	case ctx.Err() != nil:
		return time.Time{}, context.Cause(ctx)
	case errors.Is(err, kv.ErrClosed), errors.Is(err, kv.ErrQuarantined):
		return time.Time{}, err
	}
	age := "it has not heard from the leader since it started"
	if ok {
		age = fmt.Sprintf("it was up to date %v ago", s.fresh.age(known).Round(time.Millisecond))
	}
	return time.Time{}, fmt.Errorf("%w, which is %v: %s (%w)", kv.ErrTooStale, most, age, err)
}

var errSlowLeader = errors.New("the leader did not answer in that time")
