package logstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/faultpoint"
)

const (
	// shrinkBytes is the smallest free part of a file, in addition to half of it, that makes it
	// shrink while in use. Less is soon needed again.
	shrinkBytes = 64 << 20
	// shrinkRest is how many entries may be left to copy when writes are stopped.
	shrinkRest = 16
	// shrinkRounds is how often the entries that came meanwhile are copied before that.
	shrinkRounds = 1000
)

// Shrunk is the result of Shrink.
type Shrunk struct {
	Before, After int64         // bytes of the file; 0 when nothing was done
	Took, Waited  time.Duration // total time, and time for which writes had to wait
}

// Why a copy of the log is not used.
var (
	errCutMeanwhile = errors.New("the log was cut while it was copied")
	errNoWrites     = errors.New("the log takes no more writes, because its disk has failed")
)

// copying is a copy of the log that is being made while the log is in use.
type copying struct {
	log    *Log
	from   record
	cuts   uint64 // of the log when the copy began
	to     record
	fresh  Store
	copied uint64 // newest entry that the copy has
}

// Shrink makes the file of a Boltdb smaller when most of it is free: deletions only make space
// within the file. The log stays in use. It is copied into a new file, and writes only wait for the
// last entries and the switch. A crash at any moment leaves one whole log: see record.
//
// If the log is cut meanwhile, or the volume has too little space for a copy, nothing is done: the
// caller tries again later. A WAL deletes segments by itself.
func (l *Log) Shrink(ctx context.Context) (Shrunk, error) {
	began := time.Now()
	cuts := l.cuts.Load()
	from, size, wasteful := l.waste()
	if !wasteful {
		return Shrunk{}, nil
	}
	c := &copying{log: l, from: from, cuts: cuts, to: l.home.next(Boltdb)}
	waited, err := c.make(ctx)
	switch {
	case errors.Is(err, errCutMeanwhile), err != nil && ctx.Err() != nil:
		return Shrunk{}, nil
	case err != nil:
		return Shrunk{}, fmt.Errorf("make the file of the log smaller: %w", err)
	}
	info, err := os.Stat(l.home.path(c.to))
	if err != nil {
		return Shrunk{}, nil // it was replaced again
	}
	return Shrunk{Before: size, After: info.Size(), Took: time.Since(began), Waited: waited}, nil
}

// waste returns the file of a Boltdb and its size, and whether it is worth to be made smaller.
func (l *Log) waste() (of record, size int64, wasteful bool) {
	l.access.RLock()
	defer l.access.RUnlock()
	if l.home == nil || l.home.rec.Kind != Boltdb {
		return record{}, 0, false
	}
	info, err := os.Stat(l.home.path(l.home.rec))
	if err != nil {
		return record{}, 0, false
	}
	last, err := l.store.LastIndex()
	if err != nil {
		return record{}, 0, false
	}
	free, least := l.freePages(), int64(shrinkBytes)
	if l.opts.shrink > 0 {
		least = l.opts.shrink
	}
	size = info.Size()
	if free-roomBehind(l.store, last) < max(least, size/2) {
		return record{}, 0, false
	}
	if room, err := l.volumeFree(); err != nil || room < 2*(size-free)+least {
		return record{}, 0, false
	}
	return l.home.rec, size, true
}

// make makes the copy and puts it in place. It returns for how long writes had to wait.
func (c *copying) make(ctx context.Context) (waited time.Duration, err error) {
	l := c.log
	if c.fresh, err = l.openStore(c.to); err != nil {
		return 0, err
	}
	if err = c.follow(ctx); err == nil {
		err = c.room()
	}
	if err == nil {
		err = c.follow(ctx)
	}
	var old Store
	if err == nil {
		old, waited, err = c.replace()
	}
	if old != nil {
		// The switch is done. The old log has no reads any more: reads hold access.
		if closing := errors.Join(old.Close(), os.RemoveAll(l.home.path(c.from))); closing != nil {
			l.opts.Logger.Warn("cannot remove the log before this one; the next start does", "err", closing)
		}
		return waited, err
	}
	if errors.Is(err, ErrBroken) { // either of the two may be the log
		return 0, errors.Join(err, c.fresh.Close())
	}
	return 0, errors.Join(err, c.fresh.Close(), os.RemoveAll(l.home.path(c.to)))
}

// follow copies entries until few are left.
func (c *copying) follow(ctx context.Context) error {
	for range shrinkRounds {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		var first, last uint64
		err := c.log.use(func(s Store) (err error) {
			if first, err = s.FirstIndex(); err == nil {
				last, err = s.LastIndex()
			}
			return err
		})
		if err != nil {
			return err
		}
		if first > 0 {
			c.copied = max(c.copied, first-1)
		}
		if last <= c.copied+shrinkRest {
			return nil
		}
		for c.copied < last {
			if err := context.Cause(ctx); err != nil {
				return err
			}
			if err := c.batch(last, c.log.use); err != nil {
				return err
			}
		}
	}
	return errCutMeanwhile // or it grows as fast as it is copied
}

// batch copies some entries, up to the last one at most.
func (c *copying) batch(last uint64, use func(func(Store) error) error) error {
	var entries []*raft.Log
	err := use(func(s Store) (err error) {
		entries, err = readBatch(s, c.copied+1, last)
		return err
	})
	// An entry goes a moment before the cut is counted.
	if c.log.cuts.Load() != c.cuts || errors.Is(err, raft.ErrLogNotFound) {
		return errCutMeanwhile
	}
	if err != nil || len(entries) == 0 {
		return err
	}
	if err := c.fresh.StoreLogs(entries); err != nil {
		return err
	}
	c.copied = entries[len(entries)-1].Index
	return nil
}

// room gives the copy its free space. The volume has it, so nothing is taken from others.
func (c *copying) room() error {
	if c.to.Kind != Boltdb {
		return nil
	}
	var bytes int64
	err := c.log.use(func(s Store) error {
		bytes = roomBehind(s, c.copied)
		return nil
	})
	return errors.Join(err, c.fresh.Set([]byte(keyRoom), make([]byte, bytes)), c.fresh.Set([]byte(keyRoom), nil))
}

// replace stops writes, copies the rest, and makes the copy the log. It returns the old store,
// which is unused now.
func (c *copying) replace() (old Store, waited time.Duration, err error) {
	l := c.log
	l.writing.lock()
	defer l.writing.unlock()
	began := time.Now()
	l.access.Lock()
	defer l.access.Unlock()
	if l.broken != nil {
		return nil, 0, errNoWrites
	}
	if l.cuts.Load() != c.cuts || l.home.rec != c.from || c.copied > l.last {
		return nil, 0, errCutMeanwhile
	}
	now := func(call func(Store) error) error { return call(l.store) }
	for c.copied < l.last {
		if err := c.batch(l.last, now); err != nil {
			return nil, 0, err
		}
	}
	if err := copyValues(c.fresh, l.store); err != nil {
		return nil, 0, err
	}
	old, err = l.switchTo(c.to, c.fresh)
	return old, time.Since(began), err
}

// switchTo makes a complete store the log, and returns the old one. The caller holds writing and
// access. If it fails with ErrBroken it is unknown which of the two is the log.
func (l *Log) switchTo(next record, fresh Store) (old Store, err error) {
	l.opts.Fault.At(faultpoint.LogBeforeSwitch)
	if err := l.home.adopt(next); err != nil {
		if !l.home.isCurrent() { // after a crash either may be the one, so neither may be written to, or go
			return nil, l.breaks(err)
		}
		return nil, err
	}
	l.opts.Fault.At(faultpoint.LogAfterSwitch)
	old = l.store
	l.raw, l.store = fresh, l.opts.Wrap(fresh)
	return old, nil
}
