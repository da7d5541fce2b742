package disk

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/snapshot"
)

// ErrInstalling is returned while a snapshot of the leader is on disk and not yet the state: this
// server's own files are needed until then.
var ErrInstalling = errors.New("a newer snapshot is about to become the state")

// Purge removes everything from the directory that the newest snapshot, and the log after it, do
// not have: older snapshots, also damaged ones, the log before it, and free pages. log is Raft's
// view of the log. The caller has just taken the snapshot, of a state up to the entry applied. It
// fails with ErrInstalling, and removes nothing, while there is a newer one.
//
// Nothing else could be read in place of that snapshot afterwards, so it is read first. Steps can
// be repeated, and a crash between them leaves a directory that is as before, or has less.
func (s *Storage) Purge(ctx context.Context, log raft.LogStore, applied uint64) error {
	if s.written == nil {
		return nil // in memory
	}
	all, err := s.Snapshots.List()
	if err != nil {
		return fmt.Errorf("list the snapshots: %w", err)
	}
	if len(all) == 0 {
		return errors.New("there is no snapshot")
	}
	newest := all[0]
	if newest.Index > applied {
		return fmt.Errorf("%w: it is of entry %d, and the state of entry %d; nothing was removed", ErrInstalling,
			newest.Index, applied)
	}
	if err := s.verify(newest.ID); err != nil {
		return fmt.Errorf("read the snapshot %s: %w; nothing was removed", s.written.Path(newest.ID), err)
	}
	first, err := log.FirstIndex()
	if err != nil {
		return err
	}
	last, err := log.LastIndex()
	if err != nil {
		return err
	}
	// The newest entry stays, so that the log never seems to be lost.
	if to := min(newest.Index, max(last, 1)-1); first > 0 && first <= to {
		s.Sever(newest.Index)
		if err := log.DeleteRange(first, to); err != nil {
			return fmt.Errorf("cut the log: %w", err)
		}
	}
	if err := s.written.DropOlder(newest); err != nil {
		return err
	}
	return s.Log.Renew(ctx)
}

// verify reads a whole snapshot.
func (s *Storage) verify(id string) error {
	_, source, err := s.Snapshots.Open(id)
	if err != nil {
		return err
	}
	defer source.Close()
	r, err := snapshot.NewReader(source)
	if err != nil {
		return err
	}
	defer r.Close()
	if err := r.Items(func(*kv.Item) {}); err != nil {
		return err
	}
	if err := r.History(func(kv.Undo) error { return nil }); err != nil {
		return err
	}
	if _, _, err := r.Rest(func(*kv.Item) {}); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, source)
	return err
}
