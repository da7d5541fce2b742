package storetest

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/barque/barque/raftstore"
)

func ascend(t *testing.T, s *raftstore.Store) {
	for _, key := range []string{"/b/2", "/a/1", "/b/1", "/c", "/b/3", "/b"} {
		put(t, s, key, "v")
	}
	v := view(t, s, raftstore.ViewOptions{})
	for _, c := range []struct {
		prefix, from, want string
		count              int
	}{
		{"", "", "/a/1=v /b=v /b/1=v /b/2=v /b/3=v /c=v", 6},
		{"/b/", "", "/b/1=v /b/2=v /b/3=v", 3},
		{"/b/", "/b/2", "/b/2=v /b/3=v", 2},
		{"/b/", "/b/2\x00", "/b/3=v", 1},
		{"/b/", "/a", "/b/1=v /b/2=v /b/3=v", 3},
		{"/b/", "/c", "", 0},
		{"/d", "", "", 0},
	} {
		want(t, fmt.Sprintf("Ascend(%q, %q)", c.prefix, c.from), list(v, c.prefix, c.from), c.want)
		want(t, fmt.Sprintf("Count(%q, %q)", c.prefix, c.from), v.Count(c.prefix, c.from), c.count)
	}
	visited := 0
	v.Ascend("/b/", "", func(raftstore.Item) bool { visited++; return visited < 2 })
	want(t, "visited until fn said stop", visited, 2)
}

func immutableViews(t *testing.T, s *raftstore.Store) {
	for i := range 200 {
		put(t, s, fmt.Sprintf("/k%03d", i), "old")
	}
	v := view(t, s, raftstore.ViewOptions{})
	before := list(v, "/", "")
	for i := 0; i < 200; i += 2 {
		put(t, s, fmt.Sprintf("/k%03d", i), "new")
		remove(t, s, fmt.Sprintf("/k%03d", i+1))
	}
	want(t, "the old view", list(v, "/", ""), before)
}

func history(t *testing.T, s *raftstore.Store) {
	was := map[uint64]string{}
	for i := range 60 {
		key := fmt.Sprintf("/k%d", i%7)
		var revision uint64
		if i%5 == 4 {
			revision = remove(t, s, key)
		} else {
			revision = put(t, s, key, fmt.Sprint(i))
		}
		was[revision] = list(view(t, s, raftstore.ViewOptions{Revision: revision}), "/", "")
	}
	for revision, keys := range was {
		v := view(t, s, raftstore.ViewOptions{Revision: revision})
		want(t, "revision", v.Revision(), revision)
		want(t, fmt.Sprintf("keys at revision %d", revision), list(v, "/", ""), keys)
	}
	_, err := s.View(testContext(t), raftstore.ViewOptions{Revision: s.Revision() + 1})
	wantErr(t, "a view of the future", err, raftstore.ErrFutureRevision)
}

func minRevision(t *testing.T, s *raftstore.Store) {
	revision := put(t, s, "/a", "1")
	got := make(chan uint64)
	go func() {
		v, err := s.View(testContext(t), raftstore.ViewOptions{MinRevision: revision + 1})
		if err != nil {
			t.Errorf("View: %v", err)
			got <- 0
			return
		}
		got <- v.Revision()
	}()
	put(t, s, "/a", "2")
	want(t, "revision", <-got, revision+1)

	ctx, cancel := context.WithCancelCause(testContext(t))
	cancel(errEnough)
	_, err := s.View(ctx, raftstore.ViewOptions{MinRevision: revision + 100})
	wantErr(t, "a revision that does not come", err, errEnough)
}

// wantCompacted is wantErr for an error with both revisions.
func wantCompacted(t *testing.T, name string, err error, revision, oldest uint64) {
	t.Helper()
	wantErr(t, name, err, raftstore.ErrCompacted)
	var compacted *raftstore.CompactedError
	if !errors.As(err, &compacted) || compacted.Revision != revision || compacted.Oldest != oldest {
		t.Errorf("%s: %v; want revision %d, with %d as the oldest", name, err, revision, oldest)
	}
}

func compaction(t *testing.T, s *raftstore.Store) {
	first := put(t, s, "/a", "1")
	second := put(t, s, "/a", "2")
	third := put(t, s, "/a", "3")
	want(t, "Compact", s.Compact(testContext(t), second), nil)
	view(t, s, raftstore.ViewOptions{}) // catches up where this server does not lead

	_, err := s.View(testContext(t), raftstore.ViewOptions{Revision: first})
	wantCompacted(t, "View below", err, first, second)
	v := view(t, s, raftstore.ViewOptions{Revision: second})
	want(t, "View at it", list(v, "/", ""), "/a=2")
	_, err = s.Watch(raftstore.WatchOptions{Prefix: "/", After: first})
	wantCompacted(t, "Watch below", err, first, second)
	w, err := s.Watch(raftstore.WatchOptions{Prefix: "/", After: second})
	want(t, "Watch at it", err, nil)
	defer w.Close()
	want(t, "revision", next(t, w).Revision, third)
}
