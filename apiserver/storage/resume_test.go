package storage

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
)

// A client that was watching at another server goes on at one that has just started. It must list
// again when the store's history does not reach back so far.
func TestAWatchGoesOnAtAServerThatHasJustStarted(t *testing.T) {
	t.Parallel()
	backend := newBackend(t)
	create := func(store storage.Interface, name string) string {
		t.Helper()
		out := &example.Pod{}
		if err := store.Create(t.Context(), "/pods/ns/"+name,
			&example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}, out, 0); err != nil {
			t.Fatal(err)
		}
		return out.ResourceVersion
	}
	old := open(t, backend, 0)
	seen := create(old, "seen")
	create(old, "missed")
	last := create(old, "missed-too")

	fresh := open(t, backend, 20*time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	follow := func(from string) watch.Interface {
		t.Helper()
		everything := storage.Everything
		everything.AllowWatchBookmarks = true
		w, err := fresh.Watch(ctx, "/pods/",
			storage.ListOptions{ResourceVersion: from, Predicate: everything, Recursive: true})
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
		if e := next(w); e.Type != watch.Added || podName(e) != want {
			t.Fatalf("got %s %v, want %s", e.Type, e.Object, want)
		}
	}
	create(fresh, "new")
	for {
		e := next(w)
		if e.Type == watch.Bookmark {
			continue
		}
		if e.Type != watch.Added || podName(e) != "new" {
			t.Fatalf("got %s %v, want the pod that came last", e.Type, e.Object)
		}
		break
	}

	create(fresh, "newest")
	for {
		if e := next(w); e.Type == watch.Added && podName(e) == "newest" {
			break
		} else if e.Type != watch.Bookmark {
			t.Fatalf("got %s %v, want the newest pod", e.Type, e.Object)
		}
	}
	w.Stop()
	for range w.ResultChan() { // it ends
	}

	if e := next(follow(last)); e.Type != watch.Added || podName(e) != "new" {
		t.Fatalf("from the newest that there was when it started: %s %v", e.Type, e.Object)
	}

	revision, err := fresh.Versioner().ParseResourceVersion(last)
	if err != nil {
		t.Fatal(err)
	}
	if err := backend.Compact(ctx, revision); err != nil {
		t.Fatal(err)
	}
	e := next(follow(seen))
	if status, ok := e.Object.(*metav1.Status); e.Type != watch.Error || !ok ||
		status.Reason != metav1.StatusReasonExpired {
		t.Fatalf("from before the history: %s %v", e.Type, e.Object)
	}
}

func revisionOf(e watch.Event) string {
	if shared, is := e.Object.(runtime.CacheableObject); is {
		e.Object = shared.GetObject()
	}
	return e.Object.(*example.Pod).ResourceVersion
}

// podName returns the name of the pod in an event, empty when there is none. The cache sends many
// watchers one object.
func podName(e watch.Event) string {
	if shared, is := e.Object.(runtime.CacheableObject); is {
		e.Object = shared.GetObject()
	}
	if pod, is := e.Object.(*example.Pod); is {
		return pod.Name
	}
	return ""
}

// TestCatchingUpMissesNothing lets clients come to a server that has just started while others
// write: each sees all of it, once and in order.
func TestCatchingUpMissesNothing(t *testing.T) {
	t.Parallel()
	backend := newBackend(t)
	create := func(store storage.Interface, i int) string {
		t.Helper()
		out := &example.Pod{}
		pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint(i)}}
		if err := store.Create(t.Context(), fmt.Sprint("/pods/ns/", i), pod, out, 0); err != nil {
			t.Fatal(err)
		}
		return out.ResourceVersion
	}
	const missed, live, clients = 200, 300, 8
	old := open(t, backend, 0)
	from := create(old, 0)
	for i := range missed {
		create(old, 1+i)
	}
	fresh := open(t, backend, 5*time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var watching sync.WaitGroup
	for client := range clients {
		watching.Go(func() {
			everything := storage.Everything
			everything.AllowWatchBookmarks = client%2 == 0
			seen, revision := 0, from
			for seen < missed+live && !t.Failed() { // a watch that ends is begun again
				w, err := fresh.Watch(ctx, "/pods/",
					storage.ListOptions{ResourceVersion: revision, Predicate: everything, Recursive: true})
				if err != nil {
					t.Error(err)
					return
				}
				for seen < missed+live {
					e, ok := <-w.ResultChan()
					if !ok {
						break
					}
					if e.Type == watch.Bookmark && everything.AllowWatchBookmarks {
						continue
					}
					if e.Type != watch.Added || podName(e) != fmt.Sprint(1+seen) {
						t.Errorf("client %d got %s %v, want pod %d", client, e.Type, e.Object, 1+seen)
						break
					}
					seen, revision = seen+1, revisionOf(e)
				}
				w.Stop()
			}
		})
	}
	for i := range live {
		create(fresh, 1+missed+i)
	}
	watching.Wait()
}
