// Package storetest is the conformance suite of the store, and has the helpers that its tests
// share. Every way to have a store must pass the suite: in memory, on one server, on the leader and
// on a follower of three. It is imported by tests only.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/raftstore"
)

// Conformance runs the suite. open returns an empty store; it sees to its end by t.Cleanup. Each
// case runs in virtual time.
func Conformance(t *testing.T, open func(t *testing.T) *raftstore.Store) {
	for _, c := range []struct {
		name string
		run  func(*testing.T, *raftstore.Store)
	}{
		{"put, get and delete", putGetDelete},
		{"preconditions", preconditions},
		{"several operations at one revision", atomicity},
		{"a transaction without effect takes no revision", noEffect},
		{"ascend and count", ascend},
		{"views do not change", immutableViews},
		{"views in history", history},
		{"min revision waits", minRevision},
		{"limits", limits},
		{"watch", watch},
		{"watch from history", watchHistory},
		{"watch from the future", watchFuture},
		{"watch progress", watchProgress},
		{"watch ends", watchEnds},
		{"compaction", compaction},
		{"term fence", fence},
		{"expiry", expiry},
		{"closed", closed},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { c.run(t, open(t)) })
		})
	}
}

// deadline is far longer than anything here takes.
const deadline = time.Minute

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	t.Cleanup(cancel)
	return ctx
}

func put(t *testing.T, s *raftstore.Store, key, value string) uint64 {
	t.Helper()
	return commit(t, s, raftstore.Txn{Ops: []raftstore.Op{{Kind: raftstore.Put, Key: key, Value: []byte(value)}}})
}

func remove(t *testing.T, s *raftstore.Store, key string) uint64 {
	t.Helper()
	return commit(t, s, raftstore.Txn{Ops: []raftstore.Op{{Kind: raftstore.Delete, Key: key}}})
}

func commit(t *testing.T, s *raftstore.Store, txn raftstore.Txn) uint64 {
	t.Helper()
	r, err := s.Commit(testContext(t), txn)
	if err != nil {
		t.Fatalf("Commit: %v", err)
	}
	return r.Revision
}

func view(t *testing.T, s *raftstore.Store, opts raftstore.ViewOptions) raftstore.View {
	t.Helper()
	v, err := s.View(testContext(t), opts)
	if err != nil {
		t.Fatalf("View(%+v): %v", opts, err)
	}
	return v
}

// list returns the keys and values under a prefix, as one line.
func list(v raftstore.View, prefix, from string) string {
	var b strings.Builder
	v.Ascend(prefix, from, func(item raftstore.Item) bool {
		fmt.Fprintf(&b, "%s=%s ", item.Key, item.Value)
		return true
	})
	return strings.TrimSpace(b.String())
}

func want[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

func wantErr(t *testing.T, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Fatalf("%s: got error %v, want %v", what, got, want)
	}
}
