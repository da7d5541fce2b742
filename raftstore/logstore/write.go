package logstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/faultpoint"
)

// write makes a write for which Raft waits: watched, timed, between its two points.
func (l *Log) write(op Operation, before, after string, do func() error) error {
	l.opts.Fault.At(before)
	start := time.Now()
	err := l.disk.guard(func() error {
		l.writing.lock()
		defer l.writing.unlock()
		return l.attempt(do)
	})
	took := time.Since(start)
	if err == nil {
		l.opts.Fault.At(after)
	}
	l.mu.Lock()
	l.failure = err
	l.mu.Unlock()
	if op == Append {
		l.times.add(took)
	}
	if l.opts.Observe != nil {
		l.opts.Observe(op, took)
	}
	return err
}

// roomTries is how often space is made for one write. There are several things to give up, and one
// may be too little, or be taken by another program at once.
const roomTries = 3

// attempt makes a write on a store that is fit for it, and again while room can be made. The caller
// holds writing.
func (l *Log) attempt(do func() error) error {
	err := l.once(do)
	for range roomTries {
		if !l.lacksRoom(err) || l.opts.MakeRoom == nil || !l.opts.MakeRoom() {
			break
		}
		err = l.once(do)
	}
	return l.tellFull(err)
}

// tellFull makes the error of a write that failed for want of room an ErrFull.
func (l *Log) tellFull(err error) error {
	if l.lacksRoom(err) {
		return fmt.Errorf("%w: %w", ErrFull, err)
	}
	return err
}

// lacksRoom reports whether a write failed because the disk is full, and may be repeated when it
// is not.
func (l *Log) lacksRoom(err error) bool { return l.broken == nil && isFull(err) }

func (l *Log) once(do func() error) error {
	if l.broken != nil {
		return l.broken
	}
	err := l.reopen()
	if err == nil {
		err = do()
	}
	if isSealed(err) {
		if err = l.rebuild(l.last); err == nil {
			err = do()
		}
	}
	return l.failed(err)
}

// failed decides the effect of a failure on later writes.
func (l *Log) failed(err error) error {
	if err == nil {
		return nil
	}
	if l.broken != nil {
		return l.broken
	}
	l.stale = l.home != nil && l.home.rec.Kind == WAL // it takes no more entries after a failure
	var errno syscall.Errno
	if isFull(err) || !errors.As(err, &errno) {
		return err
	}
	return l.breaks(err)
}

// breaks ends all writing: the contents of the disk are unknown.
func (l *Log) breaks(err error) error {
	l.broken = fmt.Errorf("%w: %w", ErrBroken, err)
	if l.opts.Fatal != nil {
		l.opts.Fatal(l.broken)
	}
	return l.broken
}

// reopen opens the store again after a failure, and removes everything after the last acknowledged
// entry. Raft, which got an error for the write, would not overwrite it.
func (l *Log) reopen() error {
	if !l.stale {
		return nil
	}
	l.access.Lock()
	defer l.access.Unlock()
	err := l.store.Close()
	store, again := l.openStore(l.home.rec)
	if again != nil {
		l.store = closed{}
		return errors.Join(err, again)
	}
	l.raw, l.store = store, l.opts.Wrap(store)
	last, err := l.store.LastIndex()
	if err == nil && last > l.last {
		err = l.cut(l.last+1, last)
	}
	if err == nil {
		l.stale = false
	}
	return err
}

// cut deletes the end of the log. The caller holds access.
func (l *Log) cut(from, last uint64) error {
	if l.home != nil && l.home.rec.Kind == WAL {
		return l.copyTo(from - 1)
	}
	return l.store.DeleteRange(from, last)
}

// StoreLog implements raft.LogStore.
func (l *Log) StoreLog(entry *raft.Log) error { return l.StoreLogs([]*raft.Log{entry}) }

// StoreLogs implements raft.LogStore. The entries must follow the newest one.
func (l *Log) StoreLogs(entries []*raft.Log) error {
	if len(entries) == 0 {
		return nil
	}
	protected := protect(entries)
	return l.write(Append, faultpoint.LogBeforeSync, faultpoint.LogAfterSync, func() error {
		if err := l.join(entries[0].Index); err != nil {
			return err
		}
		if err := l.flushTerm(); err != nil {
			return err
		}
		if err := l.store.StoreLogs(protected); err != nil {
			return err
		}
		newest := entries[len(entries)-1]
		l.last = newest.Index
		l.promise(func(p *promises) { p.Last, p.LastTerm = newest.Index, newest.Term })
		return nil
	})
}

// join ensures that an entry follows the newest one. Raft deletes the old entries after it has got
// a snapshot from outside, and only logs a failure of that: so they may still be there.
func (l *Log) join(index uint64) error {
	switch {
	case l.last == 0 || index == l.last+1:
		return nil
	case index > l.last+1 && index <= l.mark.get().Snapshot+1:
		first, err := l.store.FirstIndex()
		if err != nil {
			return err
		}
		return l.truncate(first, l.last)
	}
	return fmt.Errorf("entry %d cannot follow entry %d in the log", index, l.last)
}

// DeleteRange implements raft.LogStore. The range must be at the beginning or at the end of the
// log. It is not watched: it may be long, and the writes that wait behind it are watched.
func (l *Log) DeleteRange(first, last uint64) error {
	l.opts.Fault.At(faultpoint.LogBeforeTruncate)
	start := time.Now()
	l.writing.lock()
	err := l.attempt(func() error { return l.truncate(first, last) })
	l.writing.unlock()
	if l.opts.Observe != nil {
		l.opts.Observe(Truncate, time.Since(start))
	}
	if err == nil {
		l.opts.Fault.At(faultpoint.LogAfterTruncate)
	}
	return err
}

func (l *Log) truncate(first, last uint64) error {
	defer l.cuts.Add(1)
	if last < l.last {
		if l.opts.Floor != nil {
			last = min(last, l.opts.Floor())
		}
		if last < first {
			return nil
		}
		return l.store.DeleteRange(first, last) // the beginning, which is in a snapshot
	}
	oldest, err := l.store.FirstIndex()
	if err != nil {
		return err
	}
	keep := first - 1
	if first <= oldest {
		keep = 0
	}
	// The promise is taken back before it is broken.
	if err := l.mark.set(true, func(p *promises) { p.Last, p.LastTerm = keep, 0 }); err != nil {
		return err
	}
	if l.home == nil {
		err = l.store.DeleteRange(first, last)
	} else {
		l.access.Lock()
		err = l.cut(max(first, oldest), last)
		l.access.Unlock()
	}
	if err == nil {
		l.last = keep
	}
	return err
}

// Set implements raft.StableStore.
func (l *Log) Set(key, value []byte) error {
	return l.write(Vote, faultpoint.VoteBeforeSync, faultpoint.VoteAfterSync, func() error {
		if err := l.flushTerm(); err != nil {
			return err
		}
		if err := l.store.Set(key, protectValue(key, value)); err != nil {
			return err
		}
		l.promise(func(p *promises) {
			switch string(key) {
			case keyVote:
				p.Vote = voteHash(value)
			case keyVoteTerm:
				p.VoteTerm, p.Vote = binary.BigEndian.Uint64(value), 0
			}
		})
		return nil
	})
}

// SetUint64 implements raft.StableStore.
//
// Raft ends the process if its term cannot be written, which a full disk would cause on all servers
// of a cluster in turn. So an unwritable term counts in memory only for now. Every promise of Raft
// to others in it, an entry or a vote, first writes the term to disk, or fails. Without such a
// promise it is harmless if a crash forgets the term.
func (l *Log) SetUint64(key []byte, value uint64) error {
	if string(key) != keyCurrentTerm {
		return l.Set(key, binary.BigEndian.AppendUint64(nil, value))
	}
	l.mu.Lock()
	l.term = value
	l.mu.Unlock()
	err := l.write(Vote, faultpoint.TermBeforeSync, faultpoint.TermAfterSync, l.flushTerm)
	if err != nil {
		l.opts.Logger.Error("cannot write the term to disk: this server neither votes nor takes entries until it can",
			"term", value, "err", err)
	}
	return nil
}

// flushTerm writes a term to disk that is not there yet.
func (l *Log) flushTerm() error {
	term := l.pending()
	if term == 0 {
		return nil
	}
	value := binary.BigEndian.AppendUint64(nil, term)
	if err := l.store.Set([]byte(keyCurrentTerm), protectValue([]byte(keyCurrentTerm), value)); err != nil {
		return err
	}
	l.mu.Lock()
	if l.term == term {
		l.term = 0
	}
	l.mu.Unlock()
	l.promise(func(p *promises) { p.Term = term })
	return nil
}

// promise records a promise. If that fails a loss would be noticed a little less well, which is no
// reason to fail data on disk.
func (l *Log) promise(change func(*promises)) {
	if err := l.mark.set(false, change); err != nil {
		l.opts.Logger.Warn("cannot note what the log has promised", "err", err)
	}
}
