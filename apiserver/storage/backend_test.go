package storage

import (
	"testing"
	"time"

	"github.com/barque/barque/raftstore"
)

var _ Backend = (*raftstore.Store)(nil)

// newBackend returns a store in memory that ends with the test. Its history lasts longer than tests
// do.
func newBackend(t testing.TB) *raftstore.Store {
	t.Helper()
	return newBackendWith(t, raftstore.Limits{HistoryAge: time.Hour})
}

func newBackendWith(t testing.TB, limits raftstore.Limits) *raftstore.Store {
	t.Helper()
	store := raftstore.NewInMemory(raftstore.Options{Limits: limits})
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return store
}
