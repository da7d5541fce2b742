package apiserver

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand"
	"reflect"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/registry/generic"
	apistorage "k8s.io/apiserver/pkg/storage"
	"sigs.k8s.io/randfill"

	"github.com/barque/barque/apiserver/resource"
	"github.com/barque/barque/apiserver/restoptions"
	"github.com/barque/barque/apiserver/storage"
	"github.com/barque/barque/raftstore"
)

// trips takes objects of every kind through each encoding and through the store.
type trips struct {
	kinds  []trip
	scheme *runtime.Scheme
	codecs serializer.CodecFactory
}

// trip is one kind, and where its objects are stored.
type trip struct {
	schema.GroupVersionKind
	resource schema.GroupResource
	store    apistorage.Interface
}

// wireTypes are the encodings of the API.
var wireTypes = []string{runtime.ContentTypeJSON, runtime.ContentTypeYAML, runtime.ContentTypeProtobuf}

func newTrips(t testing.TB) *trips {
	t.Helper()
	resources := DefaultResources()
	scheme, err := newScheme(resources)
	if err != nil {
		t.Fatal(err)
	}
	backend := raftstore.NewInMemory(raftstore.Options{})
	t.Cleanup(func() { _ = backend.Close() })
	w := &trips{scheme: scheme, codecs: newCodecs(scheme)}
	options, err := restoptions.New(
		restoptions.Config{Backend: backend, Scheme: scheme, Serializer: serializer.NewCodecFactory(scheme)})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range resources {
		gvr := r.GroupVersionResource()
		kind, object := kindOf(t, scheme, r)
		rest, err := options.GetRESTOptions(gvr.GroupResource(), object)
		if err != nil {
			t.Fatalf("%s: %v", gvr, err)
		}
		w.kinds = append(w.kinds,
			trip{kind, gvr.GroupResource(), newObjectStore(t, backend, gvr.GroupResource(), rest, object)})
	}
	return w
}

// kindOf is the kind of the objects of a resource, and an empty one.
func kindOf(t testing.TB, scheme *runtime.Scheme, r resource.Resource) (schema.GroupVersionKind, runtime.Object) {
	t.Helper()
	of, ok := reflect.TypeOf(r).Elem().FieldByName("Default") // the function of a resource.Kind
	if !ok {
		t.Fatalf("%s is a %T", r.GroupVersionResource(), r)
	}
	object := reflect.New(of.Type.In(0).Elem()).Interface().(runtime.Object)
	kinds, _, err := scheme.ObjectKinds(object)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range kinds {
		if k.GroupVersion() == r.GroupVersionResource().GroupVersion() {
			return k, object
		}
	}
	t.Fatalf("%s: its type is registered as %v", r.GroupVersionResource(), kinds)
	return schema.GroupVersionKind{}, nil
}

// newObjectStore is the store of a resource, without rules for writes.
func newObjectStore(
	t testing.TB, backend *raftstore.Store, gr schema.GroupResource, options generic.RESTOptions, object runtime.Object,
) apistorage.Interface {
	t.Helper()
	s, err := storage.New(storage.Config{
		Backend: backend, Codec: options.StorageConfig.Codec, Prefix: options.StorageConfig.Prefix,
		ResourcePrefix: "/" + gr.String(), GroupResource: gr,
		New: func() runtime.Object { return reflect.New(reflect.TypeOf(object).Elem()).Interface().(runtime.Object) },
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// filler makes random objects that are well-formed, with or without a meaning. The functions fill
// values of the types of their first arguments.
func (w *trips) filler(seed int64, functions ...any) *randfill.Filler {
	// JSON inside objects comes with its keys in order, as YAML gives it back.
	raw := func(serializer.CodecFactory) []any {
		return append([]any{func(r *runtime.RawExtension, c randfill.Continue) {
			data, err := json.Marshal(
				map[string]any{"text": c.String(10), "number": c.Int63(), "list": []bool{c.Bool()}})
			if err != nil {
				panic(err)
			}
			r.Raw = data
		}}, functions...)
	}
	return fuzzer.FuzzerFor(fuzzer.MergeFuzzerFuncs(metafuzzer.Funcs, raw), rand.NewSource(seed), w.codecs)
}

// datedFiller makes objects whose defaults are the same at any time. A taint of a device that is
// stored without a date gets the time of its decoding, so that two readers of the same bytes have
// different objects. No request stores such a taint.
func (w *trips) datedFiller(seed int64) *randfill.Filler {
	return w.filler(seed, func(t *resourcev1.DeviceTaint, c randfill.Continue) {
		c.FillNoCustom(t)
		if t.TimeAdded == nil {
			t.TimeAdded = &metav1.Time{Time: time.Unix(c.Int63n(1<<32), 0)}
		}
	})
}

// same fails the test when an object came back as another one.
func same(t *testing.T, how string, sent, got runtime.Object) {
	t.Helper()
	got.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{}) // it is not part of an object in memory
	if !apiequality.Semantic.DeepEqual(sent, got) {
		t.Errorf("changed by %s (-sent +got):\n%s", how, cmp.Diff(sent, got))
	}
}

// check sends one random object of a kind along all ways.
func (w *trips) check(t *testing.T, k trip, seed int64) {
	object, err := w.scheme.New(k.GroupVersionKind)
	if err != nil {
		t.Fatal(err)
	}
	w.filler(seed).Fill(object)
	object.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	for _, mediaType := range wireTypes {
		info, ok := runtime.SerializerInfoForMediaType(w.codecs.SupportedMediaTypes(), mediaType)
		if !ok {
			t.Fatalf("%s is not served", mediaType)
		}
		data, err := runtime.Encode(w.codecs.EncoderForVersion(info.Serializer, k.GroupVersion()),
			object.DeepCopyObject())
		if err != nil {
			t.Fatalf("%s: %v", mediaType, err)
		}
		got, kind, err := w.codecs.UniversalDeserializer().Decode(data, nil, nil)
		if err != nil || *kind != k.GroupVersionKind {
			t.Fatalf("%s: %v, %v in\n%q", mediaType, kind, err, data)
		}
		same(t, mediaType, object, got)
		if mediaType == runtime.ContentTypeProtobuf {
			object = got // without empty lists: protobuf does not distinguish them from none, and defaults can
		}
	}
	w.throughStore(t, k, object)
}

// throughStore stores an object and reads it, as one and in a list.
func (w *trips) throughStore(t *testing.T, k trip, object runtime.Object) {
	ctx, key := context.Background(), "/"+k.resource.String()+"/object"
	w.scheme.Default(object) // as all that is stored
	m, err := meta.Accessor(object)
	if err != nil {
		t.Fatal(err)
	}
	m.SetResourceVersion("") // the store's to give
	m.SetSelfLink("")
	created, read := reflect.New(reflect.TypeOf(object).Elem()).Interface().(runtime.Object),
		reflect.New(reflect.TypeOf(object).Elem()).Interface().(runtime.Object)
	if err := k.store.Create(ctx, key, object.DeepCopyObject(), created, 0); err != nil {
		t.Fatal(err)
	}
	if err := k.store.Get(ctx, key, apistorage.GetOptions{}, read); err != nil {
		t.Fatal(err)
	}
	for how, got := range map[string]runtime.Object{"a create": created, "the store": read} {
		back, err := meta.Accessor(got)
		if err != nil {
			t.Fatal(err)
		}
		if back.GetResourceVersion() == "" {
			t.Errorf("%s gave no version", how)
		}
		back.SetResourceVersion("")
		same(t, how, object, got)
	}
	deleted := reflect.New(reflect.TypeOf(object).Elem()).Interface().(runtime.Object)
	if err := k.store.Delete(ctx, key, deleted, nil, apistorage.ValidateAllObjectFunc, nil,
		apistorage.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestDefaultsDoNotChange gives defaults an hour later to objects that have them, as all that is
// read from the store gets them again, and to objects of datedFiller.
func TestDefaultsDoNotChange(t *testing.T) {
	w, seed := newTrips(t), rand.Int63()
	synctest.Test(t, func(t *testing.T) {
		for _, k := range w.kinds {
			for i := range int64(20) {
				first, dated := must(w.scheme.New(k.GroupVersionKind))(t), must(w.scheme.New(k.GroupVersionKind))(t)
				w.filler(seed + i).Fill(first)
				w.datedFiller(seed + i).Fill(dated)
				w.scheme.Default(first)
				again, later := first.DeepCopyObject(), dated.DeepCopyObject()
				w.scheme.Default(dated)
				time.Sleep(time.Hour)
				w.scheme.Default(again)
				w.scheme.Default(later)
				same(t, fmt.Sprintf("other defaults of %s than an hour ago, seed %d", k.resource, seed+i), first, again)
				same(t, fmt.Sprintf("later defaults of %s, seed %d", k.resource, seed+i), dated, later)
			}
		}
	})
}

// TestRoundTrip takes some random objects of each kind through JSON, YAML, protobuf and the store.
func TestRoundTrip(t *testing.T) {
	w, times := newTrips(t), 20
	if testing.Short() {
		times = 5
	}
	first := rand.Int63()
	for _, k := range w.kinds {
		t.Run(k.resource.String(), func(t *testing.T) {
			for i := range times {
				w.check(t, k, first+int64(i))
				if t.Failed() {
					t.Fatalf("seed %d", first+int64(i))
				}
			}
		})
	}
}

// FuzzRoundTrip is TestRoundTrip for any kind and seed.
func FuzzRoundTrip(f *testing.F) {
	w := newTrips(f)
	for i := range w.kinds {
		f.Add(uint16(i), int64(1))
	}
	var one sync.Mutex // inputs share the keys of the store
	f.Fuzz(func(t *testing.T, kind uint16, seed int64) {
		one.Lock()
		defer one.Unlock()
		w.check(t, w.kinds[int(kind)%len(w.kinds)], seed)
	})
}
