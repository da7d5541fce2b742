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
	start time.Time
	known atomic.Int64 // nanoseconds after start; 0 when nothing is known
}

// reached notes that the state has come to what was acknowledged at the moment.
func (f *freshness) reached(moment time.Time) {
	after := int64(moment.Sub(f.start)) + 1
	for {
		known := f.known.Load()
		if after <= known || f.known.CompareAndSwap(known, after) {
			return
		}
	}
}

// moment returns the zero time when nothing is known.
func (f *freshness) moment() time.Time {
	if known := f.known.Load(); known != 0 {
		return f.start.Add(time.Duration(known - 1))
	}
	return time.Time{}
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
	began := time.Now()
	var revision uint64
	err := s.retry(ctx, func() (err error) {
		began = time.Now()
		revision, err = s.consensus.ReadRevision(ctx)
		return err
	})
	if err == nil {
		err = s.state.Wait(ctx, revision)
	}
	if err == nil {
		s.fresh.reached(began)
	}
	return began, err
}

// staleSince returns how old the local state may be, and makes sure that it is no more than most, when that
// is not 0.
func (s *Store) staleSince(ctx context.Context, most time.Duration) (time.Time, error) {
	known := s.fresh.moment()
	if most <= 0 || !known.IsZero() && time.Since(known) <= most {
		return known, nil
	}
	limited, cancel := context.WithTimeoutCause(ctx, most, errSlowLeader)
	defer cancel()
	began := time.Now()
	revision, err := s.consensus.ReadRevision(limited)
	if err == nil {
		err = s.state.Wait(limited, revision)
	}
	switch {
	case err == nil:
		s.fresh.reached(began)
		return began, nil
	case ctx.Err() != nil:
		return time.Time{}, context.Cause(ctx)
	case errors.Is(err, kv.ErrClosed), errors.Is(err, kv.ErrQuarantined):
		return time.Time{}, err
	}
	age := "it has not heard from the leader since it started"
	if !known.IsZero() {
		age = fmt.Sprintf("it was up to date %v ago", time.Since(known).Round(time.Millisecond))
	}
	return time.Time{}, fmt.Errorf("%w, which is %v: %s (%w)", kv.ErrTooStale, most, age, err)
}

var errSlowLeader = errors.New("the leader did not answer in that time")
