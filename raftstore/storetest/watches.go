package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/raftstore"
)

var errEnough = errors.New("enough")

func next(t *testing.T, w raftstore.Watcher) raftstore.Batch {
	t.Helper()
	b, err := w.Next(testContext(t))
	if err != nil {
		t.Fatalf("Next: %v", err)
	}
	return b
}

// text writes a batch as "revision: +created=value *modified=old>new -deleted=value".
func text(b raftstore.Batch) string {
	var s strings.Builder
	fmt.Fprintf(&s, "%d:", b.Revision)
	for _, e := range b.Events {
		switch e.Kind {
		case raftstore.Created:
			fmt.Fprintf(&s, " +%s=%s", e.Item.Key, e.Item.Value)
		case raftstore.Modified:
			fmt.Fprintf(&s, " *%s=%s>%s", e.Item.Key, e.Prev.Value, e.Item.Value)
		case raftstore.Deleted:
			fmt.Fprintf(&s, " -%s=%s", e.Item.Key, e.Item.Value)
		}
	}
	return s.String()
}

func watch(t *testing.T, s *raftstore.Store) {
	put(t, s, "/a/0", "before")
	base := view(t, s, raftstore.ViewOptions{}).Revision()
	w, err := s.Watch(raftstore.WatchOptions{Prefix: "/a/"})
	want(t, "watch", err, nil)
	defer w.Close()
	put(t, s, "/a/1", "1")
	put(t, s, "/b/1", "not wanted")
	put(t, s, "/a", "not wanted")
	put(t, s, "/a/1", "2")
	commit(t, s, raftstore.Txn{Ops: []raftstore.Op{
		{Kind: raftstore.Delete, Key: "/a/1"},
		{Kind: raftstore.Put, Key: "/a/2", Value: []byte("3")},
		{Kind: raftstore.Put, Key: "/b/2", Value: []byte("not wanted")},
	}})
	for _, wanted := range []string{
		fmt.Sprintf("%d: +/a/1=1", base+1),
		fmt.Sprintf("%d: */a/1=1>2", base+4),
		fmt.Sprintf("%d: -/a/1=2 +/a/2=3", base+5),
	} {
		want(t, "batch", text(next(t, w)), wanted)
	}
	revision := remove(t, s, "/a/2")
	e := next(t, w).Events[0]
	want(t, "mod revision of a deletion", e.Item.ModRevision, revision)
	want(t, "create revision of a deletion", e.Item.CreateRevision, base+5)
	want(t, "mod revision of what was deleted", e.Prev.ModRevision, base+5)
}

func watchHistory(t *testing.T, s *raftstore.Store) {
	first := put(t, s, "/a", "0")
	for i := range 20 {
		put(t, s, "/b", fmt.Sprint(i))
		put(t, s, "/a", fmt.Sprint(i))
	}
	view(t, s, raftstore.ViewOptions{})
	w, err := s.Watch(raftstore.WatchOptions{Prefix: "/a", After: first + 2})
	want(t, "watch", err, nil)
	defer w.Close()
	for i := 1; i < 20; i++ {
		want(t, "batch", text(next(t, w)), fmt.Sprintf("%d: */a=%d>%d", first+2+2*uint64(i), i-1, i))
	}
	put(t, s, "/a", "live")
	want(t, "value", string(next(t, w).Events[0].Item.Value), "live")
}

func watchFuture(t *testing.T, s *raftstore.Store) {
	base := put(t, s, "/a", "0")
	w, err := s.Watch(raftstore.WatchOptions{Prefix: "/a", After: base + 3})
	want(t, "watch", err, nil)
	defer w.Close()
	w.RequestProgress()
	for i := range 5 {
		put(t, s, "/a", fmt.Sprint(i))
	}
	var got []string
	for len(got) < 2 {
		b := next(t, w)
		if len(b.Events) > 0 {
			got = append(got, text(b))
		} else if b.Revision < base+3 {
			t.Fatalf("progress at %d, before the start at %d", b.Revision, base+3)
		}
	}
	want(t, "batches", strings.Join(got, "; "), fmt.Sprintf("%d: */a=2>3; %d: */a=3>4", base+4, base+5))
}

func watchProgress(t *testing.T, s *raftstore.Store) {
	w, err := s.Watch(raftstore.WatchOptions{Prefix: "/a"})
	want(t, "watch", err, nil)
	defer w.Close()
	put(t, s, "/a", "1")
	revision := put(t, s, "/b", "2")
	view(t, s, raftstore.ViewOptions{}) // the server has the revision now
	w.RequestProgress()
	want(t, "events come before progress", len(next(t, w).Events), 1)
	b := next(t, w)
	want(t, "events", len(b.Events), 0)
	want(t, "revision", b.Revision, revision)

	timed, err := s.Watch(raftstore.WatchOptions{Prefix: "/c", Progress: 10 * time.Millisecond})
	want(t, "watch", err, nil)
	defer timed.Close()
	for range 3 {
		b := next(t, timed)
		want(t, "events", len(b.Events), 0)
		want(t, "revision", b.Revision, revision)
	}
}

func watchEnds(t *testing.T, s *raftstore.Store) {
	w, err := s.Watch(raftstore.WatchOptions{Prefix: "/a"})
	want(t, "watch", err, nil)
	ctx, cancel := context.WithCancelCause(testContext(t))
	cancel(errEnough)
	_, err = w.Next(ctx)
	wantErr(t, "Next with a context that is done", err, errEnough)

	ended := make(chan error)
	go func() {
		_, err := w.Next(testContext(t))
		ended <- err
	}()
	w.Close()
	w.Close()
	wantErr(t, "Next after Close", <-ended, raftstore.ErrClosed)

	other, err := s.Watch(raftstore.WatchOptions{Prefix: "/a"})
	want(t, "watch", err, nil)
	defer other.Close()
	s.Close()
	_, err = other.Next(testContext(t))
	wantErr(t, "Next after the store's Close", err, raftstore.ErrClosed)
}
