package fieldindex

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/apiserver/objectcache"
	"github.com/barque/barque/raftstore"
)

// hang bounds waits of tests: only a hang exceeds it.
const hang = 2 * time.Minute

// env is an index of pods whose values are the names of their nodes.
type env struct {
	store *raftstore.Store
	index *Index
}

func newEnv(t *testing.T) *env {
	t.Helper()
	store := raftstore.NewInMemory(raftstore.Options{Limits: raftstore.Limits{HistoryAge: time.Hour}})
	index := New(Config{
		Field:  "spec.nodeName",
		Prefix: "/pods/",
		View: func(ctx context.Context) (raftstore.View, error) {
			return store.View(ctx, raftstore.ViewOptions{Stale: true})
		},
		Value: func(_ context.Context, of objectcache.Stored, _ bool) (string, bool) {
			return string(of.Value), true
		},
		Follow:  store.Watch,
		History: store.Watch,
		Logger:  slog.New(slog.DiscardHandler),
	})
	t.Cleanup(func() {
		index.Close()
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return &env{store, index}
}

// place puts a pod onto a node, and returns the revision.
func (e *env) place(t *testing.T, name, node string) uint64 {
	t.Helper()
	result, err := e.store.Commit(t.Context(), raftstore.Txn{
		Ops: []raftstore.Op{{Kind: raftstore.Put, Key: "/pods/ns/" + name, Value: []byte(node)}}})
	if err != nil {
		t.Fatal(err)
	}
	return result.Revision
}

// watch begins a watch of a node's pods after a revision, and reads it until the test ends.
func (e *env) watch(t *testing.T, node string, from uint64) {
	t.Helper()
	w, err := e.index.Watch("/pods/", node, from)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { // ends with Close
		defer close(done)
		for {
			if _, err := w.Next(context.WithoutCancel(t.Context())); err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		w.Close()
		<-done
	})
}

// await waits until a watch is in the index.
func (e *env) await(t *testing.T) {
	t.Helper()
	for limit := time.Now().Add(hang); ; {
		if values, _ := e.index.Stats(); values > 0 {
			return
		}
		if time.Now().After(limit) {
			t.Fatal("the watch has not entered the index")
		}
		<-time.After(time.Millisecond) // brief: the interval of a poll
	}
}

// indexHas waits until the index knows the objects as of a revision.
func (e *env) indexHas(t *testing.T, revision uint64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	if _, _, ok := e.index.List(ctx, "/pods/", "a", revision); !ok {
		t.Fatalf("the index has not come to revision %d", revision)
	}
}

// TestAWatchIsWokenForItsNodeAlone counts the changes that the watch of a node without pods has to
// check while others get theirs.
func TestAWatchIsWokenForItsNodeAlone(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	from := e.place(t, "p", "busy")
	w, err := e.index.Watch("/pods/", "idle", from)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	next := make(chan raftstore.Batch, 1)
	go func() { // ends with the batch, or with Close
		for {
			batch, err := w.Next(t.Context())
			if err != nil {
				close(next)
				return
			}
			next <- batch
		}
	}()
	e.await(t)
	e.place(t, "warm", "idle") // it may still read history
	for batch := range next {
		if strings.HasSuffix(batch.Events[0].Item.Key, "/warm") {
			break
		}
	}
	for range 50 {
		e.place(t, "p", "busy")
	}
	e.place(t, "mine", "idle")
	batch := <-next
	if len(batch.Events) != 1 || !strings.HasSuffix(batch.Events[0].Item.Key, "/mine") {
		t.Errorf("woken for %+v", batch.Events)
	}
}

// TestAListDoesNotWaitForAnIndexThatHasEnded closes an index while a list waits for it.
func TestAListDoesNotWaitForAnIndexThatHasEnded(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	from := e.place(t, "p", "a")
	e.watch(t, "a", from)
	e.await(t)
	done := make(chan bool, 1)
	go func() { // ends with the index
		_, _, ok := e.index.List(t.Context(), "/pods/", "a", from+1000)
		done <- ok
	}()
	select {
	case ok := <-done:
		t.Fatalf("it did not wait, and has found %t", ok)
	case <-time.After(50 * time.Millisecond): // brief: it waits in all likelihood; else it still ends
	}
	e.index.Close()
	select {
	case ok := <-done:
		if ok {
			t.Error("an index that has ended has told what it does not know")
		}
	case <-time.After(hang):
		t.Fatal("the list waits for an index that has ended")
	}
}

// TestAWatchOwesABookmark requests progress while history is read, and an event comes
// before it: the watch goes on with the index then, which has to send the progress.
func TestAWatchOwesABookmark(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	from := e.place(t, "p", "a")
	e.watch(t, "a", from)
	e.await(t)
	newest := e.place(t, "p", "a")
	e.indexHas(t, newest)
	w, err := e.index.Watch("/pods/", "a", from) // it begins with history
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	w.RequestProgress()
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	for i, events := range []int{1, 0} {
		batch, err := w.Next(ctx)
		if err != nil {
			t.Fatalf("batch %d: %v", i, err)
		}
		if len(batch.Events) != events || batch.Revision != newest {
			t.Errorf("batch %d has %d events of revision %d, want %d of %d", i, len(batch.Events), batch.Revision,
				events, newest)
		}
	}
}

// TestAWatchPollsHistory has a watch that begins with history take all without waiting.
func TestAWatchPollsHistory(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	from := e.place(t, "p", "a")
	e.watch(t, "a", from)
	e.await(t)
	newest := from
	for range 5 {
		newest = e.place(t, "p", "a")
	}
	e.indexHas(t, newest)
	w, err := e.index.Watch("/pods/", "a", from) // it begins with history
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for revision := from + 1; revision <= newest; revision++ {
		if batch, has := w.Poll(); !has || batch.Revision != revision || len(batch.Events) != 1 {
			t.Fatalf("polled %t, %d events of revision %d, want one of %d", has, len(batch.Events), batch.Revision,
				revision)
		}
	}
	if batch, has := w.Poll(); has {
		t.Errorf("polled revision %d after the newest, %d", batch.Revision, newest)
	}
	newest = e.place(t, "p", "a")
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	if batch, err := w.Next(ctx); err != nil || batch.Revision != newest {
		t.Errorf("then came revision %d, %v, want %d", batch.Revision, err, newest)
	}
}
