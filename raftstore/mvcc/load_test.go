package mvcc

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/barque/barque/raftstore/kv"
)

// TestLoadChecksHistory gives Load steps back that do not lead from the items to anything.
func TestLoadChecksHistory(t *testing.T) {
	from := New(Limits{})
	for _, key := range []string{"/a", "/b", "/a"} {
		put(from, key, 1)
	}
	var good []kv.Undo
	from.History(1 << 20)(func(u kv.Undo) bool { good = append(good, u); return true })
	if len(good) != 3 || good[0].Revision != 3 || good[0].Before[0].ModRevision != 1 ||
		good[1].Before[0].ModRevision != 0 {
		t.Fatalf("%+v", good)
	}
	load := func(undos []kv.Undo) (*Store, error) {
		s := New(Limits{})
		v := from.Latest()
		return s, s.Load(Origin{Revision: 3, Hash: v.Hash()}, func(yield func(*kv.Item)) error {
			v.Ascend("", "", func(item kv.Item) bool { yield(&item); return true })
			return nil
		}, func(yield func(kv.Undo) error) error {
			for _, u := range undos {
				if err := yield(u); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if s, err := load(good); err != nil || s.Compacted() != 0 {
		t.Fatalf("history begins after %d, %v", s.Compacted(), err)
	}
	for what, spoil := range map[string]func([]kv.Undo) []kv.Undo{
		"a gap":                 func(u []kv.Undo) []kv.Undo { return slices.Delete(u, 1, 2) },
		"too new":               func(u []kv.Undo) []kv.Undo { u[0].Revision++; return u },
		"too many":              func(u []kv.Undo) []kv.Undo { return append(u, kv.Undo{Before: u[0].Before}) },
		"no change":             func(u []kv.Undo) []kv.Undo { u[1].Before = nil; return u },
		"another key":           func(u []kv.Undo) []kv.Undo { u[0].Before[0].Key = "/b"; return u },
		"nothing of nothing":    func(u []kv.Undo) []kv.Undo { u[1].Before[0] = kv.Item{Key: "/c"}; return u },
		"changed in the future": func(u []kv.Undo) []kv.Undo { u[0].Before[0].ModRevision = 3; return u },
	} {
		undos := slices.Clone(good)
		for i := range undos {
			undos[i].Before = slices.Clone(undos[i].Before)
		}
		if s, err := load(spoil(undos)); err == nil || s.Revision() != 0 {
			t.Errorf("%s: %v, the store is at revision %d", what, err, s.Revision())
		}
	}
}

// TestWatchOverALoad replaces the state under watchers, as when a follower is sent a snapshot.
// Those that history still reaches go on without a gap; the others get ErrCompacted.
func TestWatchOverALoad(t *testing.T) {
	ctx := context.Background()
	s := New(Limits{})
	for range 4 {
		put(s, "/a", 1)
	}
	ahead := New(Limits{})
	if err := transfer(s, ahead, 1<<20); err != nil {
		t.Fatal(err)
	}
	watch := func(prefix string, after uint64) kv.Watcher {
		w, err := s.Watch(kv.WatchOptions{Prefix: prefix, After: after})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.Close)
		return w
	}
	behind, current, idle, future := watch("/a", 1), watch("/a", 4), watch("/b", 1), watch("/a", 9)
	waits := make(chan kv.Batch, 1)
	waiting := watch("/a", 0)
	go func() {
		b, _ := waiting.Next(ctx)
		waits <- b
	}()
	for range 6 { // revisions 5 to 10
		put(ahead, "/a", 2)
	}
	ahead.Compact(3)
	ahead.Publish()
	if err := transfer(ahead, s, 1<<20); err != nil {
		t.Fatal(err)
	}
	if b := <-waits; b.Revision != 5 {
		t.Errorf("the watcher that waited goes on at %d, want 5", b.Revision)
	}
	for what, c := range map[string]struct {
		w    kv.Watcher
		want uint64
	}{"up to date": {current, 5}, "from the future": {future, 10}} {
		if b, err := c.w.Next(ctx); err != nil || b.Revision != c.want {
			t.Errorf("%s: revision %d, %v; want %d", what, b.Revision, err, c.want)
		}
	}
	_, err := behind.Next(ctx)
	var compacted *kv.CompactedError
	if !errors.As(err, &compacted) || !errors.Is(err, kv.ErrCompacted) || compacted.Revision != 1 ||
		compacted.Oldest != 3 {
		t.Errorf("a watcher that has not seen revisions 2 and 3: %v, want ErrCompacted, at 1, with 3 as the oldest",
			err)
	}
	revision := put(s, "/b", 3)
	if b, err := idle.Next(ctx); err != nil || b.Revision != revision {
		t.Errorf("a watcher that had seen everything: revision %d, %v; want %d", b.Revision, err, revision)
	}
	if n := s.Stats().Watchers; n != 5 {
		t.Errorf("%d watchers, want 5", n)
	}
}
