package disk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/sys/unix"

	"github.com/barque/barque/raftstore/command"
	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/logstore"
)

const (
	// DefaultReserve holds a new segment of a WAL, and the snapshot of a store of some size.
	DefaultReserve = 64 << 20
	// reserveShare is the largest part of a small file system that the reserve takes: one in so
	// many.
	reserveShare = 8
	// reserveLook is how often it is tried to get the reserve back.
	reserveLook = 2 * time.Second
	// shortenRest is how long a full disk is at least left alone after some snapshots to make room.
	shortenRest = time.Minute
	// trailingLogsWhenFull is how many entries stay behind a snapshot while the disk is full. A
	// follower that lags by more gets a snapshot. An entry may have a MiB.
	trailingLogsWhenFull = 16
)

// errDiskFull is the error of writes that are refused while the disk is full, and another server
// may take the lead.
var errDiskFull = fmt.Errorf(
	"%w: %w: it runs on its reserve and takes only what deletes; make room on the volume of the store, or delete something",
	kv.ErrUnavailable, logstore.ErrFull)

// Reserve is disk space that is reserved for the time when the disk is full.
//
//	held ──a write finds no room──▶ released: the disk is full ──room for the reserve, and as much again──▶ held
//
// With the released space, a server that cannot write an entry any more takes a snapshot, cuts its
// log, hands leadership over, and stops gracefully. A leader refuses writes that would use the
// space up meanwhile. It accepts deletions, because they are the remedy. A follower takes the
// leader's entries as long as there is space, because they are committed.
//
// The log has priority: it takes its own space (logstore.Log.Trim) before a snapshot gets the rest.
// If it needs more all the same, a snapshot in progress is abandoned.
type Reserve struct {
	Path   string // empty: nothing is held, as in memory
	Size   int64
	logger *slog.Logger
	freed  chan struct{} // holds a token when the reserve was released

	// Stuck: as the leader last saw it, no other server can lead in its place.
	Stuck atomic.Bool
	// Filled holds a token when the disk has become full, for the leader.
	Filled chan struct{}

	// Full: the disk is full. It is set with mu held.
	Full atomic.Bool

	mu   sync.Mutex
	held bool
}

// openReserve takes hold of the reserve.
func openReserve(o *Options) (*Reserve, error) {
	r := &Reserve{logger: o.Logger, freed: make(chan struct{}, 1), Filled: make(chan struct{}, 1), Size: o.Reserve}
	if o.InMemory || o.Reserve < 0 {
		return r, nil
	}
	r.Path = filepath.Join(o.Dir, reserveFile)
	var fs unix.Statfs_t
	if err := unix.Statfs(o.Dir, &fs); err != nil {
		return nil, fmt.Errorf("look how large the volume of %s is: %w", o.Dir, err)
	}
	if share := int64(fs.Blocks) * fs.Bsize / reserveShare; share > 0 {
		r.Size = min(r.Size, share)
	}
	if err := r.allocate(); err != nil {
		if !isFull(err) {
			return nil, fmt.Errorf("allocate %s: %w", r.Path, err)
		}
		r.Release()
	}
	return r, nil
}

// RemoveReserve gives up the reserve of a server that does not run.
func RemoveReserve(dir string) error {
	if err := os.Remove(filepath.Join(dir, reserveFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("give the reserve up: %w", err)
	}
	return nil
}

func isFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// allocate makes the file with all its blocks.
func (r *Reserve) allocate() error {
	file, err := os.OpenFile(r.Path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	err = unix.Fallocate(int(file.Fd()), 0, 0, r.Size)
	if errors.Is(err, unix.EOPNOTSUPP) { // then with real bytes
		err = writeZeros(file, r.Size)
	}
	if err == nil {
		err = file.Truncate(r.Size) // it was larger before
	}
	if err = errors.Join(err, file.Close()); err != nil {
		os.Remove(r.Path)
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held = true
	r.Full.Store(false)
	return nil
}

func writeZeros(file *os.File, size int64) error {
	zeros := make([]byte, 1<<20)
	for at := int64(0); at < size; at += int64(len(zeros)) {
		if _, err := file.WriteAt(zeros[:min(int64(len(zeros)), size-at)], at); err != nil {
			return err
		}
	}
	return file.Sync()
}

// Release frees the space when a write has found none. It returns whether there is more now.
func (r *Reserve) Release() bool {
	if r.Path == "" {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	held := r.held
	r.held = false
	if !r.Full.Load() {
		r.Full.Store(true)
		r.logger.Error(
			"the disk is full: this server runs on its reserve, refuses what would need more room, hands leadership over "+
				"if another server has room, and shortens its log; make room on the volume", "dir",
			filepath.Dir(r.Path),
			"reserve", r.Size)
		for _, told := range []chan struct{}{r.freed, r.Filled} {
			select {
			case told <- struct{}{}:
			default:
			}
		}
	}
	if err := os.Remove(r.Path); err != nil && held {
		r.logger.Error("cannot give the reserve back", "err", err)
		return false
	}
	return held
}

// renew takes the reserve again if there is space for it, and as much again. It returns whether it
// is held.
func (r *Reserve) renew() bool {
	var fs unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(r.Path), &fs); err != nil || int64(fs.Bavail)*fs.Bsize < 2*r.Size {
		return false
	}
	if err := r.allocate(); err != nil {
		return false
	}
	r.logger.Warn("the disk has room again", "dir", filepath.Dir(r.Path), "reserve", r.Size)
	return true
}

// Takes returns an error for a request that a leader with a full disk refuses. The store's own
// decisions about members are accepted, like deletions: removing the server with the full disk is a
// remedy as well, and the reserve is enough for a few hundred bytes.
func (r *Reserve) Takes(req *command.Request) error {
	if !r.Full.Load() || needsNoRoom(req) {
		return nil
	}
	if r.Stuck.Load() {
		return group.ErrDiskStuck
	}
	return errDiskFull
}

// needsNoRoom reports whether a request adds no data of the callers.
func needsNoRoom(req *command.Request) bool {
	switch req.Kind {
	case command.KindCompact, command.KindExpire:
		return true
	case command.KindRestore: // the staged items are dropped, as with a deletion
		return req.Restore.Step == command.RestoreAbort
	case command.KindTxn:
		return !slices.ContainsFunc(req.Txn.Ops,
			func(op kv.Op) bool { return op.Kind == kv.Put && !strings.HasPrefix(op.Key, kv.ReservedPrefix) })
	}
	return false
}

// Raft is the interface for shortening the log, a *raft.Raft.
type Raft interface {
	AppliedIndex() uint64
	Snapshot() raft.SnapshotFuture
	Reload(change func(*raft.ReloadableConfig)) error
}

// KeepRoom makes room while the disk is full, and gets the reserve back. It ends with ctx.
func (s *Storage) KeepRoom(ctx context.Context, r Raft) {
	for {
		select {
		case <-s.Reserve.freed:
			s.shortenUntilRoom(ctx, r)
		case <-ctx.Done():
			return
		}
	}
}

// shortenUntilRoom shortens the log, and repeats it while there were more writes, which may have
// been deletions, until the reserve can be taken again.
func (s *Storage) shortenUntilRoom(ctx context.Context, r Raft) {
	looked := time.NewTicker(reserveLook)
	defer looked.Stop()
	for wait := reserveLook; ; wait = min(2*wait, shortenRest) {
		before := r.AppliedIndex()
		shortened := s.shorten(r)
		for rest := time.Duration(0); rest < wait || shortened && r.AppliedIndex() == before; rest += reserveLook {
			select {
			case <-looked.C:
			case <-ctx.Done():
				return
			}
			if s.Reserve.renew() {
				s.setTrailing(r, s.trailing)
				return
			}
		}
	}
}

// shorten writes a snapshot and cuts the log up to it. The unused part of a Boltdb's file returns
// to the volume. It returns whether there was space for that.
func (s *Storage) shorten(r Raft) bool {
	s.setTrailing(r, min(s.trailing, trailingLogsWhenFull))
	// Before the snapshot, which may take all remaining space. This also waits for the write that
	// has found no space.
	if err := s.Log.Trim(); err != nil {
		s.logger.Warn("the log has no room of its own on a full disk", "err", err)
	}
	err := r.Snapshot().Error()
	if errors.Is(err, raft.ErrNothingNewToSnapshot) {
		err = nil
	} else if err != nil {
		err = fmt.Errorf("take a snapshot: %w", err)
	}
	if err == nil {
		err = s.Log.Trim()
	}
	if err != nil {
		s.logger.Error("cannot shorten the log of a full disk", "err", err)
	}
	return err == nil
}

// shrinkLook is how often it is looked whether the file of the log has grown.
const shrinkLook = time.Minute

// KeepLogSmall returns the unused part of the log's file to the volume. It ends with ctx.
func (s *Storage) KeepLogSmall(ctx context.Context) {
	ticker := time.NewTicker(shrinkLook)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if s.Reserve.Full.Load() {
			continue // then the log is shortened: see shortenUntilRoom
		}
		done, err := s.Log.Shrink(ctx)
		switch {
		case err != nil:
			s.logger.Warn("the log keeps room on the volume that it does not need; it is tried again", "err", err)
		case done.Before > 0:
			s.logger.Info("the file of the log was made smaller", "bytes", done.After, "before", done.Before, "took",
				done.Took, "writesWaited", done.Waited)
		}
	}
}

// LeaveRoom gives the log on a full disk its own space again, which entries since the last
// shortening may have used. If nothing else is free at the next start, the election uses that
// space.
func (s *Storage) LeaveRoom() {
	if !s.Reserve.Full.Load() {
		return
	}
	if err := s.Log.Trim(); err != nil {
		s.logger.Warn(
			"the log has no room of its own on a full disk: where nothing at all is free, this server will not be elected after a start", "err", err)
	}
}

func (s *Storage) setTrailing(r Raft, entries uint64) {
	if err := r.Reload(func(c *raft.ReloadableConfig) { c.TrailingLogs = entries }); err != nil {
		s.logger.Error("cannot change how much of the log stays", "err", err)
	}
}
