// Package rollovertest is, for tests, one value that several servers share: the store of package
// rollover, in memory, and seen by all at once. It is linked into no program.
package rollovertest

import (
	"context"
	"errors"
	"sync"
)

// ErrConflict is returned for a write that names another revision than that of the value.
var ErrConflict = errors.New("it has changed")

// ErrTermOver is returned for a write that was to be made in another term than the leader's.
var ErrTermOver = errors.New("the term is over")

// Store holds one value. Each write has to name the revision that it replaces.
type Store struct {
	mu       sync.Mutex
	value    []byte
	revision uint64 // of value; 0: there is none
	newest   uint64 // the last revision ever
	term     uint64
	writes   int
	changed  chan struct{} // closed and replaced at every change
}

// New returns an empty one. No leader was elected yet.
func New() *Store { return &Store{changed: make(chan struct{})} }

// Elect begins a term. A leader of one before writes nothing more.
func (s *Store) Elect() (term uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.term++
	return s.term
}

// Get returns the value and its revision.
func (s *Store) Get(context.Context) (value []byte, revision uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.value, s.revision, nil
}

// Put replaces the value of that revision, in the term, or in whichever when that is 0.
func (s *Store) Put(_ context.Context, value []byte, revision, term uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case revision != s.revision:
		return ErrConflict
	case term != 0 && term != s.term:
		return ErrTermOver
	}
	s.set(value)
	s.writes++
	return nil
}

// Restore sets the value as a restored backup does, and returns the revision of that; nil removes
// it.
func (s *Store) Restore(value []byte) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set(value)
	return s.newest
}

func (s *Store) set(value []byte) {
	s.newest++
	s.value, s.revision = value, s.newest
	if value == nil {
		s.revision = 0
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// Writes returns how often Put has replaced the value.
func (s *Store) Writes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writes
}

// Follow calls f with the value, and again after each change, until ctx ends.
func (s *Store) Follow(ctx context.Context, f func(value []byte, revision uint64)) error {
	for {
		s.mu.Lock()
		value, revision, changed := s.value, s.revision, s.changed
		s.mu.Unlock()
		f(value, revision)
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}
