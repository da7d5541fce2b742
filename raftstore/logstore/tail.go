package logstore

import (
	"fmt"
	"sync"

	"github.com/hashicorp/raft"
)

// maxTail is how many entries a Tail remembers: far more than can be without a quorum at a time.
const maxTail = 1024

// Tail replaces the end of the log in one step, in Raft's view.
//
// A follower deletes the entries at its end that the new leader does not have, and then writes the
// leader's entries. After the first step Raft counts on the second one. If it fails, as on a full
// disk, Raft still believes that the old entries are there. It then applies up to the newest of
// them as soon as the leader's commit index reaches it, does not find them, and panics (its source
// notes that raft.appendEntries leaves this case open). So if no replacement could be written, Tail
// restores the deleted entries in memory. Raft deletes them again at its next attempt. If Raft
// instead appends to them, because their author has come back or this server is elected, they are
// written again first.
//
// No promise depends on entries in memory only: nothing is acknowledged that is not written, and
// entries that contradict a leader's are not committed.
type Tail struct {
	raft.LogStore
	fatal func(error)

	mu      sync.RWMutex // not held while the disk is at work; only Raft's main goroutine changes:
	removed []*raft.Log  // from the end of the log; the next write replaces them
	shown   int          // how many of them are there again
}

// NewTail returns a Tail of the log. fatal is called when the server can only continue after a
// restart.
func NewTail(log raft.LogStore, fatal func(error)) *Tail { return &Tail{LogStore: log, fatal: fatal} }

// IsMonotonic implements raft.MonotonicLogStore, as the log below does.
func (t *Tail) IsMonotonic() bool {
	m, ok := t.LogStore.(raft.MonotonicLogStore)
	return ok && m.IsMonotonic()
}

// DeleteRange implements raft.LogStore.
func (t *Tail) DeleteRange(from, to uint64) error {
	removed, shown := t.memory()
	if shown == 0 {
		return t.cut(from, to, nil)
	}
	first, last := removed[0].Index, removed[shown-1].Index
	switch {
	case to < last: // the beginning of the log
		if to = min(to, first-1); from > to {
			return nil
		}
		return t.LogStore.DeleteRange(from, to)
	case from > first:
		t.remember(removed, int(from-first))
		return nil
	}
	return t.cut(from, first-1, removed)
}

// cut deletes from the log on disk. It remembers the deleted end, with the entries in memory behind
// it.
func (t *Tail) cut(from, to uint64, behind []*raft.Log) error {
	last, err := t.LogStore.LastIndex()
	if err != nil {
		return err
	}
	if to < last {
		return t.LogStore.DeleteRange(from, to)
	}
	var end []*raft.Log
	if from <= last && last-from < maxTail {
		for i := from; i <= last; i++ {
			e := new(raft.Log)
			if err := t.LogStore.GetLog(i, e); err != nil {
				return fmt.Errorf("read entry %d before it is deleted: %w", i, err)
			}
			end = append(end, e)
		}
	}
	if from <= to {
		if err := t.LogStore.DeleteRange(from, to); err != nil {
			return err
		}
	}
	if end == nil && from <= last {
		behind = nil // there would be a gap
	}
	t.remember(append(end, behind...), 0)
	return nil
}

func (t *Tail) memory() (removed []*raft.Log, shown int) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.removed, t.shown
}

func (t *Tail) remember(removed []*raft.Log, shown int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.removed, t.shown = removed, shown
}

// StoreLog implements raft.LogStore.
func (t *Tail) StoreLog(entry *raft.Log) error { return t.StoreLogs([]*raft.Log{entry}) }

// StoreLogs implements raft.LogStore.
func (t *Tail) StoreLogs(entries []*raft.Log) error {
	removed, shown := t.memory()
	if len(removed) == 0 || len(entries) == 0 {
		return t.LogStore.StoreLogs(entries)
	}
	follows := entries[0].Index == removed[0].Index+uint64(shown)
	if follows {
		entries = append(append([]*raft.Log(nil), removed[:shown]...), entries...)
	}
	err := t.LogStore.StoreLogs(entries)
	if err == nil {
		t.remember(nil, 0)
	} else if follows {
		t.remember(removed, len(removed))
		t.checkMembers(removed[shown:], err)
	}
	return err
}

// checkMembers makes a server restart if a restored entry changes the members: with its deletion,
// Raft went back to the earlier members.
func (t *Tail) checkMembers(again []*raft.Log, err error) {
	for _, e := range again {
		if e.Type == raft.LogConfiguration {
			t.fatal(
				fmt.Errorf(
					"the end of the log, with a change of the members in it, was deleted and could not be replaced: this server must start again: %w", err))
			return
		}
	}
}

// GetLog implements raft.LogStore.
func (t *Tail) GetLog(index uint64, entry *raft.Log) error {
	removed, shown := t.memory()
	if shown > 0 && index >= removed[0].Index && index-removed[0].Index < uint64(shown) {
		*entry = *removed[index-removed[0].Index]
		return nil
	}
	return t.LogStore.GetLog(index, entry)
}

// FirstIndex implements raft.LogStore.
func (t *Tail) FirstIndex() (uint64, error) {
	first, err := t.LogStore.FirstIndex()
	if removed, shown := t.memory(); err == nil && first == 0 && shown > 0 {
		first = removed[0].Index
	}
	return first, err
}

// LastIndex implements raft.LogStore.
func (t *Tail) LastIndex() (uint64, error) {
	if removed, shown := t.memory(); shown > 0 {
		return removed[shown-1].Index, nil
	}
	return t.LogStore.LastIndex()
}
