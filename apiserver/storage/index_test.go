package storage

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/barque/barque/apiserver/fieldindex"
	"github.com/barque/barque/apiserver/rawlist"
	"github.com/barque/barque/raftstore"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
)

// ofNode selects the pods of a node.
func ofNode(node string) storage.SelectionPredicate {
	return storage.SelectionPredicate{
		Label: labels.Everything(), Field: fields.SelectorFromSet(fields.Set{"spec.nodeName": node}),
		GetAttrs: podAttrs, IndexFields: []string{"spec.nodeName"},
	}
}

// place puts a pod onto a node, and makes it if there is none.
func (e *env) place(t testing.TB, name, node string) uint64 {
	t.Helper()
	out := &example.Pod{}
	err := e.store.GuaranteedUpdate(e.ctx, "/pods/ns/"+name, out, true, nil,
		storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
			pod := obj.(*example.Pod)
			pod.Namespace, pod.Name, pod.Spec.NodeName = "ns", name, node
			pod.Generation++ // so that the write changes the object
			return pod, nil
		}), nil)
	if err != nil {
		t.Fatal(err)
	}
	return e.revisionOf(t, out)
}

func (e *env) remove(t testing.TB, name string) {
	t.Helper()
	err := e.store.Delete(e.ctx, "/pods/ns/"+name, &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil,
		storage.DeleteOptions{})
	if err != nil && !storage.IsNotFound(err) {
		t.Fatal(err)
	}
}

func (e *env) revisionOf(t testing.TB, obj runtime.Object) uint64 {
	t.Helper()
	revision, err := e.raw.versioner.ObjectResourceVersion(obj)
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

// watch begins one after a revision.
func (e *env) watch(t testing.TB, pred storage.SelectionPredicate, from uint64) watch.Interface {
	t.Helper()
	opts := storage.ListOptions{ResourceVersion: strconv.FormatUint(from, 10), Predicate: pred, Recursive: true}
	w, err := e.store.Watch(e.ctx, "/pods/", opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	return w
}

// told is a watch's event of one change.
type told struct {
	kind                 watch.EventType
	name, node, revision string
}

func tell(e watch.Event) told {
	if shared, is := e.Object.(runtime.CacheableObject); is {
		e.Object = shared.GetObject()
	}
	pod, ok := e.Object.(*example.Pod)
	if !ok {
		return told{kind: e.Type, name: fmt.Sprintf("%v", e.Object)}
	}
	return told{kind: e.Type, name: pod.Name, node: pod.Spec.NodeName, revision: pod.ResourceVersion}
}

// until reads a watch to the change of a pod.
func until(t testing.TB, w watch.Interface, name string) []told {
	t.Helper()
	var all []told
	for limit := time.After(hang); ; {
		select {
		case e, ok := <-w.ResultChan():
			if !ok {
				t.Fatalf("the watch ended after %v", all)
			}
			if all = append(all, tell(e)); e.Type == watch.Error || all[len(all)-1].name == name {
				return all
			}
		case <-limit:
			t.Fatalf("%s has not come, only %v", name, all)
		}
	}
}

// TestAnIndexedWatchTellsWhatAPlainOneTells has watches of single nodes begin at any moment, in the
// past and now, while pods are made, moved and deleted, and lets the index begin anew meanwhile.
// Each must have the same events as a watch of a storage that checks every change.
func TestAnIndexedWatchTellsWhatAPlainOneTells(t *testing.T) {
	t.Parallel()
	e := newEnv(t, envOptions{cached: true, indexes: true})
	failing := &endingWatches{Backend: e.backend}
	config, err := e.raw.indexConfig("spec.nodeName",
		func(obj runtime.Object) string { return obj.(*example.Pod).Spec.NodeName })
	if err != nil {
		t.Fatal(err)
	}
	config.Follow = failing.Watch
	e.raw.index = fieldindex.New(config)
	plain := newEnv(t, envOptions{backend: e.backend, cached: true})
	random := rand.New(rand.NewPCG(1, 2))
	nodes := []string{"", "a", "b", "c"}
	step := func() {
		name := fmt.Sprintf("p%d", random.IntN(6))
		if random.IntN(4) == 0 {
			e.remove(t, name)
			return
		}
		e.place(t, name, nodes[random.IntN(len(nodes))])
	}
	type pair struct {
		node           string
		indexed, plain watch.Interface
	}
	var pairs []pair
	begin := func(node string, from uint64) {
		t.Helper()
		pairs = append(pairs, pair{node, e.watch(t, ofNode(node), from), plain.watch(t, ofNode(node), from)})
	}
	first := e.place(t, "first", "a")
	for i := range 400 {
		step()
		if i%20 == 0 {
			begin(nodes[random.IntN(len(nodes))], first+uint64(random.IntN(i+1)))
		}
		if i%100 == 50 {
			failing.end(t)
		}
	}
	for _, node := range nodes {
		e.place(t, "last-"+node, node)
	}
	for i, p := range pairs {
		got, want := until(t, p.indexed, "last-"+p.node), until(t, p.plain, "last-"+p.node)
		if !slices.Equal(got, want) {
			t.Errorf("watch %d, of node %q, told\n%v\nwant\n%v", i, p.node, got, want)
		}
		p.indexed.Stop()
		p.plain.Stop()
	}
	for _, node := range nodes {
		for _, revision := range []string{"", "0"} {
			opts := storage.ListOptions{Predicate: ofNode(node), Recursive: true, ResourceVersion: revision}
			got, want := &example.PodList{}, &example.PodList{}
			if err := e.store.GetList(e.ctx, "/pods/", opts, got); err != nil {
				t.Fatal(err)
			}
			if err := plain.store.GetList(e.ctx, "/pods/", opts, want); err != nil {
				t.Fatal(err)
			}
			if !slices.EqualFunc(got.Items, want.Items,
				func(a, b example.Pod) bool { return a.Name == b.Name && a.ResourceVersion == b.ResourceVersion }) {
				t.Errorf("node %q at %q: listed %v, want %v", node, revision, got.Items, want.Items)
			}
		}
	}
}

// endingWatches can make the newest of its watches fall behind history.
type endingWatches struct {
	Backend
	mu    sync.Mutex
	begun int
	now   *endingWatch
}

func (b *endingWatches) Watch(opts raftstore.WatchOptions) (raftstore.Watcher, error) {
	w, err := b.Backend.Watch(opts)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.begun++
	b.now = &endingWatch{Watcher: w}
	return b.now, nil
}

// end ends the watch of now, and waits for the next one.
func (b *endingWatches) end(t testing.TB) {
	t.Helper()
	begun := 0 // when the watch of now was
	await := func(what string, is func() bool) {
		t.Helper()
		for limit := time.Now().Add(hang); ; {
			b.mu.Lock()
			done := is()
			b.mu.Unlock()
			if done {
				return
			}
			if time.Now().After(limit) {
				t.Fatal(what)
			}
			<-time.After(time.Millisecond) // brief: the interval of a poll
		}
	}
	await("the index does not begin", func() bool {
		if b.now != nil {
			begun = b.begun
			b.now.behind.Store(true)
			b.now.RequestProgress()
		}
		return b.now != nil
	})
	await("the index does not begin anew", func() bool { return b.begun > begun })
}

type endingWatch struct {
	raftstore.Watcher
	behind atomic.Bool
}

func (w *endingWatch) Next(ctx context.Context) (raftstore.Batch, error) {
	batch, err := w.Watcher.Next(ctx)
	if w.behind.Load() {
		return raftstore.Batch{}, raftstore.ErrCompacted
	}
	return batch, err
}

// TestASlowIndexedWatchMissesNothing does not read a watch while more happens than is kept for it.
func TestASlowIndexedWatchMissesNothing(t *testing.T) {
	t.Parallel()
	e := newEnv(t, envOptions{cached: true, indexes: true})
	from := e.place(t, "p", "a")
	w := e.watch(t, ofNode("a"), from)
	e.awaitIndex(t)
	const changes = 3 * (fieldindex.QueueLength + watchBuffer)
	for range changes {
		e.place(t, "p", "a")
	}
	e.place(t, "last", "a")
	all := until(t, w, "last")
	if len(all) != changes+1 {
		t.Fatalf("told of %d changes, want %d", len(all), changes+1)
	}
	for i, is := range all {
		if want := strconv.FormatUint(from+1+uint64(i), 10); is.revision != want {
			t.Fatalf("change %d is of revision %s, want %s", i, is.revision, want)
		}
	}
}

// awaitIndex waits until a watch is in the index.
func (e *env) awaitIndex(t testing.TB) {
	t.Helper()
	for limit := time.Now().Add(hang); ; {
		if values, _ := e.raw.index.Stats(); values > 0 {
			return
		}
		if time.Now().After(limit) {
			t.Fatal("the watch has not entered the index")
		}
		<-time.After(time.Millisecond) // brief: the interval of a poll
	}
}

// TestAnIndexedWatchHasBookmarks requests progress of a watch whose node has no pods.
func TestAnIndexedWatchHasBookmarks(t *testing.T) {
	t.Parallel()
	e := newEnv(t, envOptions{cached: true, indexes: true})
	e.raw.bookmarks = 10 * time.Millisecond
	from := e.place(t, "p", "busy")
	pred := ofNode("idle")
	pred.AllowWatchBookmarks = true
	w := e.watch(t, pred, from)
	e.awaitIndex(t)
	newest := e.place(t, "p", "busy")
	for limit := time.After(hang); ; {
		select {
		case event := <-w.ResultChan():
			if event.Type != watch.Bookmark {
				t.Fatalf("got %s %v", event.Type, event.Object)
			}
			if e.revisionOf(t, event.Object) >= newest {
				return
			}
		case <-limit:
			t.Fatal("no bookmark has come to the newest revision")
		}
	}
}

// TestClosedStoresEndTheirWatches closes a storage as the registry of a definition does that
// changes.
func TestClosedStoresEndTheirWatches(t *testing.T) {
	t.Parallel()
	e := newEnv(t, envOptions{cached: true, indexes: true})
	from := e.place(t, "p", "a")
	for _, pred := range []storage.SelectionPredicate{ofNode("a"), storage.Everything} {
		opts := storage.ListOptions{ResourceVersion: strconv.FormatUint(from, 10), Predicate: pred, Recursive: true}
		w, err := e.store.Watch(e.ctx, "/pods/", opts)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			for event := range w.ResultChan() {
				t.Errorf("got %s %v", event.Type, event.Object)
			}
			if again, err := e.store.Watch(e.ctx, "/pods/", opts); err == nil {
				for event := range again.ResultChan() {
					t.Errorf("after the end: %s %v", event.Type, event.Object)
				}
			} else if !errors.Is(err, raftstore.ErrClosed) {
				t.Error(err)
			}
		}()
	}
	e.raw.Close()
	e.raw.Close()
}

// TestIndexedWatchesEndWithTheDatastore closes it under a watch that waits in the index.
func TestIndexedWatchesEndWithTheDatastore(t *testing.T) {
	t.Parallel()
	e := newEnv(t, envOptions{cached: true, indexes: true})
	from := e.place(t, "p", "a")
	w := e.watch(t, ofNode("a"), from)
	e.awaitIndex(t)
	e.place(t, "last", "a")
	until(t, w, "last")
	if err := e.backend.Close(); err != nil {
		t.Fatal(err)
	}
	for event := range w.ResultChan() {
		t.Errorf("got %s %v", event.Type, event.Object)
	}
}

// TestASelectorDecodesWhatMatches lists by labels objects that were never decoded.
func TestASelectorDecodesWhatMatches(t *testing.T) {
	t.Parallel()
	decoded := &countingCodec{Codec: protobufCodec()}
	e := newEnv(t, envOptions{cached: true, codec: decoded, rawLists: rawlist.NewCache(1 << 20)})
	for i := range 20 {
		pod := &example.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("p%02d", i),
				Labels: map[string]string{"app": "other", "n": fmt.Sprint(i)}}}
		if i%5 == 0 {
			pod.Labels["app"] = "web"
		}
		if err := e.store.Create(e.ctx, "/pods/ns/"+pod.Name, pod, nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		selector      string
		want, decodes int
	}{
		{"app=web", 4, 4},
		{"app=web", 4, 0}, // they are kept
		{"app!=web,n in (1,2,5)", 2, 2},
		{"!app", 0, 0},
		{"app", 20, 14},
	} {
		selector, err := labels.Parse(tt.selector)
		if err != nil {
			t.Fatal(err)
		}
		before := decoded.n.Load()
		list := &example.PodList{}
		opts := storage.ListOptions{Recursive: true,
			Predicate: storage.SelectionPredicate{Label: selector, Field: fields.Everything(), GetAttrs: podAttrs}}
		if err := e.store.GetList(e.ctx, "/pods/", opts, list); err != nil {
			t.Fatal(err)
		}
		if n := int(decoded.n.Load() - before); len(list.Items) != tt.want || n != tt.decodes {
			t.Errorf("%s: %d objects of %d that were decoded, want %d of %d", tt.selector, len(list.Items), n, tt.want,
				tt.decodes)
		}
	}
}

// countingCodec counts the decodings.
type countingCodec struct {
	runtime.Codec
	n atomic.Int32
}

func (c *countingCodec) Decode(
	data []byte, defaults *schema.GroupVersionKind, into runtime.Object,
) (runtime.Object, *schema.GroupVersionKind, error) {
	c.n.Add(1)
	return c.Codec.Decode(data, defaults, into)
}

// TestAListHasWhatItsIndexCouldNotRead writes an object while nothing can be transformed, as when
// the server of the keys cannot be reached for a moment. A list of its node must not be without it
// afterwards, as if it were deleted.
func TestAListHasWhatItsIndexCouldNotRead(t *testing.T) {
	t.Parallel()
	backend := newBackend(t)
	writer := newEnv(t, envOptions{backend: backend, transformer: identity.NewEncryptCheckTransformer()})
	e := newEnv(t, envOptions{backend: backend, cached: true, indexes: true, failing: true})
	first := writer.place(t, "before", "a")
	list := func() ([]string, error) {
		pods := &example.PodList{}
		err := e.store.GetList(e.ctx, "/pods/", storage.ListOptions{Predicate: ofNode("a"), Recursive: true}, pods)
		var names []string
		for i := range pods.Items {
			names = append(names, pods.Items[i].Name)
		}
		return names, err
	}
	e.watch(t, ofNode("other"), first)
	e.awaitIndex(t)
	if names, err := list(); err != nil || !slices.Equal(names, []string{"before"}) { // it is decoded now
		t.Fatalf("listed %v, %v", names, err)
	}
	e.failTransformer(true)
	e.indexHas(t, writer.place(t, "during", "a"))
	if names, err := list(); err == nil {
		t.Errorf("listed %v while one cannot be read", names)
	}
	e.failTransformer(false)
	if names, err := list(); err != nil || !slices.Equal(names, []string{"before", "during"}) {
		t.Errorf("listed %v, %v", names, err)
	}
	e.indexHas(t, writer.place(t, "during", "b"))
	if names, err := list(); err != nil || !slices.Equal(names, []string{"before"}) {
		t.Errorf("when it has gone to another node: listed %v, %v", names, err)
	}
	e.failTransformer(true)
	e.indexHas(t, writer.place(t, "gone", "a"))
	e.failTransformer(false)
	writer.remove(t, "gone")
	if names, err := list(); err != nil || !slices.Equal(names, []string{"before"}) {
		t.Errorf("after a deletion: listed %v, %v", names, err)
	}
	if _, unread := e.raw.index.Stats(); unread != 0 {
		t.Errorf("the index still knows %d objects that it could not read", unread)
	}
}

// indexHas waits until the index knows the objects as of a revision.
func (e *env) indexHas(t testing.TB, revision uint64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(e.ctx, hang)
	defer cancel()
	if _, _, ok := e.raw.index.List(ctx, "/pods/", "a", revision); !ok {
		t.Fatalf("the index has not come to revision %d", revision)
	}
}
