package apiserver

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math/rand"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/component-base/metrics/testutil"

	"github.com/barque/barque/apiserver/objectcache"
	"github.com/barque/barque/apiserver/rawlist"
	"github.com/barque/barque/apiserver/restoptions"
	"github.com/barque/barque/apiserver/storage"
	"github.com/barque/barque/raftstore"
)

// watchKind is one kind with two storages of the same objects: the watches of one send the stored
// bytes, and those of the other the encoding of the decoded object.
type watchKind struct {
	trip
	backend      *raftstore.Store
	stored, read *storage.Store
	uncached     bool // nothing decoded is kept, as of events
}

// newWatchKinds are all kinds.
func newWatchKinds(t testing.TB, w *trips) []watchKind {
	t.Helper()
	backend := raftstore.NewInMemory(raftstore.Options{})
	t.Cleanup(func() { _ = backend.Close() })
	options := must(
		restoptions.New(
			restoptions.Config{Backend: backend, Scheme: w.scheme,
				Serializer: serializer.NewCodecFactory(w.scheme)}))(t)
	lists, objects := rawlist.NewCache(rawListCache), objectcache.New(objectcache.DefaultSize)
	var kinds []watchKind
	for _, r := range DefaultResources() {
		gr := r.GroupVersionResource().GroupResource()
		kind, object := kindOf(t, w.scheme, r)
		of := must(options.GetRESTOptions(gr, object))(t)
		config := storage.Config{
			Backend: backend, Codec: of.StorageConfig.Codec, Prefix: of.StorageConfig.Prefix,
			ResourcePrefix: "/" + gr.String(), GroupResource: gr,
			New: func() runtime.Object {
				return reflect.New(
					reflect.TypeOf(object).Elem()).Interface().(runtime.Object)
			},
			NewList: func() runtime.Object {
				return must(
					w.scheme.New(kind.GroupVersion().WithKind(kind.Kind + "List")))(t)
			},
		}
		k := watchKind{trip: trip{GroupVersionKind: kind, resource: gr}, backend: backend,
			uncached: kind.Kind == "Event"}
		if !k.uncached {
			config.Objects = objects
		}
		if kind.Kind == "Pod" {
			config.Triggers = apistorage.IndexerFuncs{
				"spec.nodeName": func(o runtime.Object) string { return o.(*corev1.Pod).Spec.NodeName }}
		}
		k.read = must(storage.New(config))(t)
		config.RawLists = lists
		k.stored = must(storage.New(config))(t)
		t.Cleanup(k.read.Close)
		t.Cleanup(k.stored.Close)
		kinds = append(kinds, k)
	}
	return kinds
}

// attributes are the labels and fields that selectors use.
func attributes(obj runtime.Object) (labels.Set, fields.Set, error) {
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, nil, err
	}
	set := fields.Set{"metadata.name": m.GetName(), "metadata.namespace": m.GetNamespace()}
	if pod, ok := obj.(*corev1.Pod); ok {
		set["spec.nodeName"] = pod.Spec.NodeName
	}
	return m.GetLabels(), set, nil
}

// lastName is the name of the object whose event is the last one of a test.
const lastName = "last"

// random makes an object. One without defaults changes when it is decoded.
func (k *watchKind) random(
	t *testing.T, w *trips, fill func(any), name, selected string, defaults bool,
) runtime.Object {
	t.Helper()
	object := must(w.scheme.New(k.GroupVersionKind))(t)
	fill(object)
	object.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	m := must(meta.Accessor(object))(t)
	m.SetResourceVersion("")
	m.SetName(name)
	set := m.GetLabels()
	if set == nil {
		set = map[string]string{}
	}
	set["selected"] = selected
	m.SetLabels(set)
	if pod, ok := object.(*corev1.Pod); ok {
		pod.Spec.NodeName = "node-" + selected
	}
	if defaults {
		w.scheme.Default(object)
	}
	return object
}

// write creates, changes and deletes objects. It returns the revision before, and how many of the
// stored objects have a mark.
func (k *watchKind) write(t *testing.T, w *trips, seed int64) (from uint64, marked int) {
	t.Helper()
	ctx, filler := t.Context(), w.datedFiller(seed)
	fill := func(obj any) { filler.Fill(obj) }
	new := func() runtime.Object { return must(w.scheme.New(k.GroupVersionKind))(t) }
	key := func(i int) string { return fmt.Sprintf("/%s/object%d", k.resource, i) }
	first := k.random(t, w, fill, "first", "no", true)
	must(0, k.stored.Create(ctx, fmt.Sprintf("/%s/first", k.resource), first, new(), 0))(t)
	from = must(k.stored.GetCurrentResourceVersion(ctx))(t)
	const objects = 6
	for step := range 4 {
		for i := range objects {
			writer := k.stored
			if i%3 == 2 { // as an earlier version has stored it
				writer = k.read
			}
			selected := []string{"yes", "no"}[(i+step/2)%2] // changes between the second and the third
			object := k.random(t, w, fill, fmt.Sprintf("object%d", i), selected, i < 4)
			switch {
			case step == 0:
				must(0, writer.Create(ctx, key(i), object, new(), 0))(t)
			case step < 3:
				must(0,
					writer.GuaranteedUpdate(ctx, key(i), new(), false, nil,
						func(runtime.Object, apistorage.ResponseMeta) (runtime.Object, *uint64, error) {
							return object.DeepCopyObject(), nil, nil
						}, nil))(t)
			case i%2 == 0:
				must(0,
					writer.Delete(ctx, key(i), new(), nil, apistorage.ValidateAllObjectFunc, nil,
						apistorage.DeleteOptions{}))(t)
			}
			view := must(k.backend.View(ctx, raftstore.ViewOptions{}))(t)
			if item, ok := view.Get("/registry" + key(i)); ok && len(rawlist.Unmarked(item.Value)) < len(item.Value) {
				marked++
				if i%3 == 2 {
					t.Errorf("object%d, which was not encoded twice, is marked", i)
				}
			}
		}
	}
	last := k.random(t, w, fill, lastName, "yes", true)
	must(0, k.stored.Create(ctx, fmt.Sprintf("/%s/%s", k.resource, lastName), last, new(), 0))(t)
	return from, marked
}

// clear deletes all objects.
func (k *watchKind) clear(t *testing.T, w *trips) {
	t.Helper()
	view := must(k.backend.View(t.Context(), raftstore.ViewOptions{}))(t)
	var ops []raftstore.Op
	view.Ascend(fmt.Sprintf("/registry/%s/", k.resource), "", func(item raftstore.Item) bool {
		ops = append(ops, raftstore.Op{Kind: raftstore.Delete, Key: item.Key})
		return true
	})
	must(k.backend.Commit(t.Context(), raftstore.Txn{Ops: ops}))(t)
}

// watchedEvents watches until an event is the last one wanted. until gets the event and the number
// of events so far.
func watchedEvents(
	t *testing.T, s *storage.Store, prefix string, opts apistorage.ListOptions, until func(int, watch.Event) bool,
) []watch.Event {
	t.Helper()
	source := must(s.Watch(t.Context(), prefix, opts))(t)
	defer source.Stop()
	var events []watch.Event
	for {
		select {
		case e, ok := <-source.ResultChan():
			if !ok || e.Type == watch.Error {
				t.Fatalf("the watch has ended after %d events: %+v", len(events), e.Object)
			}
			if events = append(events, e); until(len(events), e) {
				return events
			}
		case <-time.After(2 * time.Minute):
			t.Fatalf("%d events came, and no more", len(events))
		}
	}
}

// never is a handlers.TimeoutFactory.
type never struct{}

// TimeoutCh implements handlers.TimeoutFactory.
func (never) TimeoutCh() (<-chan time.Time, func() bool) { return nil, func() bool { return false } }

// serveEvents writes events as the server does.
func (w *trips) serveEvents(
	t testing.TB, out http.ResponseWriter, events []watch.Event, mediaType string, gv schema.GroupVersion,
	resource string,
) {
	t.Helper()
	info, ok := runtime.SerializerInfoForMediaType(w.codecs.SupportedMediaTypes(), mediaType)
	if !ok {
		t.Fatalf("%s is not served", mediaType)
	}
	queue := make(chan watch.Event, len(events))
	for _, e := range events {
		queue <- e
	}
	close(queue)
	allocator := &runtime.Allocator{}
	encoder := func(s runtime.Encoder) runtime.Encoder {
		e := w.codecs.EncoderForVersion(s, gv)
		if with, ok := e.(runtime.EncoderWithAllocator); ok {
			return runtime.NewEncoderWithAllocator(with, allocator)
		}
		return e
	}
	(&handlers.WatchServer{
		Watching: watch.NewProxyWatcher(queue), Scope: &handlers.RequestScope{Resource: gv.WithResource(resource)},
		MediaType: mediaType,
		Framer:    info.StreamSerializer.Framer, Encoder: encoder(info.StreamSerializer.Serializer),
		EmbeddedEncoder: encoder(info.Serializer),
		TimeoutFactory:  never{},
	}).HandleHTTP(out, httptest.NewRequest(http.MethodGet, "/", nil).WithContext(t.Context()))
}

// storedEventsOf is how many encodings were made of stored bytes.
func storedEventsOf(t testing.TB, gr schema.GroupResource) float64 {
	t.Helper()
	return must(testutil.GetCounterMetricValue(rawlist.Events.WithLabelValues(gr.Group, gr.Resource)))(t)
}

// check compares the streams of watches of random objects. It returns how many events were made of
// stored bytes.
func (k *watchKind) check(t *testing.T, w *trips, seed int64) (stored float64) {
	t.Helper()
	from, marked := k.write(t, w, seed)
	defer k.clear(t, w)
	predicate := func(label, field string) apistorage.SelectionPredicate {
		p := apistorage.SelectionPredicate{Label: must(labels.Parse(label))(t),
			Field: must(fields.ParseSelector(field))(t), GetAttrs: attributes}
		if k.Kind == "Pod" {
			p.IndexFields = []string{"spec.nodeName"}
		}
		return p
	}
	selectors := []apistorage.SelectionPredicate{
		apistorage.Everything, predicate("selected=yes", ""), predicate("selected,selected notin (no)", ""),
		predicate("selected!=no", "metadata.name!=object1"), predicate("", "metadata.name!=first"),
	}
	if k.Kind == "Pod" {
		selectors = append(selectors, predicate("", "spec.nodeName=node-yes"), predicate("", "spec.nodeName!=node-no"))
	}
	before := storedEventsOf(t, k.resource)
	for _, pred := range selectors {
		for _, revision := range []string{fmt.Sprint(from), "0"} {
			opts := apistorage.ListOptions{Recursive: true, Predicate: pred, ResourceVersion: revision}
			prefix := "/" + k.resource.String()
			want := watchedEvents(t, k.read, prefix, opts,
				func(_ int, e watch.Event) bool { return nameOf(t, e.Object) == lastName })
			for _, mediaType := range []string{runtime.ContentTypeProtobuf, runtime.ContentTypeJSON,
				runtime.ContentTypeProtobuf} {
				got := watchedEvents(t, k.stored, prefix, opts,
					func(n int, _ watch.Event) bool { return n == len(want) })
				answer, plain := httptest.NewRecorder(), httptest.NewRecorder()
				w.serveEvents(t, plain, want, mediaType, k.GroupVersion(), k.resource.Resource)
				w.serveEvents(t, answer, got, mediaType, k.GroupVersion(), k.resource.Resource)
				if plain.Body.Len() == 0 {
					t.Fatal("nothing was written")
				}
				if !bytes.Equal(answer.Body.Bytes(), plain.Body.Bytes()) {
					t.Fatalf("%v, %v from %s, %s: got\n%q\nwant\n%q", pred.Label, pred.Field, revision, mediaType,
						answer.Body.Bytes(), plain.Body.Bytes())
				}
			}
		}
	}
	stored = storedEventsOf(t, k.resource) - before
	if (stored > 0) != (marked > 0) {
		t.Errorf("%v events were sent as they are stored, and %d objects are marked", stored, marked)
	}
	return stored
}

func nameOf(t testing.TB, obj runtime.Object) string {
	t.Helper()
	return must(meta.Accessor(obj))(t).GetName()
}

// TestStoredWatches compares the watches of each kind that send stored bytes with those that send
// objects: creations, changes, those that end or begin to match, and deletions.
func TestStoredWatches(t *testing.T) {
	w, seed := newTrips(t), rand.Int63()
	for _, k := range newWatchKinds(t, w) {
		t.Run(k.resource.String(), func(t *testing.T) {
			stored := k.check(t, w, seed)
			t.Logf("seed %d, %v events of stored bytes", seed, stored)
		})
	}
}

// FuzzStoredWatches is TestStoredWatches for any kind and seed.
func FuzzStoredWatches(f *testing.F) {
	w := newTrips(f)
	kinds := newWatchKinds(f, w)
	for i := range kinds {
		f.Add(uint16(i), int64(1))
	}
	f.Fuzz(func(t *testing.T, kind uint16, seed int64) { kinds[int(kind)%len(kinds)].check(t, w, seed) })
}

// discard is a response that goes nowhere.
type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) Write(p []byte) (int, error) { return len(p), nil }
func (d discard) WriteHeader(int)             {}
func (d discard) Flush()                      {}

var _ io.Writer = discard{}

// eventPod is a Pod as a cluster has them.
func eventPod(name string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: "default", UID: "3c1f6d0e-6a1f-4f5e-9d4f-6f5b0e1d2c3a",
			Labels: map[string]string{"app": "web", "pod-template-hash": "6d4b75cb6d"},
			OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-6d4b75cb6d", UID: "e1d2c3a4"}},
			ManagedFields: []metav1.ManagedFieldsEntry{
				{Manager: "kube-controller-manager", Operation: "Update", APIVersion: "v1", FieldsType: "FieldsV1",
					FieldsV1: metav1.NewFieldsV1(
						`{"f:spec":{` + strings.Repeat(`"f:containers":{},`, 60) + `"f:x":{}}}`)},
				{Manager: "kubelet", Operation: "Update", APIVersion: "v1", FieldsType: "FieldsV1",
					FieldsV1: metav1.NewFieldsV1(
						`{"f:status":{` + strings.Repeat(`"f:conditions":{},`, 40) + `"f:x":{}}}`)},
			},
		},
		Spec: corev1.PodSpec{
			NodeName: "node-1",
			Containers: []corev1.Container{
				{Name: "web", Image: "web:1", Ports: []corev1.ContainerPort{{ContainerPort: 80}}}},
			Tolerations: []corev1.Toleration{{Key: corev1.TaintNodeNotReady}, {Key: corev1.TaintNodeUnreachable}},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: "10.42.0.7", PodIPs: []corev1.PodIP{{IP: "10.42.0.7"}},
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady}, {Type: corev1.PodInitialized},
				{Type: corev1.PodScheduled}},
			ContainerStatuses: []corev1.ContainerStatus{
				{Name: "web", Image: "web:1", ContainerID: "containerd://" + strings.Repeat("a", 64)}},
		},
	}
	return pod
}

// BenchmarkWatchEvents encodes events of Pods for one watcher, from the stored bytes to the frames
// of the response. An operation is one event.
func BenchmarkWatchEvents(b *testing.B) {
	const events = 200
	w := newTrips(b)
	backend := raftstore.NewInMemory(raftstore.Options{})
	b.Cleanup(func() { _ = backend.Close() })
	options := must(
		restoptions.New(
			restoptions.Config{Backend: backend, Scheme: w.scheme,
				Serializer: serializer.NewCodecFactory(w.scheme)}))(b)
	of := must(options.GetRESTOptions(corev1.Resource("pods"), &corev1.Pod{}))(b)
	config := storage.Config{
		Backend: backend, Codec: of.StorageConfig.Codec, Prefix: "/registry", ResourcePrefix: "/pods",
		GroupResource: corev1.Resource("pods"),
		New:           func() runtime.Object { return &corev1.Pod{} },
		NewList:       func() runtime.Object { return &corev1.PodList{} },
		RawLists:      rawlist.NewCache(rawListCache), Objects: objectcache.New(objectcache.DefaultSize),
	}
	s := must(storage.New(config))(b)
	from := fmt.Sprint(must(s.GetCurrentResourceVersion(b.Context()))(b))
	for i := range events {
		pod := eventPod(fmt.Sprint("web-", i))
		w.scheme.Default(pod)
		must(0, s.Create(b.Context(), "/pods/default/"+pod.Name, pod, &corev1.Pod{}, 0))(b)
	}
	s.Close()
	for _, mediaType := range []string{runtime.ContentTypeProtobuf, runtime.ContentTypeJSON} {
		for _, way := range []string{"plain", "stored"} {
			b.Run(mediaType[len("application/"):]+"/"+way, func(b *testing.B) {
				b.ReportAllocs()
				began := cpuTime()
				rounds := (b.N + events - 1) / events
				for range rounds {
					c := config
					if way == "plain" {
						c.RawLists = nil
					}
					s := must(storage.New(c))(b) // to which nothing is known
					source := must(
						s.Watch(b.Context(), "/pods",
							apistorage.ListOptions{Recursive: true, Predicate: apistorage.Everything,
								ResourceVersion: from}))(b)
					got := make([]watch.Event, events)
					for i := range got {
						got[i] = <-source.ResultChan()
					}
					source.Stop()
					w.serveEvents(b, discard{http.Header{}}, got, mediaType, corev1.SchemeGroupVersion, "pods")
					s.Close()
				}
				b.ReportMetric(float64((cpuTime()-began).Nanoseconds())/1000/float64(rounds*events), "CPU-µs/event")
			})
		}
	}
}

// BenchmarkMarkedWrites updates a Pod, with and without the check that it can be sent as it
// is stored.
func BenchmarkMarkedWrites(b *testing.B) {
	w := newTrips(b)
	for _, way := range []string{"plain", "marked"} {
		b.Run(way, func(b *testing.B) {
			backend := raftstore.NewInMemory(raftstore.Options{})
			b.Cleanup(func() { _ = backend.Close() })
			options := must(
				restoptions.New(
					restoptions.Config{Backend: backend, Scheme: w.scheme,
						Serializer: serializer.NewCodecFactory(w.scheme)}))(b)
			of := must(options.GetRESTOptions(corev1.Resource("pods"), &corev1.Pod{}))(b)
			config := storage.Config{
				Backend: backend, Codec: of.StorageConfig.Codec, Prefix: "/registry", ResourcePrefix: "/pods",
				GroupResource: corev1.Resource("pods"),
				New:           func() runtime.Object { return &corev1.Pod{} },
				NewList:       func() runtime.Object { return &corev1.PodList{} },
				Objects:       objectcache.New(objectcache.DefaultSize),
			}
			if way == "marked" {
				config.RawLists = rawlist.NewCache(rawListCache)
			}
			s := must(storage.New(config))(b)
			pod := eventPod("web")
			w.scheme.Default(pod)
			must(0, s.Create(b.Context(), "/pods/default/web", pod, &corev1.Pod{}, 0))(b)
			b.ReportAllocs()
			began := cpuTime()
			for i := range b.N {
				must(0,
					s.GuaranteedUpdate(b.Context(), "/pods/default/web", &corev1.Pod{}, false, nil,
						func(obj runtime.Object, _ apistorage.ResponseMeta) (runtime.Object, *uint64, error) {
							obj.(*corev1.Pod).Labels["n"] = fmt.Sprint(i)
							return obj, nil, nil
						}, nil))(b)
			}
			b.ReportMetric(float64((cpuTime()-began).Nanoseconds())/1000/float64(b.N), "CPU-µs/op")
		})
	}
}

// kindNamed is one of the kinds.
func kindNamed(t testing.TB, kinds []watchKind, kind string) *watchKind {
	t.Helper()
	for i := range kinds {
		if kinds[i].Kind == kind {
			return &kinds[i]
		}
	}
	t.Fatalf("there is no %s", kind)
	return nil
}

// TestMarksOfOtherPrograms: an object with another program's mark is decoded, since that may have
// other defaults. A write that changes nothing does not give such an object a mark of this one.
func TestMarksOfOtherPrograms(t *testing.T) {
	w := newTrips(t)
	k := kindNamed(t, newWatchKinds(t, w), "ConfigMap")
	ctx, key := t.Context(), "/configmaps/object"
	must(0, k.stored.Create(ctx, key, configMap("object", map[string]string{"a": "b"}), &corev1.ConfigMap{}, 0))(t)
	item := func() raftstore.Item {
		item, ok := must(k.backend.View(ctx, raftstore.ViewOptions{}))(t).Get("/registry" + key)
		if !ok {
			t.Fatal("it is not stored")
		}
		return item
	}
	unchanged := func() uint64 {
		was := item()
		must(0,
			k.stored.GuaranteedUpdate(ctx, key, &corev1.ConfigMap{}, false, nil,
				func(obj runtime.Object, _ apistorage.ResponseMeta) (runtime.Object, *uint64, error) {
					return obj, nil, nil
				}, nil))(t)
		if now := item(); now.ModRevision != was.ModRevision {
			t.Errorf("an update that changes nothing has written revision %d over %d", now.ModRevision, was.ModRevision)
		}
		return was.ModRevision
	}
	first := unchanged()
	own := item().Value
	if plain := rawlist.Unmarked(own); len(plain) >= len(own) || !bytes.HasPrefix(own, plain) {
		t.Fatalf("%q is stored, which has no mark", own)
	}
	others := bytes.Clone(own)
	others[len(others)-1]++
	for name, value := range map[string][]byte{
		"another program's mark": others, "no mark": rawlist.Unmarked(own),
		"a mark and more": append(bytes.Clone(own), own[len(own)-10:]...), // still an object to a decoder
	} {
		result := must(
			k.backend.Commit(ctx,
				raftstore.Txn{Ops: []raftstore.Op{{Kind: raftstore.Put, Key: "/registry" + key, Value: value}}}))(t)
		opts := apistorage.ListOptions{Recursive: true, Predicate: apistorage.Everything,
			ResourceVersion: fmt.Sprint(result.Revision - 1)}
		var bodies [2]bytes.Buffer
		before := storedEventsOf(t, k.resource)
		for i, s := range []*storage.Store{k.read, k.stored} {
			answer := httptest.NewRecorder()
			events := watchedEvents(t, s, "/configmaps", opts, func(n int, _ watch.Event) bool { return n == 1 })
			w.serveEvents(t, answer, events, runtime.ContentTypeProtobuf, k.GroupVersion(), "configmaps")
			bodies[i] = *answer.Body
		}
		if !bytes.Equal(bodies[0].Bytes(), bodies[1].Bytes()) {
			t.Errorf("%s: got\n%q\nwant\n%q", name, bodies[1].Bytes(), bodies[0].Bytes())
		}
		if n := storedEventsOf(t, k.resource) - before; n != 0 {
			t.Errorf("%s: %v events were sent as they are stored", name, n)
		}
		if name != "a mark and more" {
			unchanged()
		}
	}
	if first == item().ModRevision {
		t.Error("nothing was written")
	}
}

// TestWatchesOfWhatCannotBeRead: a watch that sends stored bytes ends with the same error as one
// that sends objects.
func TestWatchesOfWhatCannotBeRead(t *testing.T) {
	w := newTrips(t)
	k := kindNamed(t, newWatchKinds(t, w), "ConfigMap")
	ctx := t.Context()
	must(0, k.stored.Create(ctx, "/configmaps/object", configMap("object", nil), &corev1.ConfigMap{}, 0))(t)
	item, _ := must(k.backend.View(ctx, raftstore.ViewOptions{}))(t).Get("/registry/configmaps/object")
	kind := bytes.Replace(bytes.Clone(item.Value), []byte("ConfigMap"), []byte("ConfigMop"), 1) // with its mark
	for name, ops := range map[string][]raftstore.Op{
		"no protobuf":  {{Kind: raftstore.Put, Key: item.Key, Value: []byte("{")}},
		"no such kind": {{Kind: raftstore.Put, Key: item.Key, Value: kind}},
		"cut off":      {{Kind: raftstore.Put, Key: item.Key, Value: item.Value[:20]}},
		"deleted":      {{Kind: raftstore.Delete, Key: item.Key}}, // which was cut off, or another
	} {
		if name == "deleted" {
			must(
				k.backend.Commit(ctx,
					raftstore.Txn{Ops: []raftstore.Op{{Kind: raftstore.Put, Key: item.Key, Value: []byte("{")}}}))(t)
		}
		result := must(k.backend.Commit(ctx, raftstore.Txn{Ops: ops}))(t)
		var errs [2]runtime.Object
		for i, s := range []*storage.Store{k.read, k.stored} {
			source := must(
				s.Watch(ctx, "/configmaps",
					apistorage.ListOptions{Recursive: true, Predicate: apistorage.Everything,
						ResourceVersion: fmt.Sprint(result.Revision - 1)}))(t)
			e := <-source.ResultChan()
			if e.Type != watch.Error {
				t.Errorf("%s: got %s %+v", name, e.Type, e.Object)
			}
			errs[i] = e.Object
			source.Stop()
		}
		if !reflect.DeepEqual(errs[0], errs[1]) {
			t.Errorf("%s: got %+v, want %+v", name, errs[1], errs[0])
		}
	}
}

// TestStoredWatchesOverHTTP: the objects in each client's events are the same as in its reads, and
// stored bytes are sent to the clients that request their form.
func TestStoredWatchesOverHTTP(t *testing.T) {
	c, ctx := startCluster(t), t.Context()
	must(0, c.ensure(ctx, c.client))(t)
	client := &rawClient{c.plainClient(t), c.host}
	scaler := `{"metadata":{"name":"object"},"spec":{"maxReplicas":3,"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"a"}}}`
	scalers := schema.GroupResource{Group: "autoscaling", Resource: "horizontalpodautoscalers"}
	event := `{"metadata":{"name":"object"},"involvedObject":{"kind":"Pod","name":"a","namespace":"default"},"reason":"Tested","type":"Normal"}`
	for _, of := range []struct {
		path, body string
		resource   schema.GroupResource
		as         map[string]bool // paths of watches, and whether they get stored bytes
	}{
		{"/api/v1/namespaces/default/configmaps",
			`{"metadata":{"name":"object","labels":{"a":"b"}},"data":{"key":"value"}}`, corev1.Resource("configmaps"),
			map[string]bool{
				"/api/v1/namespaces/default/configmaps?":                                      true,
				"/api/v1/configmaps?labelSelector=a%3Db&":                                     true,
				"/api/v1/namespaces/default/configmaps?fieldSelector=metadata.name%3Dobject&": true,
			}},
		{"/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers", scaler, scalers, map[string]bool{
			"/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers?": true,
			"/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers?": false,
		}},
		{"/api/v1/namespaces/default/events", event, corev1.Resource("events"), map[string]bool{
			"/api/v1/namespaces/default/events?":                true,
			"/apis/events.k8s.io/v1/namespaces/default/events?": false,
		}},
	} {
		var version struct{ Metadata metav1.ObjectMeta }
		for path, stored := range of.as {
			for accept, takes := range map[string]bool{
				runtime.ContentTypeProtobuf: true, runtime.ContentTypeJSON: false,
				"application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1": false,
			} {
				list := client.get(t, of.path, http.Header{"Accept": {runtime.ContentTypeJSON}})
				must(0, json.Unmarshal([]byte(list.body), &version))(t)
				r := must(
					http.NewRequestWithContext(ctx, http.MethodGet,
						c.host+path+"watch=true&resourceVersion="+version.Metadata.ResourceVersion, nil))(t)
				r.Header.Set("Accept", accept)
				answer := must(client.Do(r))(t)
				before := storedEventsOf(t, of.resource)
				post := must(
					http.NewRequestWithContext(ctx, http.MethodPost, c.host+of.path, strings.NewReader(of.body)))(t)
				post.Header.Set("Content-Type", runtime.ContentTypeJSON)
				created := must(client.Do(post))(t)
				said := must(io.ReadAll(created.Body))(t)
				if created.Body.Close(); created.StatusCode != http.StatusCreated {
					t.Fatalf("%s: %s %s", of.path, created.Status, said)
				}
				got := embedded(t, answer, accept)
				if n := storedEventsOf(t, of.resource) - before; n > 0 != (stored && takes) {
					t.Errorf("%s, %s: %v events were sent as they are stored", path, accept, n)
				}
				_ = answer.Body.Close()
				one, _, _ := strings.Cut(path, "?")
				if path == "/api/v1/configmaps?labelSelector=a%3Db&" {
					one = of.path
				}
				want := client.get(t, one+"/object", http.Header{"Accept": {accept}})
				if got != strings.TrimSuffix(want.body, "\n") {
					t.Errorf("%s, %s: got\n%q\nwant\n%q", path, accept, got, want.body)
				}
				gone := must(http.NewRequestWithContext(ctx, http.MethodDelete, c.host+of.path+"/object", nil))(t)
				deleted := must(client.Do(gone))(t)
				if deleted.Body.Close(); deleted.StatusCode != http.StatusOK {
					t.Fatalf("%s: %s", of.path, deleted.Status)
				}
			}
		}
	}
}

// embedded reads the object of the first event of a watch.
func embedded(t testing.TB, answer *http.Response, accept string) string {
	t.Helper()
	in := bufio.NewReader(answer.Body)
	var event metav1.WatchEvent
	if accept == runtime.ContentTypeJSON {
		line := must(in.ReadBytes('\n'))(t)
		must(0, json.Unmarshal(line, &event))(t)
		return string(event.Object.Raw)
	}
	var size [4]byte
	must(io.ReadFull(in, size[:]))(t)
	data := make([]byte, binary.BigEndian.Uint32(size[:]))
	must(io.ReadFull(in, data))(t)
	must(0, event.Unmarshal(data))(t)
	return string(event.Object.Raw)
}
