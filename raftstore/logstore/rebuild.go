package logstore

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"github.com/hashicorp/raft"
)

// rebuild copies the log up to an entry into a new one, of the kind in the options, which replaces
// it when it is complete: see record. It has three uses. It converts a log. It cuts the end of a
// WAL: raft-wal v0.4.0 leaves a cut segment without an index, so that it is unreadable after a
// restart. It repairs a WAL whose process died when a segment was full and the next one was
// missing, which raft-wal does not continue.
func (l *Log) rebuild(keep uint64) error {
	if l.home == nil {
		return nil
	}
	l.access.Lock()
	defer l.access.Unlock()
	return l.copyTo(keep)
}

// copyTo is rebuild for a caller that holds access. The new log gets its free space last, from the
// rest of the old one. A file keeps the blocks of a failed attempt to take space, so on a full disk
// the record of the switch would find none otherwise.
func (l *Log) copyTo(keep uint64) error {
	next := l.home.next(l.opts.Kind)
	path := l.home.path(next)
	fresh, err := l.openStore(next)
	if err != nil {
		return err
	}
	err = errors.Join(copyValues(fresh, l.store), copyEntries(fresh, l.store, keep))
	if err != nil {
		return errors.Join(err, fresh.Close(), os.RemoveAll(path))
	}
	old, err := l.switchTo(next, fresh)
	switch {
	case errors.Is(err, ErrBroken):
		return errors.Join(err, fresh.Close())
	case err != nil:
		return errors.Join(err, fresh.Close(), os.RemoveAll(path))
	}
	if err := errors.Join(old.Close(), l.home.sweep()); err != nil {
		l.opts.Logger.Warn("cannot remove the log before this one; the next start does", "err", err)
	}
	return l.furnish(fresh, next.Kind, keep)
}

func copyValues(to, from Store) error {
	for _, key := range []string{keyCurrentTerm, keyVoteTerm, keyVote} {
		value, err := from.Get([]byte(key))
		if err != nil && err.Error() != "not found" {
			return fmt.Errorf("read the value %s: %w", key, err)
		}
		has, err := to.Get([]byte(key))
		if len(value) == 0 || err == nil && bytes.Equal(has, value) {
			continue
		}
		if err := to.Set([]byte(key), value); err != nil {
			return err
		}
	}
	return nil
}

// copyBytes is about how much goes into one write.
const copyBytes = 4 << 20

func copyEntries(to, from Store, keep uint64) error {
	first, err := from.FirstIndex()
	if err != nil || first == 0 {
		return err
	}
	for first <= keep {
		batch, err := readBatch(from, first, keep)
		if err != nil {
			return err
		}
		if err := to.StoreLogs(batch); err != nil {
			return err
		}
		first += uint64(len(batch))
	}
	return nil
}

// readBatch reads the entries from one to another that go into one write, or as many as that takes.
func readBatch(s Store, first, last uint64) (batch []*raft.Log, err error) {
	size := 0
	for index := first; index <= last && size < copyBytes && len(batch) < 1024; index++ {
		e := new(raft.Log)
		if err := s.GetLog(index, e); err != nil {
			return nil, fmt.Errorf("read entry %d: %w", index, err)
		}
		batch, size = append(batch, e), size+len(e.Data)
	}
	return batch, nil
}

// closed is the store of a log that could not be opened again.
type closed struct{}

var errNotOpen = errors.New("the log is not open: its disk has failed")

func (closed) FirstIndex() (uint64, error)      { return 0, errNotOpen }
func (closed) LastIndex() (uint64, error)       { return 0, errNotOpen }
func (closed) GetLog(uint64, *raft.Log) error   { return errNotOpen }
func (closed) StoreLog(*raft.Log) error         { return errNotOpen }
func (closed) StoreLogs([]*raft.Log) error      { return errNotOpen }
func (closed) DeleteRange(uint64, uint64) error { return errNotOpen }
func (closed) Set([]byte, []byte) error         { return errNotOpen }
func (closed) Get([]byte) ([]byte, error)       { return nil, errNotOpen }
func (closed) SetUint64([]byte, uint64) error   { return errNotOpen }
func (closed) GetUint64([]byte) (uint64, error) { return 0, errNotOpen }
func (closed) Close() error                     { return nil }
