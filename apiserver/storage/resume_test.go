package storage

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
)

// A client that was watching at another server goes on at one that has just started, whose cache knows less than the
// client has still to be told; and it is told to list again when the store's history does not reach back so far.
func TestAWatchGoesOnAtAServerThatHasJustStarted(t *testing.T) {
	t.Parallel()
	backend := newBackend(t)
	create := func(store storage.Interface, name string) string {
		t.Helper()
		out := &example.Pod{}
		if err := store.Create(t.Context(), "/pods/ns/"+name, &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}, out, 0); err != nil {
			t.Fatal(err)
		}
		return out.ResourceVersion
	}
	old := open(t, RESTOptionsConfig{Backend: backend})
	seen := create(old, "seen")
	create(old, "missed")
	last := create(old, "missed-too")

	fresh := open(t, RESTOptionsConfig{Backend: backend, ProgressInterval: 20 * time.Millisecond})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	follow := func(from string) watch.Interface {
		t.Helper()
		everything := storage.Everything
		everything.AllowWatchBookmarks = true
		w, err := fresh.Watch(ctx, "/pods/", storage.ListOptions{ResourceVersion: from, Predicate: everything, Recursive: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.Stop)
		return w
	}
	next := func(w watch.Interface) watch.Event {
		t.Helper()
		select {
		case e := <-w.ResultChan():
			return e
		case <-ctx.Done():
			t.Fatal("no event")
			return watch.Event{}
		}
	}
	w := follow(seen)
	for _, want := range []string{"missed", "missed-too"} {
		if e := next(w); e.Type != watch.Added || e.Object.(*example.Pod).Name != want {
			t.Fatalf("got %s %v, want %s", e.Type, e.Object, want)
		}
	}
	create(fresh, "new")
	for {
		e := next(w)
		if e.Type == watch.Bookmark { // it is told of progress, too
			continue
		}
		if e.Type != watch.Added || e.Object.(*example.Pod).Name != "new" {
			t.Fatalf("got %s %v, want the pod that came last", e.Type, e.Object)
		}
		break
	}
	for next(w).Type != watch.Bookmark {
	}

	// What the cache has is read from there.
	if e := next(follow(last)); e.Type != watch.Added || e.Object.(*example.Pod).Name != "new" {
		t.Fatalf("from the newest that the cache began with: %s %v", e.Type, e.Object)
	}

	revision, err := fresh.Versioner().ParseResourceVersion(last)
	if err != nil {
		t.Fatal(err)
	}
	if err := backend.Compact(ctx, revision); err != nil {
		t.Fatal(err)
	}
	e := next(follow(seen))
	if status, ok := e.Object.(*metav1.Status); e.Type != watch.Error || !ok || status.Reason != metav1.StatusReasonExpired {
		t.Fatalf("from before the history: %s %v", e.Type, e.Object)
	}
}
