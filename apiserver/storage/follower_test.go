package storage

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"

	"github.com/barque/barque/raftstore"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
)

// laggingBackend is a follower that is as far behind as it can be: it shows the store's state at
// the call of lag, until a read of the newest state.
type laggingBackend struct {
	Backend
	mu  sync.Mutex
	old raftstore.View
}

func (b *laggingBackend) lag(t testing.TB) {
	t.Helper()
	view, err := b.Backend.View(t.Context(), raftstore.ViewOptions{})
	if err != nil {
		t.Fatal(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.old = view
}

func (b *laggingBackend) View(ctx context.Context, opts raftstore.ViewOptions) (raftstore.View, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if opts.Stale {
		return b.old, nil
	}
	return b.Backend.View(ctx, opts)
}

func newLaggingEnv(t *testing.T) (*env, *laggingBackend) {
	t.Helper()
	e := newEnv(t, envOptions{})
	e.increase(e.ctx, t)
	lagging := &laggingBackend{Backend: e.backend}
	lagging.lag(t)
	e.raw.backend = lagging
	return e, lagging
}

// TestConformanceOfALaggingFollower runs the suite's tests of writes on a server that never
// catches up by itself.
func TestConformanceOfALaggingFollower(t *testing.T) {
	for _, tt := range writeTests() {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e, _ := newLaggingEnv(t)
			tt.run(t, e)
		})
	}
}

func TestFollowerDecidesNothingByOldState(t *testing.T) {
	const key = "/pods/ns/p"
	newPod := func() *example.Pod {
		return &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "new"}}
	}
	t.Run("update of what it has not seen", func(t *testing.T) {
		e, _ := newLaggingEnv(t)
		if err := e.store.Create(e.ctx, key, newPod(), nil, 0); err != nil {
			t.Fatal(err)
		}
		out := &example.Pod{}
		if err := e.store.GuaranteedUpdate(e.ctx, key, out, false, nil, label("a"), nil); err != nil {
			t.Fatal(err)
		}
		if out.UID != "new" || out.Labels["label"] != "a" {
			t.Errorf("updated to %+v", out)
		}
	})
	t.Run("refusal by an old object", func(t *testing.T) {
		e, lagging := newLaggingEnv(t)
		if err := e.store.Create(e.ctx, key, newPod(), nil, 0); err != nil {
			t.Fatal(err)
		}
		lagging.lag(t)
		if err := e.store.GuaranteedUpdate(e.ctx, key, &example.Pod{}, false, nil, label("ready"), nil); err != nil {
			t.Fatal(err)
		}
		err := e.store.GuaranteedUpdate(e.ctx, key, &example.Pod{}, false, nil,
			storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
				if obj.(*example.Pod).Labels["label"] != "ready" {
					return nil, errors.New("not ready")
				}
				obj.(*example.Pod).Generation = 2
				return obj, nil
			}), nil)
		if err != nil {
			t.Error(err)
		}
	})
	t.Run("nothing to do by an old object", func(t *testing.T) {
		e, lagging := newLaggingEnv(t)
		if err := e.store.Create(e.ctx, key, newPod(), nil, 0); err != nil {
			t.Fatal(err)
		}
		if err := e.store.GuaranteedUpdate(e.ctx, key, &example.Pod{}, false, nil, label("a"), nil); err != nil {
			t.Fatal(err)
		}
		lagging.lag(t)
		if err := e.store.GuaranteedUpdate(e.ctx, key, &example.Pod{}, false, nil, label("b"), nil); err != nil {
			t.Fatal(err)
		}
		out := &example.Pod{}
		if err := e.store.GuaranteedUpdate(e.ctx, key, out, false, nil, label("a"), nil); err != nil {
			t.Fatal(err)
		}
		got := &example.Pod{}
		if err := e.store.Get(e.ctx, key, storage.GetOptions{}, got); err != nil {
			t.Fatal(err)
		}
		if got.Labels["label"] != "a" || got.ResourceVersion != out.ResourceVersion {
			t.Errorf("the store has label %q at %s after an update to \"a\" that answered %s", got.Labels["label"],
				got.ResourceVersion, out.ResourceVersion)
		}
	})
	t.Run("delete of what was made again", func(t *testing.T) {
		e, lagging := newLaggingEnv(t)
		first := newPod()
		first.UID = "old"
		if err := e.store.Create(e.ctx, key, first, nil, 0); err != nil {
			t.Fatal(err)
		}
		lagging.lag(t)
		if err := e.store.Delete(e.ctx, key, &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil,
			storage.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := e.store.Create(e.ctx, key, newPod(), nil, 0); err != nil {
			t.Fatal(err)
		}
		err := e.store.Delete(e.ctx, key, &example.Pod{}, storage.NewUIDPreconditions("old"),
			storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
		if !storage.IsInvalidObj(err) {
			t.Errorf("deleting by the UID of an earlier object: %v", err)
		}
		if err := e.store.Get(e.ctx, key, storage.GetOptions{}, &example.Pod{}); err != nil {
			t.Error(err)
		}
	})
	t.Run("read not older than another server's write", func(t *testing.T) {
		e, _ := newLaggingEnv(t)
		out := &example.Pod{}
		if err := e.store.Create(e.ctx, key, newPod(), out, 0); err != nil {
			t.Fatal(err)
		}
		if err := e.store.Get(e.ctx, key, storage.GetOptions{ResourceVersion: out.ResourceVersion},
			&example.Pod{}); err != nil {
			t.Errorf("get not older than %s: %v", out.ResourceVersion, err)
		}
		err := e.store.Get(e.ctx, key, storage.GetOptions{ResourceVersion: "999"}, &example.Pod{})
		if !storage.IsTooLargeResourceVersion(err) {
			t.Errorf("get at a revision that does not exist: %v", err)
		}
	})
}

func TestConcurrentUpdatesAllCount(t *testing.T) {
	const writers, each = 8, 25
	e := newEnv(t, envOptions{cached: true})
	const key = "/pods/ns/p"
	if err := e.store.Create(e.ctx, key, &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}}, nil,
		0); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for range each {
				err := e.store.GuaranteedUpdate(e.ctx, key, &example.Pod{}, false, nil,
					storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
						obj.(*example.Pod).Generation++
						return obj, nil
					}), nil)
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	got := &example.Pod{}
	if err := e.store.Get(e.ctx, key, storage.GetOptions{}, got); err != nil {
		t.Fatal(err)
	}
	if got.Generation != writers*each {
		t.Errorf("counted to %d, want %d", got.Generation, writers*each)
	}
}

// TestConsistentReadAsksForProgress: a client that requests the current revision is going to wait
// until a watch has seen it, so the watch gets its progress at once, with no write of its own
// resource and long before its interval.
func TestConsistentReadAsksForProgress(t *testing.T) {
	e := newEnv(t, envOptions{})
	start := e.increase(e.ctx, t)
	e.raw.progress = 1 << 40 // never by itself
	w, err := e.store.Watch(e.ctx, "/pods/", storage.ListOptions{
		ResourceVersion: strconv.FormatInt(start, 10), Predicate: storage.Everything, Recursive: true,
		ProgressNotify: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}}
	if err := e.store.Create(e.ctx, "/pods/ns/p", pod, nil, 0); err != nil {
		t.Fatal(err)
	}
	if event := <-w.ResultChan(); event.Type != watch.Added {
		t.Fatalf("got %v", event)
	}
	want := strconv.FormatInt(e.increase(e.ctx, t), 10)
	if _, err := e.store.GetCurrentResourceVersion(e.ctx); err != nil {
		t.Fatal(err)
	}
	event := <-w.ResultChan()
	if got := event.Object.(*example.Pod).ResourceVersion; event.Type != watch.Bookmark || got != want {
		t.Errorf("got %s at %s, want a bookmark at %s", event.Type, got, want)
	}
}

func TestListOfAnEmptyStoreHasARevision(t *testing.T) {
	e := newEnv(t, envOptions{})
	list := &example.PodList{}
	if err := e.store.GetList(e.ctx, "/pods/", storage.ListOptions{Predicate: storage.Everything, Recursive: true},
		list); err != nil {
		t.Fatal(err)
	}
	if list.ResourceVersion == "" || list.ResourceVersion == "0" {
		t.Errorf("resourceVersion is %q", list.ResourceVersion)
	}
	again := &example.PodList{}
	if err := e.store.GetList(e.ctx, "/pods/", storage.ListOptions{Predicate: storage.Everything, Recursive: true},
		again); err != nil {
		t.Fatal(err)
	}
	if again.ResourceVersion != list.ResourceVersion {
		t.Errorf("a second list moved the revision from %s to %s", list.ResourceVersion, again.ResourceVersion)
	}
}

// TestListKeepsItsSnapshot: the pages of one list show one revision, with any writes between them.
func TestListKeepsItsSnapshot(t *testing.T) {
	e := newEnv(t, envOptions{})
	for i := range 10 {
		name := fmt.Sprintf("p%d", i)
		if err := e.store.Create(e.ctx, "/pods/ns/"+name,
			&example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}, nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	opts := storage.ListOptions{Predicate: storage.Everything, Recursive: true}
	opts.Predicate.Limit = 3
	var names []string
	revision := ""
	for {
		page := &example.PodList{}
		if err := e.store.GetList(e.ctx, "/pods/", opts, page); err != nil {
			t.Fatal(err)
		}
		if revision == "" {
			revision = page.ResourceVersion
		}
		if page.ResourceVersion != revision {
			t.Errorf("a page is of revision %s, the first one of %s", page.ResourceVersion, revision)
		}
		for _, pod := range page.Items {
			names = append(names, pod.Name)
		}
		if remaining := page.RemainingItemCount; page.Continue != "" &&
			(remaining == nil || *remaining != int64(10-len(names))) {
			t.Errorf("after %d items the page says that %v remain", len(names), remaining)
		}
		if page.Continue == "" {
			break
		}
		opts.Predicate.Continue = page.Continue
		gone := fmt.Sprintf("p%d", 9-len(names)/3)
		if err := e.store.Delete(e.ctx, "/pods/ns/"+gone, &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil,
			storage.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if len(names) != 10 {
		t.Errorf("the pages show %v, want all ten", names)
	}
}
