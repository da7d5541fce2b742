package node

import (
	"errors"
	"fmt"
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
	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/logstore"
)

const (
	reserveFile = "reserve"
	// defaultReserve holds a new segment of a WAL, and the snapshot of a store of some size.
	defaultReserve = 64 << 20
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

// Errors of writes that are refused while the disk is full: while another server may take the lead,
// and when none can.
var (
	errDiskFull = fmt.Errorf("%w: %w: it runs on its reserve and takes only what deletes; make room on the volume of the store, or delete something",
		kv.ErrUnavailable, logstore.ErrFull)
	errDiskStuck = fmt.Errorf("%w: it runs on its reserve and takes only what deletes, and no other server can lead in its place: none that answers has room; make room on the volume of the store, or delete something",
		kv.ErrDiskFull)
)

// reserve is room on the disk that is held for the time when there is none.
//
//	held ──a write finds no room──▶ released: the disk is full ──room for the reserve, and as much again──▶ held
//
// With what it gives back, a server that cannot write an entry any more takes a snapshot, cuts its
// log, hands leadership over, and stops in order. Writes that would only eat it up are refused by a
// leader meanwhile; deletions are not, because they are the way out. A follower takes what the
// leader sends for as long as there is room: what is committed is committed.
//
// The log comes first: it takes room of its own (logstore.Log.Trim) before a snapshot gets what is
// left, and when it needs more all the same a snapshot that is being written is abandoned for it.
type reserve struct {
	path   string // empty: nothing is held, as in memory
	size   int64
	logger *slog.Logger
	freed  chan struct{} // holds a token when the reserve was released

	// stuck tells that, as the leader last saw it, no other server can lead in its place.
	stuck atomic.Bool
	// filled holds a token when the disk has become full, for the leader.
	filled chan struct{}

	mu   sync.Mutex
	held bool
	full bool
}

// openReserve takes hold of the reserve.
func openReserve(cfg *Config) (*reserve, error) {
	r := &reserve{logger: cfg.Logger, freed: make(chan struct{}, 1), filled: make(chan struct{}, 1), size: cfg.DiskReserve}
	if cfg.InMemory || cfg.DiskReserve < 0 {
		return r, nil
	}
	r.path = filepath.Join(cfg.Dir, reserveFile)
	var fs unix.Statfs_t
	if err := unix.Statfs(cfg.Dir, &fs); err != nil {
		return nil, fmt.Errorf("look how large the volume of %s is: %w", cfg.Dir, err)
	}
	if share := int64(fs.Blocks) * fs.Bsize / reserveShare; share > 0 {
		r.size = min(r.size, share)
	}
	if err := r.allocate(); err != nil {
		if !isFull(err) {
			return nil, fmt.Errorf("allocate %s: %w", r.path, err)
		}
		r.release()
	}
	return r, nil
}

func isFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// allocate makes the file with all its blocks.
func (r *reserve) allocate() error {
	file, err := os.OpenFile(r.path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	err = unix.Fallocate(int(file.Fd()), 0, 0, r.size)
	if errors.Is(err, unix.EOPNOTSUPP) { // then with real bytes
		err = writeZeros(file, r.size)
	}
	if err == nil {
		err = file.Truncate(r.size) // it was larger before
	}
	if err = errors.Join(err, file.Close()); err != nil {
		os.Remove(r.path)
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held, r.full = true, false
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

// release gives the room back, when a write has found none. It returns whether there is more now.
func (r *reserve) release() bool {
	if r.path == "" {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	held := r.held
	r.held = false
	if !r.full {
		r.full = true
		r.logger.Error("the disk is full: this server runs on its reserve, refuses what would need more room, hands leadership over "+
			"if another server has room, and shortens its log; make room on the volume", "dir", filepath.Dir(r.path), "reserve", r.size)
		for _, told := range []chan struct{}{r.freed, r.filled} {
			select {
			case told <- struct{}{}:
			default:
			}
		}
	}
	if err := os.Remove(r.path); err != nil && held {
		r.logger.Error("cannot give the reserve back", "err", err)
		return false
	}
	return held
}

// exhausted tells that the disk is full.
func (r *reserve) exhausted() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.full
}

// renew takes hold of the reserve again when there is room for it, and as much again. It returns
// whether it is held.
func (r *reserve) renew() bool {
	var fs unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(r.path), &fs); err != nil || int64(fs.Bavail)*fs.Bsize < 2*r.size {
		return false
	}
	if err := r.allocate(); err != nil {
		return false
	}
	r.logger.Warn("the disk has room again", "dir", filepath.Dir(r.path), "reserve", r.size)
	return true
}

// takes returns an error for a request that a leader whose disk is full refuses. What the store
// decides about its own members goes through, as deletions do: taking out the server with the full
// disk is a way out as well, and a few hundred bytes are what the reserve is for.
func (r *reserve) takes(req *command.Request) error {
	if !r.exhausted() || needsNoRoom(req) {
		return nil
	}
	if r.stuck.Load() {
		return errDiskStuck
	}
	return errDiskFull
}

// needsNoRoom tells whether a request makes nothing of the callers' larger.
func needsNoRoom(req *command.Request) bool {
	switch req.Kind {
	case command.KindCompact, command.KindExpire:
		return true
	case command.KindRestore: // what was put aside goes, as with a deletion
		return req.Restore.Step == command.RestoreAbort
	case command.KindTxn:
		return !slices.ContainsFunc(req.Txn.Ops, func(op kv.Op) bool { return op.Kind == kv.Put && !strings.HasPrefix(op.Key, kv.ReservedPrefix) })
	}
	return false
}

// keepRoom makes room while the disk is full, and gets the reserve back. It ends with the node.
func (n *Node) keepRoom() {
	for {
		select {
		case <-n.storage.reserve.freed:
			n.makeRoom()
		case <-n.ctx.Done():
			return
		}
	}
}

// makeRoom shortens the log, and does so again while more was written, which may have been
// deletions, until the reserve can be had again.
func (n *Node) makeRoom() {
	r := n.storage.reserve
	looked := time.NewTicker(reserveLook)
	defer looked.Stop()
	for wait := reserveLook; ; wait = min(2*wait, shortenRest) {
		before := n.raft.AppliedIndex()
		shortened := n.shorten()
		for rest := time.Duration(0); rest < wait || shortened && n.raft.AppliedIndex() == before; rest += reserveLook {
			select {
			case <-looked.C:
			case <-n.ctx.Done():
				return
			}
			if r.renew() {
				n.setTrailingLogs(n.cfg.TrailingLogs)
				return
			}
		}
	}
}

// shorten writes a snapshot and cuts the log as far as that lets it. What the file of a Boltdb does
// not need any more goes back to the volume. It returns whether there was room for that.
func (n *Node) shorten() bool {
	n.setTrailingLogs(min(n.cfg.TrailingLogs, trailingLogsWhenFull))
	// Before the snapshot, which may take all that there is. This also waits for the write that has
	// found no room.
	if err := n.storage.log.Trim(); err != nil {
		n.cfg.Logger.Warn("the log has no room of its own on a full disk", "err", err)
	}
	err := n.Snapshot()
	if err == nil {
		err = n.storage.log.Trim()
	}
	if err != nil {
		n.cfg.Logger.Error("cannot shorten the log of a full disk", "err", err)
	}
	return err == nil
}

// shrinkLook is how often it is looked whether the file of the log has grown.
const shrinkLook = time.Minute

// keepLogSmall gives the volume back what the file of the log does not need any more. It ends with
// the node.
func (n *Node) keepLogSmall() {
	ticker := time.NewTicker(shrinkLook)
	defer ticker.Stop()
	for {
		select {
		case <-n.ctx.Done():
			return
		case <-ticker.C:
		}
		if n.storage.reserve.exhausted() {
			continue // then the log is shortened: see makeRoom
		}
		done, err := n.storage.log.Shrink(n.ctx)
		switch {
		case err != nil:
			n.cfg.Logger.Warn("the log keeps room on the volume that it does not need; it is tried again", "err", err)
		case done.Before > 0:
			n.cfg.Logger.Info("the file of the log was made smaller", "bytes", done.After, "before", done.Before, "took", done.Took, "writesWaited", done.Waited)
		}
	}
}

// leaveRoom gives the log of a full disk room of its own again, which what came since it was
// shortened may have used: where nothing else is left at the next start, the server is elected in
// that.
func (n *Node) leaveRoom() {
	if !n.storage.reserve.exhausted() {
		return
	}
	if err := n.storage.log.Trim(); err != nil {
		n.cfg.Logger.Warn("the log has no room of its own on a full disk: where nothing at all is free, this server will not be elected after a start", "err", err)
	}
}

func (n *Node) setTrailingLogs(entries uint64) {
	err := n.raft.ReloadConfig(raft.ReloadableConfig{
		TrailingLogs: entries, SnapshotInterval: snapshotInterval, SnapshotThreshold: n.cfg.SnapshotEvery,
		HeartbeatTimeout: n.cfg.Timeouts.Heartbeat, ElectionTimeout: n.cfg.Timeouts.Election,
	})
	if err != nil {
		n.cfg.Logger.Error("cannot change how much of the log stays", "err", err)
	}
}
