package storetest

import (
	"errors"
	"testing"
	"time"

	"github.com/barque/barque/raftstore"
)

func putGetDelete(t *testing.T, s *raftstore.Store) {
	first := put(t, s, "/a", "1")
	second := put(t, s, "/a", "2")
	want(t, "revision of the second put", second, first+1)
	v := view(t, s, raftstore.ViewOptions{})
	item, ok := v.Get("/a")
	want(t, "found", ok, true)
	want(t, "value", string(item.Value), "2")
	want(t, "create revision", item.CreateRevision, first)
	want(t, "mod revision", item.ModRevision, second)
	third := remove(t, s, "/a")
	want(t, "revision of the delete", third, second+1)
	_, ok = view(t, s, raftstore.ViewOptions{}).Get("/a")
	want(t, "found after the delete", ok, false)
	fourth := put(t, s, "/a", "3")
	item, _ = view(t, s, raftstore.ViewOptions{}).Get("/a")
	want(t, "create revision of the second life", item.CreateRevision, fourth)
}

func preconditions(t *testing.T, s *raftstore.Store) {
	create := func(revision uint64, value string) (uint64, error) {
		r, err := s.Commit(testContext(t), raftstore.Txn{
			Require: []raftstore.Precondition{{Key: "/other"}, {Key: "/a", ModRevision: revision}},
			Ops:     []raftstore.Op{{Kind: raftstore.Put, Key: "/a", Value: []byte(value)}},
		})
		return r.Revision, err
	}
	first, err := create(0, "1")
	want(t, "create-only on an absent key", err, nil)
	_, err = create(0, "2")
	var conflict *raftstore.ConflictError
	if !errors.As(err, &conflict) {
		t.Fatalf("create-only on a key that exists: %v", err)
	}
	want(t, "conflict's key", conflict.Key, "/a")
	want(t, "conflict's value", string(conflict.Current.Value), "1")
	want(t, "conflict's mod revision", conflict.Current.ModRevision, first)
	if conflict.Revision < first {
		t.Fatalf("conflict seen at revision %d, before %d", conflict.Revision, first)
	}
	_, err = create(first, "2")
	want(t, "compare-and-set at the right revision", err, nil)
	if _, err = create(first, "3"); !errors.As(err, &conflict) {
		t.Fatalf("compare-and-set at an old revision: %v", err)
	}
	remove(t, s, "/a")
	if _, err = create(first, "4"); !errors.As(err, &conflict) || conflict.Current != nil {
		t.Fatalf("compare-and-set on a deleted key: %v", err)
	}
	want(t, "keys after refused transactions", list(view(t, s, raftstore.ViewOptions{}), "/", ""), "")
}

func atomicity(t *testing.T, s *raftstore.Store) {
	put(t, s, "/b", "old")
	revision := commit(t, s, raftstore.Txn{Ops: []raftstore.Op{
		{Kind: raftstore.Put, Key: "/a", Value: []byte("1")},
		{Kind: raftstore.Delete, Key: "/b"},
		{Kind: raftstore.Put, Key: "/c", Value: []byte("3")},
	}})
	v := view(t, s, raftstore.ViewOptions{Revision: revision})
	want(t, "keys", list(v, "/", ""), "/a=1 /c=3")
	a, _ := v.Get("/a")
	c, _ := v.Get("/c")
	want(t, "one revision for both", a.ModRevision, c.ModRevision)

	_, err := s.Commit(testContext(t), raftstore.Txn{Ops: []raftstore.Op{
		{Kind: raftstore.Put, Key: "/a"}, {Kind: raftstore.Delete, Key: "/a"},
	}})
	wantErr(t, "two operations on one key", err, raftstore.ErrInvalid)
}

func noEffect(t *testing.T, s *raftstore.Store) {
	revision := put(t, s, "/a", "1")
	want(t, "revision of a delete of nothing", remove(t, s, "/nothing"), revision)
	want(t, "revision of an empty transaction", commit(t, s, raftstore.Txn{}), revision)
	want(t, "the next revision", put(t, s, "/a", "2"), revision+1)
}

func limits(t *testing.T, s *raftstore.Store) {
	ctx := testContext(t)
	big := make([]byte, 3<<19)
	_, err := s.Commit(ctx, raftstore.Txn{Ops: []raftstore.Op{{Kind: raftstore.Put, Key: "/a", Value: big}}})
	want(t, "a value at the limit", err, nil)
	for what, txn := range map[string]raftstore.Txn{
		"value": {Ops: []raftstore.Op{{Kind: raftstore.Put, Key: "/a", Value: append(big, 0)}}},
		"key":   {Ops: []raftstore.Op{{Kind: raftstore.Put, Key: string(make([]byte, 5000))}}},
		"sum": {Ops: []raftstore.Op{
			{Kind: raftstore.Put, Key: "/a", Value: big}, {Kind: raftstore.Put, Key: "/b", Value: big},
			{Kind: raftstore.Put, Key: "/c", Value: big},
		}},
		"count": {Require: make([]raftstore.Precondition, 1025)},
	} {
		_, err := s.Commit(ctx, txn)
		wantErr(t, what, err, raftstore.ErrTooLarge)
	}
	for what, op := range map[string]raftstore.Op{
		"empty key":    {Kind: raftstore.Put},
		"unknown kind": {Kind: 9, Key: "/a"},
		"negative TTL": {Kind: raftstore.Put, Key: "/a", TTL: -1},
	} {
		_, err := s.Commit(ctx, raftstore.Txn{Ops: []raftstore.Op{op}})
		wantErr(t, what, err, raftstore.ErrInvalid)
	}
}

func fence(t *testing.T, s *raftstore.Store) {
	_, err := s.Commit(testContext(t), raftstore.Txn{
		Term: 1 << 40, Ops: []raftstore.Op{{Kind: raftstore.Put, Key: "/a"}},
	})
	wantErr(t, "a term that is not", err, raftstore.ErrFenced)
	want(t, "keys", view(t, s, raftstore.ViewOptions{}).Count("/", ""), 0)
}

func expiry(t *testing.T, s *raftstore.Store) {
	var renewed uint64
	for ttl := 3 * time.Second; ; ttl *= 2 {
		written := commit(t, s, raftstore.Txn{Ops: []raftstore.Op{
			{Kind: raftstore.Put, Key: "/short", Value: []byte("v"), TTL: ttl},
			{Kind: raftstore.Put, Key: "/renewed", Value: []byte("for a while"), TTL: ttl},
			{Kind: raftstore.Put, Key: "/long", TTL: time.Hour},
		}})
		renewed = put(t, s, "/renewed", "for ever")
		if before, _ := view(t, s, raftstore.ViewOptions{Revision: renewed - 1}).Get(
			"/renewed"); before.ModRevision == written {
			break
		}
		if ttl > 10*time.Second { // the disk was so slow that it had expired
			t.Fatalf("from one write to the next a key of %v expires", ttl)
		}
	}
	w, err := s.Watch(raftstore.WatchOptions{Prefix: "/", After: renewed})
	want(t, "watch", err, nil)
	defer w.Close()
	gone := next(t, w)
	want(t, "events", len(gone.Events), 1)
	want(t, "kind", gone.Events[0].Kind, raftstore.Deleted)
	want(t, "key", gone.Events[0].Item.Key, "/short")
	want(t, "last value", string(gone.Events[0].Item.Value), "v")
	want(t, "what stays", list(view(t, s, raftstore.ViewOptions{}), "/", ""), "/long= /renewed=for ever")
}

func closed(t *testing.T, s *raftstore.Store) {
	put(t, s, "/a", "1")
	old := view(t, s, raftstore.ViewOptions{})
	want(t, "close", s.Close(), nil)
	want(t, "close again", s.Close(), nil)
	ctx := testContext(t)
	_, err := s.Commit(ctx, raftstore.Txn{Ops: []raftstore.Op{{Kind: raftstore.Put, Key: "/a"}}})
	wantErr(t, "Commit", err, raftstore.ErrClosed)
	_, err = s.View(ctx, raftstore.ViewOptions{})
	wantErr(t, "View", err, raftstore.ErrClosed)
	_, err = s.Watch(raftstore.WatchOptions{})
	wantErr(t, "Watch", err, raftstore.ErrClosed)
	_, _, err = s.AwaitLeadership(ctx)
	wantErr(t, "AwaitLeadership", err, raftstore.ErrClosed)
	want(t, "a view from before", list(old, "/", ""), "/a=1")
}
