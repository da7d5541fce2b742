package objectcache

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/component-base/metrics/testutil"
)

// decodeMap makes a ConfigMap whose data is the value.
func decodeMap(of Stored) (apiruntime.Object, error) {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: of.Key, ResourceVersion: fmt.Sprint(of.Revision)},
		Data:       map[string]string{"value": string(of.Value)},
	}, nil
}

func get(t testing.TB, s *Space, of Stored) *Object {
	t.Helper()
	o, err := s.Get(of, decodeMap)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestAnObjectBelongsToItsBytes(t *testing.T) {
	cache := New(1 << 20)
	space, other := cache.Space(), cache.Space()
	of := Stored{Key: "a", Value: []byte("old"), Revision: 7}
	o := get(t, space, of)
	if again := space.Peek(Stored{Key: "a", Value: []byte("old"), Revision: 7}); again != o {
		t.Error("the same bytes are not the same object")
	}
	for name, absent := range map[string]*Object{
		"another key":      space.Peek(Stored{Key: "b", Value: of.Value, Revision: 7}),
		"another revision": space.Peek(Stored{Key: "a", Value: of.Value, Revision: 8}),
		"another storage":  other.Peek(of),
		"other bytes":      space.Peek(Stored{Key: "a", Value: []byte("new"), Revision: 7}),
	} {
		if absent != nil {
			t.Errorf("%s: found %v", name, absent.Shared())
		}
	}
	if o := get(t, space,
		Stored{Key: "a", Value: []byte("new"), Revision: 7}); o.Shared().(*corev1.ConfigMap).Data["value"] != "new" {
		t.Error("it was not decoded from the bytes that are there now")
	}
}

func TestOneDecodesForAll(t *testing.T) {
	space := New(1 << 20).Space()
	var decoded atomic.Int32
	entered, goOn := make(chan struct{}), make(chan struct{})
	var all sync.WaitGroup
	ask := func() {
		_, err := space.Get(Stored{Key: "a", Revision: 1}, func(of Stored) (apiruntime.Object, error) {
			if decoded.Add(1) == 1 {
				close(entered)
			}
			<-goOn
			return decodeMap(of)
		})
		if err != nil {
			t.Error(err)
		}
	}
	all.Go(ask)
	<-entered
	if space.Peek(Stored{Key: "a", Revision: 1}) != nil {
		t.Error("an object that is being decoded is shown")
	}
	for range 20 {
		all.Go(ask)
	}
	close(goOn)
	all.Wait()
	if n := decoded.Load(); n != 1 {
		t.Errorf("it was decoded %d times", n)
	}
	hits, err := testutil.GetCounterMetricValue(space.cache.counts.hits)
	if err != nil || hits < 20 {
		t.Errorf("%v hits are counted, %v", hits, err)
	}
}

func TestAnErrorIsNotKept(t *testing.T) {
	space := New(1 << 20).Space()
	of := Stored{Key: "a", Revision: 1}
	broken := errors.New("no key yet")
	if _, err := space.Get(of, func(Stored) (apiruntime.Object, error) { return nil, broken }); !errors.Is(err,
		broken) {
		t.Errorf("got %v", err)
	}
	func() {
		defer func() { _ = recover() }()
		_, _ = space.Get(of, func(Stored) (apiruntime.Object, error) { panic("a decoder's fault") })
	}()
	get(t, space, of)
	o := get(t, space, of)
	func() {
		defer func() { _ = recover() }()
		_ = o.CacheEncode("form", func(apiruntime.Object, io.Writer) error { panic("an encoder's fault") }, io.Discard)
	}()
	fails := func(apiruntime.Object, io.Writer) error { return broken }
	if err := o.CacheEncode("form", fails, io.Discard); !errors.Is(err, broken) {
		t.Errorf("encoding: %v", err)
	}
	var out bytes.Buffer
	if err := o.CacheEncode("form", encodeName, &out); err != nil || out.String() != "a" {
		t.Errorf("encoding again: %q, %v", out.String(), err)
	}
}

func encodeName(obj apiruntime.Object, w io.Writer) error {
	m, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	// As the API machinery's encoders do.
	obj.GetObjectKind().SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	_, err = io.WriteString(w, m.GetName())
	return err
}

func TestEncodingsAreMadeOnceAndCounted(t *testing.T) {
	space := New(1 << 20).Space()
	typed := get(t, space, Stored{Key: "a", Revision: 1})
	custom, err := space.Get(Stored{Key: "b", Revision: 1}, func(Stored) (apiruntime.Object, error) {
		return &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "a"}}}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []*Object{typed, custom} {
		before := o.cost
		var made atomic.Int32
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				for _, form := range []apiruntime.Identifier{"one", "two"} {
					var out bytes.Buffer
					err := o.CacheEncode(form, func(obj apiruntime.Object, w io.Writer) error {
						made.Add(1)
						return encodeName(obj, w)
					}, &out)
					if err != nil || out.String() != "a" {
						t.Errorf("%s: %q, %v", form, out.String(), err)
					}
				}
			})
		}
		all.Wait()
		if n := made.Load(); n != 2 {
			t.Errorf("%d encodings were made of two forms", n)
		}
		if o.cost < before+2 {
			t.Errorf("it counts %d bytes, and %d before it was encoded", o.cost, before)
		}
		if kind := o.Shared().GetObjectKind().GroupVersionKind(); !kind.Empty() {
			t.Errorf("encoding left the kind %v in what all share", kind)
		}
	}
}

// TestTheCacheIsBounded fills it many times over, with objects that are encoded, and checks its
// contents. An object that is used all the time is still there, and one that is too large never is.
func TestTheCacheIsBounded(t *testing.T) {
	const bound = 1 << 20
	cache := New(bound)
	space := cache.Space()
	used := Stored{Key: "used", Value: []byte("much"), Revision: 1}
	get(t, space, used)
	for i := range 20_000 {
		o := get(t, space, Stored{Key: fmt.Sprint(i), Value: bytes.Repeat([]byte("x"), i%1000), Revision: 1})
		if err := o.CacheEncode("form", encodeName, io.Discard); err != nil {
			t.Fatal(err)
		}
		if space.Peek(used) == nil {
			t.Fatalf("what is used all the time is gone after %d objects", i)
		}
	}
	checkBound(t, cache, bound)
	large := Stored{Key: "large", Value: make([]byte, bound/shards), Revision: 1}
	get(t, space, large)
	if space.Peek(large) != nil {
		t.Error("an object that is larger than a generation is kept")
	}
	if half := bound / 2 / decodedFactor; space.Fits(half) || !space.Fits(half/2) {
		t.Error("what fits is not told apart")
	}
}

// takes returns the cost of an object, computed from its contents.
func takes(o *Object) int {
	total := objectCost
	if o.encoder != nil {
		total += len(o.stored.Value)
	}
	if o.decoded.Load() {
		total += decodedFactor * len(o.stored.Value)
	}
	for _, e := range o.encodings {
		total += encodingCost + cap(e.data)
	}
	return total
}

// checkBound checks the contents of the cache.
func checkBound(t *testing.T, cache *Cache, bound int) {
	t.Helper()
	total, objects := 0, 0
	for i := range cache.shards {
		for _, o := range cache.shards[i].objects.All() {
			total, objects = total+takes(o), objects+1
		}
	}
	if total > bound || total < bound/4 {
		t.Errorf("it has %d objects of %d bytes, and may have %d", objects, total, bound)
	}
}

// TestWhatIsDecodedLaterIsBounded: objects that were not decoded when they were let in take several
// times as much afterwards, in either generation.
func TestWhatIsDecodedLaterIsBounded(t *testing.T) {
	const bound = 1 << 20
	cache := New(bound)
	space := cache.Space()
	var objects []*Object
	for i := range 5_000 {
		of := Stored{Key: fmt.Sprint(i), Value: bytes.Repeat([]byte("x"), 1000), Revision: 1}
		objects = append(objects, space.Defer(of, decodeMap, upperCase{}))
	}
	checkBound(t, cache, bound)
	for _, o := range objects {
		if _, err := o.Decoded(); err != nil {
			t.Fatal(err)
		}
	}
	checkBound(t, cache, bound)
}

func TestWhatIsNotAskedForIsForgotten(t *testing.T) {
	cache := New(1 << 20)
	space := cache.Space()
	of := func(key string) Stored { return Stored{Key: key, Value: []byte("value"), Revision: 7} }
	get(t, space, of("wanted"))
	get(t, space, of("left"))
	for range 3 {
		if cache.Age(); space.Peek(of("wanted")) == nil {
			t.Fatal("what was asked for since is gone")
		}
	}
	if space.Peek(of("left")) != nil {
		t.Error("what nobody has asked for is kept")
	}
}

func TestCopies(t *testing.T) {
	o := get(t, New(1<<20).Space(), Stored{Key: "a", Value: []byte("v"), Revision: 3})
	own := o.GetObject().(*corev1.ConfigMap)
	own.Data["value"] = "changed"
	var shallow corev1.ConfigMap
	if !o.CopyTo(&shallow) {
		t.Fatal("it cannot be copied to an object of its type")
	}
	shallow.Name = "changed"
	if o.CopyTo(&corev1.Secret{}) {
		t.Error("it was copied to an object of another type")
	}
	if m, err := meta.Accessor(o); err != nil || m.GetName() != "a" || m.GetResourceVersion() != "3" {
		t.Errorf("metadata %v, %v", m, err)
	}
	if shared := o.Shared().(*corev1.ConfigMap); shared.Data["value"] != "v" || shared.Name != "a" {
		t.Errorf("a copy changed what is shared: %v", shared)
	}
}

// TestWhatIsGoneStaysGone: an object that the cache has dropped does not come back when a caller
// that still has it decodes or encodes it, and takes no other one's place.
func TestWhatIsGoneStaysGone(t *testing.T) {
	cache := New(1 << 20)
	space := cache.Space()
	fails := func(Stored) (apiruntime.Object, error) { return nil, errors.New("broken") }
	of := Stored{Key: "a", Value: []byte("old"), Revision: 7}
	replaced := space.Defer(of, decodeMap, upperCase{})
	of.Value = []byte("broken")
	broken := space.Defer(of, fails, upperCase{})
	of.Value = []byte("new")
	kept := get(t, space, of)
	if encoded(t, replaced, "name", encodeName) != "a" || space.Peek(of) != kept {
		t.Error("an object that was replaced is back")
	}
	if _, err := broken.Decoded(); err == nil || space.Peek(of) != kept {
		t.Errorf("an object that was replaced has taken the next one with it, %v", err)
	}
	cache.Age()
	cache.Age()
	if encoded(t, kept, "name", encodeName) != "a" || space.Peek(of) != nil {
		t.Error("an object that was forgotten is back")
	}
}

// BenchmarkObjectCost measures the memory of an Object beside the object, as much as it counts.
func BenchmarkObjectCost(b *testing.B) {
	for _, objects := range []int{20_000, 26_000, 33_000} {
		b.Run(fmt.Sprint(objects), func(b *testing.B) {
			stored := make([]Stored, objects)
			for i := range stored {
				stored[i] = Stored{Key: fmt.Sprint("key", i), Revision: uint64(i)}
			}
			shared := &corev1.ConfigMap{}
			decode := func(Stored) (apiruntime.Object, error) { return shared, nil }
			for b.Loop() {
				cache := New(4 * objects * objectCost)
				space, before := cache.Space(), heap()
				for _, of := range stored {
					if _, err := space.Get(of, decode); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(heap()-before)/float64(objects), "bytes/object")
				runtime.KeepAlive(cache)
			}
		})
	}
}

// heap returns the bytes that are alive.
func heap() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// BenchmarkDecodedSize measures how many times larger objects are in memory than stored.
func BenchmarkDecodedSize(b *testing.B) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "web-6d4b75cb6d-hk2zv", Namespace: "default", UID: "3c1f6d0e-6a1f-4f5e-9d4f-6f5b0e1d2c3a",
			Labels: map[string]string{"app": "web", "pod-template-hash": "6d4b75cb6d"},
			OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-6d4b75cb6d", UID: "e1d2c3a4"}},
			ManagedFields: []metav1.ManagedFieldsEntry{
				{Manager: "kubelet", FieldsV1: metav1.NewFieldsV1(strings.Repeat(`{"f:a":{}},`, 100))},
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
	configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "default"},
		Data: map[string]string{"data": strings.Repeat("x", 1024)}}
	for name, obj := range map[string]interface {
		Marshal() ([]byte, error)
		Unmarshal([]byte) error
	}{"pod": pod, "configmap": configMap} {
		b.Run(name, func(b *testing.B) {
			data, err := obj.Marshal()
			if err != nil {
				b.Fatal(err)
			}
			var before, after runtime.MemStats
			objects := make([]any, 0, b.N)
			runtime.GC()
			runtime.ReadMemStats(&before)
			for range b.N {
				var out interface{ Unmarshal([]byte) error } = &corev1.Pod{}
				if name == "configmap" {
					out = &corev1.ConfigMap{}
				}
				if err := out.Unmarshal(data); err != nil {
					b.Fatal(err)
				}
				objects = append(objects, out)
			}
			runtime.GC()
			runtime.ReadMemStats(&after)
			b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(b.N)/float64(len(data)), "times")
			b.ReportMetric(float64(len(data)), "stored-B")
			runtime.KeepAlive(objects)
		})
	}
}
