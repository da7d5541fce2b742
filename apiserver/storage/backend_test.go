package storage

import (
	"testing"

	"github.com/barque/barque/raftstore"
)

var _ Backend = (*raftstore.Store)(nil)

// newBackend returns a store in memory that ends with the test.
func newBackend(t testing.TB) *raftstore.Store {
	t.Helper()
	store := raftstore.NewInMemory(raftstore.Options{})
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return store
}
