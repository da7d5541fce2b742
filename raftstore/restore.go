package raftstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/barque/barque/raftstore/command"
	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/mvcc"
)

const (
	// restoreChunk is how many bytes of items go into one log entry of a restore. An entry delays
	// the writes behind it by the time that it takes to the disks of a quorum.
	restoreChunk = 512 << 10
	// restorePatience bounds how long one step of a restore is repeated without a leader.
	restorePatience = time.Minute
	// restoreAbandoned is how long a restore may rest before the leader takes it for abandoned.
	restoreAbandoned = 5 * time.Minute
)

// RestoreOptions configure a restore.
type RestoreOptions struct {
	// AtLeast is the lowest revision of the new state. It must be above all revisions that were
	// ever handed out, if this store does not know them. The revision never goes back in any case.
	AtLeast uint64
	// Supersede abandons a running restore, instead of failing because of it. It is for a caller
	// that knows that its maker is gone.
	Supersede bool
}

// Restore replaces all items of the store by others, at one revision, while it keeps serving. items
// calls yield with each, in ascending order of keys; their keys, values and times of expiry count.
// An item that is equal to the present one keeps its revisions.
//
// For readers and writers it is one big write: it comes before or after each of theirs. Watchers
// end with ErrCompacted, and so do views of older revisions, since nothing leads from the state
// before to the one after.
//
// The items go through the log in parts and are staged on all servers until they are complete, so a
// change of leader in the middle is harmless. Until then each server has the changed items in
// memory in addition; equal items take no memory. If items fails, ctx ends, or a step fails,
// nothing has changed. The staged items are dropped at once, or, if this server dies, by the leader
// after some minutes.
//
// One restore can run at a time: another fails with ErrInvalid. Items whose size exceeds
// Limits.StateBytes plus the reserve of a full store fail with ErrNoSpace. As with Commit,
// ErrUnknownOutcome means that the last step may have taken effect.
func (s *Store) Restore(
	ctx context.Context, items func(yield func(*Item) error) error, opts RestoreOptions,
) (Result, error) {
	if opts.Supersede {
		if err := s.supersede(ctx); err != nil {
			return Result{}, fmt.Errorf("give up the restore that is under way: %w", err)
		}
	}
	r := &restore{store: s, id: randomOrigin()}
	err := r.step(ctx, command.Restore{Step: command.RestoreBegin})
	if errors.Is(err, kv.ErrInvalid) {
		return Result{},
			fmt.Errorf("begin a restore: %w; one whose server is gone is given up %v after its last step", err,
				restoreAbandoned)
	}
	var result Result
	if err == nil {
		result, err = r.run(ctx, items, opts)
	} else {
		err = fmt.Errorf("begin a restore: %w; nothing was changed", err)
	}
	if err != nil { // also if the last step may have taken effect: then there is nothing to drop
		r.abort()
	}
	return result, err
}

func (s *Store) supersede(ctx context.Context) error {
	if err := s.synchronize(ctx); err != nil {
		return err
	}
	st := s.state.Staged()
	if st == nil {
		return nil
	}
	return (&restore{store: s, id: st.ID}).step(ctx, command.Restore{Step: command.RestoreAbort})
}

// restore is one restore under way, seen from the server that makes it.
type restore struct {
	store *Store
	id    uint64

	chunk           []byte
	seq, items, sum uint64
}

func (r *restore) run(
	ctx context.Context, items func(yield func(*Item) error) error, opts RestoreOptions,
) (Result, error) {
	err := items(func(item *Item) error {
		r.chunk = command.AppendItem(r.chunk, item)
		r.items++
		r.sum += mvcc.ContentHash(item)
		if len(r.chunk) < r.store.chunk {
			return nil
		}
		return r.flush(ctx)
	})
	if err == nil && len(r.chunk) > 0 {
		err = r.flush(ctx)
	}
	if full := new(kv.NoSpaceError); errors.As(err, &full) {
		return Result{},
			fmt.Errorf(
				"restore: %w: its items count more than the %d bytes, and a %dth of that, which the store may hold; "+
					"restore with a higher limit; nothing was changed", kv.ErrNoSpace, full.Limit, mvcc.Reserve)
	}
	if err != nil {
		return Result{}, fmt.Errorf("restore: %w; nothing was changed", err)
	}
	commit := command.Restore{Step: command.RestoreCommit, ID: r.id, Seq: r.seq, Items: r.items, Sum: r.sum,
		AtLeast: opts.AtLeast}
	result, err := r.store.do(ctx, &command.Request{Kind: command.KindRestore, Restore: commit})
	if err != nil {
		return Result{}, fmt.Errorf("the last step of a restore: %w", err)
	}
	r.store.logger.Info("the state was replaced by a restore", "revision", result.Revision, "items", r.items)
	return result, nil
}

func (r *restore) flush(ctx context.Context) error {
	r.seq++
	err := r.step(ctx, command.Restore{Step: command.RestoreChunk, Seq: r.seq, Data: r.chunk})
	r.chunk = nil // the log may still hold the bytes
	return err
}

// step brings one step, except the last, into the log. A repetition is harmless, and so is a step
// that gets there although this gives up: only the last step changes anything, so the outcome of
// the others does not matter to the caller.
func (r *restore) step(ctx context.Context, step command.Restore) error {
	step.ID = r.id
	end := time.Now().Add(restorePatience)
	for {
		_, err := r.store.do(ctx, &command.Request{Kind: command.KindRestore, Restore: step})
		passing := errors.Is(err, kv.ErrUnavailable) || errors.Is(err, kv.ErrUnknownOutcome)
		if !passing || errors.Is(err, kv.ErrQuarantined) || errors.Is(err, kv.ErrDiskFull) {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("%w: %v", kv.ErrUnavailable, err)
		}
		select {
		case <-time.After(10 * retryPause):
		case <-ctx.Done():
			return fmt.Errorf("%w: %v (%w)", kv.ErrUnavailable, err, context.Cause(ctx))
		}
	}
}

// abort drops the staged items. If it fails, the leader does it later.
func (r *restore) abort() {
	ctx, cancel := context.WithTimeout(context.Background(), r.store.retryFor)
	defer cancel()
	abort := command.Restore{Step: command.RestoreAbort, ID: r.id}
	if _, err := r.store.do(ctx, &command.Request{Kind: command.KindRestore, Restore: abort}); err != nil {
		r.store.logger.Warn("what a failed restore has put aside is dropped later, by the leader", "err", err)
	}
}

// dropAbandoned ends a restore whose server is gone. It is for the leader.
func (s *Store) dropAbandoned(ctx context.Context, term uint64) {
	st := s.state.Staged()
	if st == nil {
		return
	}
	rests := time.Duration(s.now().UnixMilli()-st.Touched) * time.Millisecond
	if rests < restoreAbandoned {
		return
	}
	outcome, err := s.consensus.Propose(ctx, &command.Request{Kind: command.KindRestore, Restore: command.Restore{
		Step: command.RestoreAbort, ID: st.ID, Seq: st.Seq + 1, Term: term,
	}})
	if err == nil && outcome.Code == command.Applied {
		s.logger.Warn("a restore was abandoned; nothing was changed", "restedFor", rests.Round(time.Second), "items",
			st.Items)
	}
}
