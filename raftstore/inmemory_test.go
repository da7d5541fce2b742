package raftstore_test

import (
	"testing"

	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/storetest"
)

func TestInMemoryConformance(t *testing.T) {
	storetest.Conformance(t, func(t *testing.T) *raftstore.Store {
		s := raftstore.NewInMemory(raftstore.Options{})
		t.Cleanup(func() { s.Close() })
		return s
	})
}
