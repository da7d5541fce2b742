package apiserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/endpoints/request"
	apistorage "k8s.io/apiserver/pkg/storage"
	etcdmetrics "k8s.io/apiserver/pkg/storage/etcd3/metrics"
	storagemetrics "k8s.io/apiserver/pkg/storage/metrics"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/barque/barque/apiserver/rawlist"
	"github.com/barque/barque/apiserver/restoptions"
	"github.com/barque/barque/apiserver/storage"
	"github.com/barque/barque/raftstore"
)

// askedBackend notes the requested snapshots.
type askedBackend struct {
	storage.Backend
	mu         sync.Mutex
	views      []raftstore.ViewOptions
	leaderless bool // so that the newest state is unknown
}

func (b *askedBackend) View(ctx context.Context, opts raftstore.ViewOptions) (raftstore.View, error) {
	b.mu.Lock()
	b.views = append(b.views, opts)
	refused := b.leaderless && opts == raftstore.ViewOptions{}
	b.mu.Unlock()
	if refused {
		return nil, raftstore.ErrUnavailable
	}
	return b.Backend.View(ctx, opts)
}

func (b *askedBackend) setLeaderless(leaderless bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.leaderless = leaderless
}

func (b *askedBackend) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.views = nil
}

func (b *askedBackend) asked() []raftstore.ViewOptions {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.views
}

// rawMaps is the storage of ConfigMaps as a server has it.
type rawMaps struct {
	rawKind
	backend *askedBackend
}

// newRawMaps makes it. cached objects are kept decoded.
func newRawMaps(t testing.TB, room int, cached bool, change ...func(*restoptions.Config)) *rawMaps {
	t.Helper()
	w := newTrips(t)
	store := raftstore.NewInMemory(raftstore.Options{})
	t.Cleanup(func() { _ = store.Close() })
	backend := &askedBackend{Backend: store}
	config := restoptions.Config{
		Backend: backend, Scheme: w.scheme, Serializer: serializer.NewCodecFactory(w.scheme),
		RawLists: rawlist.NewCache(room),
		Uncached: []schema.GroupResource{},
	}
	if !cached {
		config.Uncached = append(config.Uncached, corev1.Resource("configmaps"))
	}
	for _, c := range change {
		c(&config)
	}
	options := must(restoptions.New(config))(t)
	of := must(options.GetRESTOptions(corev1.Resource("configmaps"), &corev1.ConfigMap{}))(t)
	k := &rawMaps{rawKind{newList: func() runtime.Object { return &corev1.ConfigMapList{} }}, backend}
	k.GroupVersionKind, k.resource = corev1.SchemeGroupVersion.WithKind("ConfigMap"), corev1.Resource("configmaps")
	made, destroy, err := of.Decorator(of.StorageConfig, "/configmaps/",
		func(obj runtime.Object) (string, error) { return apistorage.NamespaceKeyFunc("/configmaps/", obj) },
		func() runtime.Object { return &corev1.ConfigMap{} }, k.newList,
		func(obj runtime.Object) (labels.Set, fields.Set, error) {
			return obj.(*corev1.ConfigMap).Labels, nil, nil
		},
		nil, &cache.Indexers{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(destroy)
	k.store = made
	return k
}

// create makes so many ConfigMaps and returns the last revision.
func (k *rawMaps) create(t testing.TB, n, size int) (revision string) {
	t.Helper()
	for i := range n {
		m, out := configMap(fmt.Sprintf("map%d", i), map[string]string{"key": strings.Repeat("x", size)}),
			&corev1.ConfigMap{}
		m.Namespace, m.UID = "default", "7d3e3d34-8c2b-4b1c-9f0a-3a2b1c4d5e6f"
		must(0, k.store.Create(t.Context(), "/configmaps/default/"+m.Name, m, out, 0))(t)
		revision = out.ResourceVersion
	}
	return revision
}

// raw lists for a client that takes protobuf.
func (k *rawMaps) raw(t testing.TB, opts apistorage.ListOptions) (runtime.Object, error) {
	return k.list(taking(t.Context(), runtime.ContentTypeProtobuf, k.GroupVersion()), opts)
}

// listMetrics are the counters of lists.
var listMetrics = map[string]bool{
	"apiserver_storage_list_total": true, "apiserver_storage_list_fetched_objects_total": true,
	"apiserver_storage_list_evaluated_objects_total": true, "apiserver_storage_list_returned_objects_total": true,
	"apiserver_storage_list_duration_seconds": true, "apiserver_storage_decode_errors_total": true,
	"etcd_requests_total": true, "etcd_request_errors_total": true, "etcd_request_duration_seconds": true,
}

// counted are the values of listMetrics for ConfigMaps.
func counted(t testing.TB) map[string]float64 {
	t.Helper()
	etcdmetrics.Register()
	storagemetrics.Register()
	values := make(map[string]float64)
	for _, family := range must(legacyregistry.DefaultGatherer.Gather())(t) {
		if !listMetrics[family.GetName()] {
			continue
		}
		for _, m := range family.Metric {
			name, of := family.GetName(), false
			for _, l := range m.Label {
				name += " " + l.GetName() + "=" + l.GetValue()
				of = of || l.GetName() == "resource" && l.GetValue() == "configmaps"
			}
			if of {
				values[name] = m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return values
}

// since is how much more is counted than before.
func since(t testing.TB, before map[string]float64) map[string]float64 {
	t.Helper()
	after := counted(t)
	for name, value := range before {
		after[name] -= value
	}
	maps.DeleteFunc(after, func(_ string, value float64) bool { return value == 0 })
	return after
}

// TestRawPages: which lists of a kind are made of stored bytes, that their pages and revisions are
// the same as those of decoded objects, and that the same is counted.
func TestRawPages(t *testing.T) {
	for _, cached := range []bool{true, false} {
		t.Run(fmt.Sprintf("cached=%v", cached), func(t *testing.T) { testRawPages(t, cached) })
	}
}

func testRawPages(t *testing.T, cached bool) {
	k := newRawMaps(t, 1<<20, cached)
	newest := k.create(t, 5, 10)
	everything, limited, selected := apistorage.Everything, apistorage.Everything, apistorage.Everything
	limited.Limit = 2
	selected.Label = labels.SelectorFromSet(labels.Set{"a": "b"})
	selected.GetAttrs = func(runtime.Object) (labels.Set, fields.Set, error) { return nil, nil, nil }
	anyPage := 2
	if cached {
		anyPage = 5 // it has no pages of any state
	}
	second := limited
	for _, c := range []struct {
		name    string
		opts    apistorage.ListOptions
		raw     bool
		objects int
	}{
		{"the newest state", apistorage.ListOptions{Predicate: everything}, true, 5},
		{"a page", apistorage.ListOptions{Predicate: limited}, true, 2},
		{"the second page", apistorage.ListOptions{}, true, 2},
		{"any state", apistorage.ListOptions{Predicate: everything, ResourceVersion: "0"}, true, 5},
		{"a page of any state", apistorage.ListOptions{Predicate: limited, ResourceVersion: "0"}, true, anyPage},
		{"not older", apistorage.ListOptions{Predicate: everything, ResourceVersion: newest}, true, 5},
		{"a page not older",
			apistorage.ListOptions{Predicate: limited, ResourceVersion: newest,
				ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan}, true, 2},
		{"exactly",
			apistorage.ListOptions{Predicate: everything, ResourceVersion: newest,
				ResourceVersionMatch: metav1.ResourceVersionMatchExact}, true, 5},
		{"a page, exactly", apistorage.ListOptions{Predicate: limited, ResourceVersion: newest}, true, 2},
		{"selected", apistorage.ListOptions{Predicate: selected}, false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			opts := c.opts
			if c.name == "the second page" {
				opts.Predicate = second
			}
			opts.Recursive = true
			before := counted(t)
			plain := must(k.list(t.Context(), opts))(t).(*corev1.ConfigMapList)
			plainly := since(t, before)
			k.backend.forget()
			before = counted(t)
			list := must(k.raw(t, opts))(t)
			if rawly := since(t, before); !maps.Equal(rawly, plainly) {
				t.Errorf("counted are\n%v, of the plain list\n%v", rawly, plainly)
			}
			objects := len(plain.Items)
			if raw, ok := list.(*rawlist.List); ok != c.raw {
				t.Fatalf("the list is a %T", list)
			} else if ok {
				objects, list = raw.Len(), raw.GetObject()
				// The newest state is everybody's, not only this server's.
				views := k.backend.asked()
				if consistent := opts.ResourceVersion == "" && opts.Predicate.Continue == ""; consistent &&
					!slices.Contains(views, raftstore.ViewOptions{}) {
					t.Errorf("the snapshots %+v were asked for", views)
				}
			}
			if objects != c.objects || len(plain.Items) != c.objects {
				t.Errorf("%d objects, the plain list has %d, want %d", objects, len(plain.Items), c.objects)
			}
			got, want := list.(*corev1.ConfigMapList).ListMeta, plain.ListMeta
			if !reflect.DeepEqual(got, want) {
				t.Errorf("metadata %v, want %v", got, want)
			}
			if c.name == "a page" {
				second.Continue = got.Continue
			}
		})
	}
}

// TestRawListsFailAlike: where a list fails, the message, the cause and the Retry-After are the
// same as those of a decoded list.
func TestRawListsFailAlike(t *testing.T) {
	everything, limited, broken := apistorage.Everything, apistorage.Everything, apistorage.Everything
	limited.Limit, broken.Continue = 2, "nonsense"
	for _, cached := range []bool{true, false} {
		k := newRawMaps(t, 1<<20, cached)
		k.create(t, 3, 10)
		for _, c := range []struct {
			name string
			opts apistorage.ListOptions
		}{
			{"a revision to come", apistorage.ListOptions{Predicate: everything, ResourceVersion: "1000000"}},
			{"a page of a revision to come", apistorage.ListOptions{Predicate: limited, ResourceVersion: "1000000"}},
			{"a resourceVersion that is none",
				apistorage.ListOptions{Predicate: everything, ResourceVersion: "nonsense"}},
			{"a continue token that is none", apistorage.ListOptions{Predicate: broken}},
			{"no leader", apistorage.ListOptions{Predicate: everything}},
			{"an object that cannot be decoded", apistorage.ListOptions{Predicate: everything}},
		} {
			name, opts := c.name, c.opts
			k.backend.setLeaderless(name == "no leader")
			if name == "an object that cannot be decoded" {
				if cached {
					continue // one that was decoded before is not decoded again
				}
				must(k.backend.Commit(t.Context(), raftstore.Txn{
					Ops: []raftstore.Op{
						{Kind: raftstore.Put, Key: "/registry/configmaps/default/broken",
							Value: []byte("k8s\x00nonsense")}},
				}))(t)
			}
			opts.Recursive = true
			before := counted(t)
			_, want := k.list(t.Context(), opts)
			plainly := since(t, before)
			before = counted(t)
			_, got := k.raw(t, opts)
			rawly := since(t, before)
			if got == nil || want == nil || got.Error() != want.Error() {
				t.Errorf("cached=%v, %s: %v, want %v", cached, name, got, want)
			}
			if !maps.Equal(rawly, plainly) {
				t.Errorf("cached=%v, %s: counted are\n%v, of the plain list\n%v", cached, name, rawly, plainly)
			}
			var gotStatus, wantStatus apierrors.APIStatus
			if errors.As(got, &gotStatus) != errors.As(want, &wantStatus) {
				t.Errorf("cached=%v, %s: a %T, want a %T", cached, name, got, want)
			} else if gotStatus != nil && !reflect.DeepEqual(gotStatus.Status(), wantStatus.Status()) {
				t.Errorf("cached=%v, %s: %+v, want %+v", cached, name, gotStatus.Status(), wantStatus.Status())
			}
			if name == "a revision to come" && !apistorage.IsTooLargeResourceVersion(got) {
				t.Errorf("cached=%v, %s: %v", cached, name, got)
			}
		}
	}
}

// TestRawListsAreBounded: lists that would hold too much are made of objects, however small the
// first of these are, and count as such.
func TestRawListsAreBounded(t *testing.T) {
	for _, cached := range []bool{true, false} {
		k := newRawMaps(t, 64<<10, cached)
		opts := apistorage.ListOptions{Predicate: apistorage.Everything, Recursive: true}
		objects := 0
		create := func(name string, n int, data string) {
			for i := range n {
				m := configMap(fmt.Sprintf("%s%d", name, i), map[string]string{"key": data})
				m.Namespace = "default"
				must(0, k.store.Create(t.Context(), "/configmaps/default/"+m.Name, m, &corev1.ConfigMap{}, 0))(t)
			}
			objects += n
		}
		check := func(what, mediaType string, raw bool) {
			t.Helper()
			before := counted(t)
			must(k.list(t.Context(), opts))(t)
			plainly := since(t, before)
			for range 2 {
				before := counted(t)
				list := must(k.list(taking(t.Context(), mediaType, k.GroupVersion()), opts))(t)
				if rawly := since(t, before); !maps.Equal(rawly, plainly) {
					t.Errorf("cached=%v, %s: counted are\n%v, want\n%v", cached, what, rawly, plainly)
				}
				switch list := list.(type) {
				case *rawlist.List:
					if !raw || list.Len() != objects {
						t.Errorf("cached=%v, %s: %d objects as they are stored", cached, what, list.Len())
					}
				case *corev1.ConfigMapList:
					if raw || len(list.Items) != objects {
						t.Errorf("cached=%v, %s: %d objects", cached, what, len(list.Items))
					}
				}
			}
		}
		create("map", 20, "x")
		check("a small list in JSON", runtime.ContentTypeJSON, true)
		// They come last, and have more bytes in JSON than in the store.
		create("zap", 10, strings.Repeat("<", 1<<10))
		check("a list that is larger than it seems", runtime.ContentTypeJSON, false)
		create("zoo", 10, strings.Repeat("x", 4<<10))
		check("a large list in JSON", runtime.ContentTypeJSON, false)
		check("a large list as it is stored", runtime.ContentTypeProtobuf, true)
		create("many", 400, "")
		check("a list of many objects", runtime.ContentTypeProtobuf, false)
	}
}

// sealed reports every resource as encrypted.
type sealed struct{}

func (sealed) TransformerForResource(schema.GroupResource) value.Transformer {
	return identity.NewEncryptCheckTransformer()
}

// TestRawListsOfEncryptedKinds: the stored bytes are not the sent ones.
func TestRawListsOfEncryptedKinds(t *testing.T) {
	k := newRawMaps(t, 1<<20, true, func(c *restoptions.Config) { c.Transformers = sealed{} })
	k.create(t, 3, 10)
	list := must(k.raw(t, apistorage.ListOptions{Predicate: apistorage.Everything, Recursive: true}))(t)
	if maps, ok := list.(*corev1.ConfigMapList); !ok || len(maps.Items) != 3 {
		t.Errorf("the list is a %T", list)
	}
}

// TestRawListsSpareDecoding: a decoded object is not decoded again for the first list, and one with
// its writer's mark never is.
func TestRawListsSpareDecoding(t *testing.T) {
	for _, cached := range []bool{true, false} {
		for _, marked := range []bool{true, false} {
			k := newRawMaps(t, 1<<20, cached)
			for i := range 3 {
				m := configMap(fmt.Sprintf("map%d", i), map[string]string{"key": "value"})
				var out runtime.Object // a write whose result is not read gets no mark
				if marked {
					out = &corev1.ConfigMap{}
				}
				must(0, k.store.Create(t.Context(), "/configmaps/default/"+m.Name, m, out, 0))(t)
			}
			opts := apistorage.ListOptions{Predicate: apistorage.Everything, Recursive: true}
			must(k.list(t.Context(), opts))(t) // caches the decoded objects
			ctx := request.WithLatencyTrackers(taking(t.Context(), runtime.ContentTypeProtobuf, k.GroupVersion()))
			if list, ok := must(k.list(ctx, opts))(t).(*rawlist.List); !ok || list.Len() != 3 {
				t.Fatalf("cached=%v, marked=%v: the list is not made of stored bytes", cached, marked)
			}
			trackers, _ := request.LatencyTrackersFrom(ctx)
			if decoding := trackers.DecodeTracker.GetLatency(); (decoding == 0) != (cached || marked) {
				t.Errorf("cached=%v, marked=%v: %v went into decoding", cached, marked, decoding)
			}
		}
	}
}
