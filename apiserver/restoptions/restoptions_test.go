package restoptions

import (
	"bytes"
	"context"
	"crypto/aes"
	"strings"
	"testing"

	"github.com/barque/barque/apiserver/storage"
	"github.com/barque/barque/raftstore"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"
	aestransformer "k8s.io/apiserver/pkg/storage/value/encrypt/aes"
	"k8s.io/client-go/tools/cache"
)

var examplePods = schema.GroupResource{Group: example.GroupName, Resource: "pods"}

// open makes the storage of a resource of the example group as a registry would.
func open(t *testing.T, cfg Config) apistorage.Interface {
	t.Helper()
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
	utilruntime.Must(example.AddToScheme(scheme))
	utilruntime.Must(examplev1.AddToScheme(scheme))
	cfg.Scheme, cfg.Serializer = scheme, serializer.NewCodecFactory(scheme)
	options, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	rest, err := options.GetRESTOptions(examplePods, &example.Pod{})
	if err != nil {
		t.Fatal(err)
	}
	prefix := "/" + rest.ResourcePrefix
	store, destroy, err := rest.Decorator(rest.StorageConfig, prefix,
		func(obj runtime.Object) (string, error) { return apistorage.NamespaceKeyFunc(prefix+"/", obj) },
		func() runtime.Object { return &example.Pod{} }, func() runtime.Object { return &example.PodList{} },
		nil, nil, &cache.Indexers{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		destroy()
		destroy() // subresources do it again
	})
	return store
}

// newBackend returns a store in memory that ends with the test.
func newBackend(t *testing.T) *raftstore.Store {
	t.Helper()
	store := raftstore.NewInMemory(raftstore.Options{})
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return store
}

// sharesObjects reports whether a storage with an object sends its watchers the same decoded one.
func sharesObjects(t *testing.T, store apistorage.Interface, prefix string) bool {
	t.Helper()
	w, err := store.Watch(t.Context(), prefix,
		apistorage.ListOptions{ResourceVersion: "1", Predicate: apistorage.Everything, Recursive: true})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	event := <-w.ResultChan()
	_, shared := event.Object.(runtime.CacheableObject)
	return shared
}

func stored(t *testing.T, backend storage.Backend, key string) raftstore.Item {
	t.Helper()
	view, err := backend.View(t.Context(), raftstore.ViewOptions{})
	if err != nil {
		t.Fatal(err)
	}
	item, ok := view.Get(key)
	if !ok {
		t.Fatalf("%s is not in the store", key)
	}
	return item
}

func TestGetter(t *testing.T) {
	tests := []struct {
		name   string
		cfg    Config
		key    string
		cached bool
	}{
		{"defaults", Config{}, "/registry/pods/ns/p", true},
		{"uncached", Config{Uncached: []schema.GroupResource{examplePods}}, "/registry/pods/ns/p", false},
		{"own place", Config{ResourcePrefixes: map[schema.GroupResource]string{examplePods: "example/pods"}},
			"/registry/example/pods/ns/p", true},
		{"stored as another", Config{
			Together:         [][]schema.GroupResource{{{Group: example.GroupName, Resource: "hulls"}, examplePods}},
			ResourcePrefixes: map[schema.GroupResource]string{{Group: example.GroupName, Resource: "hulls"}: "hulls"},
		}, "/registry/hulls/ns/p", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.cfg.Backend = newBackend(t)
			store := open(t, tt.cfg)
			prefix := strings.TrimSuffix(strings.TrimPrefix(tt.key, "/registry"), "ns/p")
			out := &example.Pod{}
			if err := store.Create(t.Context(), prefix+"ns/p",
				&example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}}, out, 0); err != nil {
				t.Fatal(err)
			}
			if item := stored(t, tt.cfg.Backend, tt.key); !bytes.HasPrefix(item.Value, []byte("k8s\x00")) {
				t.Errorf("stored as %q, want protobuf", item.Value)
			}
			if keeps := sharesObjects(t, store, prefix); keeps != tt.cached {
				t.Errorf("it keeps decoded objects: %v", keeps)
			}
			list := &example.PodList{}
			if err := store.GetList(t.Context(), prefix,
				apistorage.ListOptions{Predicate: apistorage.Everything, Recursive: true}, list); err != nil {
				t.Fatal(err)
			}
			if len(list.Items) != 1 || list.Items[0].ResourceVersion != out.ResourceVersion {
				t.Errorf("the list after the write holds %+v", list.Items)
			}
		})
	}
}

// gcm makes a transformer that encrypts with the first key and decrypts with any.
func gcm(t *testing.T, keys ...string) value.Transformer {
	t.Helper()
	var transformers []value.PrefixTransformer
	for _, key := range keys {
		block, err := aes.NewCipher([]byte(key))
		if err != nil {
			t.Fatal(err)
		}
		transformer, err := aestransformer.NewGCMTransformer(block)
		if err != nil {
			t.Fatal(err)
		}
		transformers = append(transformers,
			value.PrefixTransformer{Prefix: []byte("enc:" + key[:1] + ":"), Transformer: transformer})
	}
	return value.NewPrefixTransformers(nil, transformers...)
}

type oneTransformer struct{ value.Transformer }

func (o oneTransformer) TransformerForResource(schema.GroupResource) value.Transformer {
	return o.Transformer
}

func TestEncryptionAtRest(t *testing.T) {
	const oldKey, newKey = "AAAAAAAAAAAAAAAA", "BBBBBBBBBBBBBBBB"
	backend := newBackend(t)
	raw := func(keys ...string) apistorage.Interface {
		return open(t,
			Config{Backend: backend, Uncached: []schema.GroupResource{examplePods},
				Transformers: oneTransformer{gcm(t, keys...)}})
	}
	store := raw(oldKey)
	pod := &example.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", Labels: map[string]string{"secret": "rum"}}}
	if err := store.Create(t.Context(), "/pods/ns/p", pod, nil, 0); err != nil {
		t.Fatal(err)
	}
	first := stored(t, backend, "/registry/pods/ns/p")
	if bytes.Contains(first.Value, []byte("rum")) {
		t.Error("the value lies in the store in clear")
	}

	// A value is bound to its key.
	move := raftstore.Txn{
		Ops: []raftstore.Op{{Kind: raftstore.Put, Key: "/registry/pods/ns/moved", Value: first.Value}}}
	if _, err := backend.Commit(t.Context(), move); err != nil {
		t.Fatal(err)
	}
	if err := store.Get(t.Context(), "/pods/ns/moved", apistorage.GetOptions{},
		&example.Pod{}); !apistorage.IsCorruptObject(err) {
		t.Errorf("reading a value moved to another key: %v", err)
	}

	// After the key was rotated, an update that changes nothing rewrites the value, once.
	store = raw(newKey, oldKey)
	same := apistorage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) { return obj, nil })
	for range 2 {
		out := &example.Pod{}
		if err := store.GuaranteedUpdate(context.Background(), "/pods/ns/p", out, false, nil, same, nil); err != nil {
			t.Fatal(err)
		}
		if out.Labels["secret"] != "rum" {
			t.Errorf("read %v", out.Labels)
		}
	}
	second := stored(t, backend, "/registry/pods/ns/p")
	if !bytes.HasPrefix(second.Value, []byte("enc:B:")) || second.ModRevision != first.ModRevision+2 {
		t.Errorf("after the rotation %q at revision %d, want the new key and one write after %d", second.Value[:6],
			second.ModRevision, first.ModRevision+1)
	}
}

// TestSizesAreTold: priority and fairness takes objects of unknown size for the largest there can
// be, so a list of one object would cost as much as one of thousands.
func TestSizesAreTold(t *testing.T) {
	for name, cfg := range map[string]Config{
		"decoded objects are kept": {},
		"none are":                 {Uncached: []schema.GroupResource{examplePods}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg.Backend = newBackend(t)
			store := open(t, cfg)
			pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}}
			if err := store.Create(t.Context(), "/pods/ns/p", pod, nil, 0); err != nil {
				t.Fatal(err)
			}
			want := int64(len(stored(t, cfg.Backend, "/registry/pods/ns/p").Value))
			stats, err := store.Stats(t.Context())
			if err != nil || stats.ObjectCount != 1 || stats.EstimatedAverageObjectSizeBytes != want {
				t.Errorf("stats are %+v, %v, want one object of %d bytes", stats, err, want)
			}
		})
	}
}
