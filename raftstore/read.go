package raftstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/barque/barque/raftstore/kv"
)

// View returns a snapshot of the store. ViewOptions select it and its waits. It fails with
// ErrCompacted, ErrFutureRevision, ErrUnavailable, ErrClosed or the context's cause. Like Commit
// and Watch it fails with ErrQuarantined, which is an ErrUnavailable, if the state of this server
// differs from that of most servers.
func (s *Store) View(ctx context.Context, opts ViewOptions) (View, error) {
	err := s.state.Withdrawn()
	switch {
	case err != nil:
	case opts.Revision != 0:
		return s.viewAt(ctx, opts)
	case opts.Stale:
	case opts.MinRevision != 0:
		err = s.state.Wait(ctx, opts.MinRevision)
	default:
		err = s.synchronize(ctx)
	}
	if err != nil {
		return nil, err
	}
	return s.state.Latest(), nil
}

// viewAt returns the snapshot at a revision. Another server may have handed out a revision that
// this server has not seen yet. So the leader is asked before it is called a future one.
func (s *Store) viewAt(ctx context.Context, opts ViewOptions) (View, error) {
	v, err := s.state.At(opts.Revision)
	if errors.Is(err, kv.ErrFutureRevision) && !opts.Stale {
		if err := s.synchronize(ctx); err != nil {
			return nil, err
		}
		v, err = s.state.At(opts.Revision)
	}
	if err != nil {
		return nil, fmt.Errorf("view at revision %d: %w", opts.Revision, err)
	}
	return v, nil
}

// synchronize waits until the local state reflects everything acknowledged before the call.
func (s *Store) synchronize(ctx context.Context) error {
	var revision uint64
	err := s.retry(ctx, func() (err error) {
		revision, err = s.consensus.ReadRevision(ctx)
		return err
	})
	if err != nil {
		return err
	}
	return s.state.Wait(ctx, revision)
}
