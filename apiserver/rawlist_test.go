package apiserver

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"math/rand"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/endpoints/request"
	apistorage "k8s.io/apiserver/pkg/storage"
	restclient "k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/testutil"

	"github.com/barque/barque/apiserver/rawlist"
	"github.com/barque/barque/apiserver/restoptions"
	"github.com/barque/barque/apiserver/storage"
	"github.com/barque/barque/raftstore"
)

// rawKind is a kind whose lists are made of stored bytes.
type rawKind struct {
	trip
	newList func() runtime.Object
}

// newRawKinds are all kinds.
func newRawKinds(t testing.TB, w *trips) []rawKind {
	t.Helper()
	backend := raftstore.NewInMemory(raftstore.Options{})
	t.Cleanup(func() { _ = backend.Close() })
	resources := DefaultResources()
	options, err := restoptions.New(
		restoptions.Config{Backend: backend, Scheme: w.scheme, Serializer: serializer.NewCodecFactory(w.scheme)})
	if err != nil {
		t.Fatal(err)
	}
	cache := rawlist.NewCache(rawListCache)
	kinds := make([]rawKind, len(resources))
	for i, r := range resources {
		gr := r.GroupVersionResource().GroupResource()
		kind, object := kindOf(t, w.scheme, r)
		k := rawKind{trip: trip{GroupVersionKind: kind, resource: gr}, newList: func() runtime.Object {
			list, err := w.scheme.New(kind.GroupVersion().WithKind(kind.Kind + "List"))
			if err != nil {
				panic(err)
			}
			return list
		}}
		of, err := options.GetRESTOptions(gr, object)
		if err != nil {
			t.Fatal(err)
		}
		if k.store, err = storage.New(storage.Config{
			Backend: backend, Codec: of.StorageConfig.Codec, Prefix: of.StorageConfig.Prefix,
			ResourcePrefix: "/" + gr.String(), GroupResource: gr,
			New: func() runtime.Object {
				return reflect.New(
					reflect.TypeOf(object).Elem()).Interface().(runtime.Object)
			},
			NewList: k.newList, RawLists: cache,
		}); err != nil {
			t.Fatal(err)
		}
		kinds[i] = k
	}
	return kinds
}

// taking is the context of a list request by a client that takes a media type.
func taking(ctx context.Context, mediaType string, gv schema.GroupVersion) context.Context {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("Accept", mediaType)
	info := &request.RequestInfo{IsResourceRequest: true, Verb: "list", APIGroup: gv.Group, APIVersion: gv.Version}
	rawlist.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { ctx = r.Context() })).
		ServeHTTP(nil, r.WithContext(request.WithRequestInfo(ctx, info)))
	return ctx
}

// list lists as a registry does.
func (k *rawKind) list(ctx context.Context, opts apistorage.ListOptions) (runtime.Object, error) {
	ctx, raw := rawlist.Start(ctx)
	list := k.newList()
	if err := k.store.GetList(ctx, "/"+k.resource.String(), opts, list); err != nil {
		return nil, err
	}
	return raw.Answer(list), nil
}

// check compares lists of random objects, which have no defaults, made in both ways.
func (k *rawKind) check(t *testing.T, w *trips, objects int, seed int64) {
	ctx, filler := t.Context(), w.datedFiller(seed)
	keys := make([]string, objects)
	for i := range keys {
		object, err := w.scheme.New(k.GroupVersionKind)
		if err != nil {
			t.Fatal(err)
		}
		filler.Fill(object)
		object.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
		if i%2 == 0 {
			w.scheme.Default(object)
		}
		m, err := meta.Accessor(object)
		if err != nil {
			t.Fatal(err)
		}
		m.SetResourceVersion("")
		k.checkLabels(t, w, object, m.GetLabels())
		keys[i] = fmt.Sprintf("/%s/object%d", k.resource, i)
		if err := k.store.Create(ctx, keys[i], object, nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, opts := range []apistorage.ListOptions{
		{Recursive: true, Predicate: apistorage.Everything},
		{Recursive: true, Predicate: apistorage.Everything, ResourceVersion: "0"},
		{Recursive: true, Predicate: apistorage.SelectionPredicate{Limit: 1}},
	} {
		for _, mediaType := range wireTypes {
			k.compare(t, w, opts, mediaType)
		}
	}
	for _, key := range keys {
		out, err := w.scheme.New(k.GroupVersionKind)
		if err != nil {
			t.Fatal(err)
		}
		if err := k.store.Delete(ctx, key, out, nil, apistorage.ValidateAllObjectFunc, nil,
			apistorage.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// checkLabels compares an object's labels with those that are read from its stored bytes.
func (k *rawKind) checkLabels(t *testing.T, w *trips, object runtime.Object, want labels.Set) {
	t.Helper()
	info, _ := runtime.SerializerInfoForMediaType(w.codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	data, err := runtime.Encode(w.codecs.EncoderForVersion(info.Serializer, k.GroupVersion()), object)
	if err != nil {
		t.Fatal(err)
	}
	stored, ok := rawlist.StoredLabels(data)
	if !ok {
		t.Fatalf("the labels of %q cannot be read", data)
	}
	for label, value := range want {
		if got, has := stored.Lookup(label); !has || got != value || !stored.Has(label) || stored.Get(label) != value {
			t.Fatalf("label %q is %q, want %q", label, got, value)
		}
	}
	if stored.Has("no such label") {
		t.Fatal("it has a label that it has not")
	}
}

func (k *rawKind) compare(t *testing.T, w *trips, opts apistorage.ListOptions, mediaType string) {
	info, ok := runtime.SerializerInfoForMediaType(w.codecs.SupportedMediaTypes(), mediaType)
	if !ok {
		t.Fatalf("%s is not served", mediaType)
	}
	encoders := map[string]runtime.Encoder{mediaType: w.codecs.EncoderForVersion(info.Serializer, k.GroupVersion())}
	if info.PrettySerializer != nil { // which the request did not select
		encoders[mediaType+", indented"] = w.codecs.EncoderForVersion(info.PrettySerializer, k.GroupVersion())
	}
	plain, err := k.list(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	for name, encoder := range encoders {
		want, err := runtime.Encode(encoder, plain)
		if err != nil {
			t.Fatal(err)
		}
		for _, time := range []string{"first", "second"} { // the second one finds it in the cache
			list, err := k.list(taking(t.Context(), mediaType, k.GroupVersion()), opts)
			if err != nil {
				t.Fatal(err)
			}
			if _, raw := list.(*rawlist.List); raw != (mediaType != runtime.ContentTypeYAML) {
				t.Fatalf("%s: the list is a %T", name, list)
			}
			if got, err := runtime.Encode(encoder, list); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%s, %s time: %v; got\n%q\nwant\n%q", name, time, err, got, want)
			}
		}
	}
}

// TestRawLists compares lists of each kind that are made of stored bytes with those that are made
// of objects.
func TestRawLists(t *testing.T) {
	w, seed := newTrips(t), rand.Int63()
	for _, k := range newRawKinds(t, w) {
		t.Run(k.resource.String(), func(t *testing.T) {
			if k.check(t, w, 4, seed); t.Failed() {
				t.Logf("seed %d", seed)
			}
		})
	}
}

// FuzzRawLists is TestRawLists for any kind and seed.
func FuzzRawLists(f *testing.F) {
	w := newTrips(f)
	kinds := newRawKinds(f, w)
	for i := range kinds {
		f.Add(uint16(i), int64(1))
	}
	f.Fuzz(func(t *testing.T, kind uint16, seed int64) { kinds[int(kind)%len(kinds)].check(t, w, 2, seed) })
}

// plainClient sends requests as they are, and decodes nothing.
func (c *cluster) plainClient(t testing.TB) *http.Client {
	t.Helper()
	credentials := must(restclient.TLSConfigFor(c.ca.client(t, c.host, subject("admin", "system:masters"))))(t)
	transport := &http.Transport{TLSClientConfig: credentials, ForceAttemptHTTP2: true, DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// rawListsOf is how many lists of a resource were answered with stored bytes.
func rawListsOf(t testing.TB, gr schema.GroupResource) (n float64) {
	t.Helper()
	for _, encoding := range []string{"protobuf", "json"} {
		n += must(testutil.GetCounterMetricValue(rawlist.Lists.WithLabelValues(gr.Group, gr.Resource, encoding)))(t)
	}
	return n
}

// response is a client's response.
type response struct {
	status, body string
	header       http.Header
}

// rawClient lists once in the plain way, and once as it comes.
type rawClient struct {
	*http.Client
	host string
}

func (c *rawClient) get(t testing.TB, path string, header http.Header) response {
	t.Helper()
	r := must(http.NewRequestWithContext(t.Context(), http.MethodGet, c.host+path, nil))(t)
	r.Header = header
	answer := must(c.Do(r))(t)
	defer func() { _ = answer.Body.Close() }()
	body := io.Reader(answer.Body)
	if answer.Header.Get("Content-Encoding") == "gzip" {
		body = must(gzip.NewReader(body))(t)
	}
	return response{answer.Status, string(must(io.ReadAll(body))(t)), answer.Header}
}

// compare gets a list that must be the same as the decoded one, and reports whether it was made of
// stored bytes.
func (c *rawClient) compare(
	t testing.TB, gr schema.GroupResource, path, query string, header http.Header,
) (got response, raw bool) {
	t.Helper()
	var want response
	for i := range 20 { // another write may come meanwhile
		if i > 0 { // the newest state
			c.get(t, path+"?pretty=false", header)
		}
		before := rawListsOf(t, gr)
		want = c.get(t, path+"?pretty=false&"+query, header)
		between := rawListsOf(t, gr)
		got = c.get(t, path+"?"+query, header)
		if before != between {
			t.Errorf("%s?%s, %v: a list with an indent is made of stored bytes", path, query, header)
		}
		raw = rawListsOf(t, gr) > between
		if got.status == want.status && got.body == want.body {
			break
		}
	}
	if got.status != want.status || got.body != want.body {
		t.Errorf("%s?%s, %v: got\n%s %.2000q\nwant\n%s %.2000q", path, query, header, got.status, got.body, want.status,
			want.body)
	}
	for _, name := range []string{"Content-Type", "Content-Encoding", "Vary", "Content-Length", "Retry-After",
		"Warning"} {
		if encoded := name == "Content-Length" && got.header.Get("Content-Encoding") != ""; !encoded &&
			got.header.Get(name) != want.header.Get(name) {
			t.Errorf("%s?%s, %v: %s is %q, want %q", path, query, header, name, got.header.Get(name),
				want.header.Get(name))
		}
	}
	return got, raw
}

// TestRawListsOverHTTP compares whole responses. A request that sets the indent of its JSON is
// answered with encoded objects.
func TestRawListsOverHTTP(t *testing.T) {
	c, ctx := startCluster(t), t.Context()
	must(0, c.ensure(ctx, c.client))(t)
	for i := range 12 {
		m := configMap(fmt.Sprintf("raw-%d", i), map[string]string{"key": strings.Repeat("value <&> \u2028", 1000)})
		must(c.admin.CoreV1().ConfigMaps("default").Create(ctx, m, metav1.CreateOptions{}))(t)
	}
	client := &rawClient{c.plainClient(t), c.host}
	first := must(c.admin.CoreV1().ConfigMaps("").List(ctx, metav1.ListOptions{Limit: 3}))(t)
	revision, second := first.ResourceVersion, url.QueryEscape(first.Continue)
	maps, large := corev1.Resource("configmaps"), 0
	for _, of := range []struct {
		path     string
		resource schema.GroupResource
		stored   bool // in the requested version
	}{
		{"/api/v1/configmaps", maps, true},
		{"/api/v1/namespaces/default/configmaps", maps, true},
		{"/api/v1/namespaces/none/configmaps", maps, true},
		{"/api/v1/namespaces", corev1.Resource("namespaces"), true},
		{"/api/v1/events", corev1.Resource("events"), true},
		{"/api/v1/pods", corev1.Resource("pods"), true},
		{"/api/v1/services", corev1.Resource("services"), false},
		{"/apis/rbac.authorization.k8s.io/v1/clusterroles",
			schema.GroupResource{Group: "rbac.authorization.k8s.io", Resource: "clusterroles"}, true},
		{"/apis/batch/v1/jobs", schema.GroupResource{Group: "batch", Resource: "jobs"}, true},
		{"/apis/autoscaling/v1/horizontalpodautoscalers",
			schema.GroupResource{Group: "autoscaling", Resource: "horizontalpodautoscalers"}, false},
		{"/apis/coordination.k8s.io/v1/leases", schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"},
			true},
		{"/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
			schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}, false},
	} {
		for query, listed := range map[string]bool{
			"":                            true,
			"limit=3":                     true,
			"continue=" + second:          of.path == "/api/v1/configmaps",
			"resourceVersion=0":           true,
			"resourceVersion=0&limit=3":   true,
			"resourceVersion=" + revision: true,
			"resourceVersion=" + revision + "&resourceVersionMatch=Exact":                true,
			"resourceVersion=" + revision + "&resourceVersionMatch=NotOlderThan&limit=1": true,
			"resourceVersion=" + revision + "&limit=2":                                   true,
			"labelSelector=a%3Db":                 false,
			"fieldSelector=metadata.name%3Draw-7": false,
			"resourceVersion=nonsense":            false,
			"continue=nonsense":                   false,
			"resourceVersionMatch=Exact":          false,
			"limit=nonsense":                      false,
		} {
			if query == "continue="+second && of.path != "/api/v1/configmaps" {
				continue // it is of another list
			}
			for _, accept := range []struct {
				mediaType string
				stored    bool
				all       bool // of all paths
			}{
				{runtime.ContentTypeProtobuf, true, true},
				{runtime.ContentTypeJSON, true, true},
				{runtime.ContentTypeProtobuf + ",*/*", true, false},
				{runtime.ContentTypeYAML, false, false},
				{"application/json;as=Table;g=meta.k8s.io;v=v1", false, true},
				{"application/json,application/json;AS=Table;g=meta.k8s.io;v=v1", false, false},
				{"application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", false, false},
				{"text/plain", false, false},
			} {
				for _, encoding := range []string{"", "gzip"} {
					brief := query == "" || query == "limit=3"
					if (encoding != "" || !accept.stored) && !brief {
						continue // the form of the response has nothing to do with the listed objects
					}
					// The others are too short to be compressed.
					if (encoding != "" || !accept.all) && of.path != "/api/v1/configmaps" {
						continue
					}
					header := http.Header{"Accept": {accept.mediaType}, "Accept-Encoding": {encoding}}
					answer, raw := client.compare(t, of.resource, of.path, query, header)
					if want := of.stored && listed && accept.stored; raw != want {
						t.Errorf("%s?%s, %s: made of stored bytes: %v, want %v", of.path, query, accept.mediaType, raw,
							want)
					}
					if raw && query == "" && answer.header.Get("Content-Encoding") == "gzip" {
						large++
					}
				}
			}
		}
	}
	if large != 3 {
		t.Errorf("%d of 3 large lists of stored bytes were compressed", large)
	}
	answer, raw := client.compare(t, maps, "/api/v1/configmaps",
		"resourceVersion=99999999999&resourceVersionMatch=Exact", http.Header{"Accept": {runtime.ContentTypeJSON}})
	if raw || !strings.Contains(answer.body, "ResourceVersionTooLarge") || answer.header.Get("Retry-After") != "1" {
		t.Errorf("a revision that is to come: made of stored bytes: %v, %+v", raw, answer)
	}
}

// BenchmarkLists makes and encodes lists of 5,000 ConfigMaps of 1 KiB, of decoded objects
// and of stored bytes, as the handler of a request does.
func BenchmarkLists(b *testing.B) {
	w, maps := newTrips(b), newRawMaps(b, rawListCache, true)
	maps.create(b, 5000, 1<<10)
	opts := apistorage.ListOptions{Recursive: true, Predicate: apistorage.Everything}
	for _, mediaType := range []string{runtime.ContentTypeProtobuf, runtime.ContentTypeJSON} {
		info, _ := runtime.SerializerInfoForMediaType(w.codecs.SupportedMediaTypes(), mediaType)
		encoder := w.codecs.EncoderForVersion(info.Serializer, maps.GroupVersion())
		for _, way := range []struct {
			name string
			ctx  context.Context
		}{{"plain", b.Context()}, {"raw", taking(b.Context(), mediaType, maps.GroupVersion())}} {
			b.Run(mediaType[len("application/"):]+"/"+way.name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					list, err := maps.list(way.ctx, opts)
					if err != nil {
						b.Fatal(err)
					}
					if _, raw := list.(*rawlist.List); raw != (way.name == "raw") {
						b.Fatalf("the list is a %T", list)
					}
					if err := encoder.Encode(list, io.Discard); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkListsOverHTTP lists 5,000 ConfigMaps of 1 KiB from a server that keeps them decoded.
// The client is part of it.
func BenchmarkListsOverHTTP(b *testing.B) {
	c := startCluster(b)
	must(0, c.ensure(b.Context(), c.client))(b)
	var writers sync.WaitGroup
	for w := range 16 {
		writers.Go(func() {
			for i := w; i < 5000; i += 16 {
				m := configMap(fmt.Sprintf("object-%d", i), map[string]string{"key": strings.Repeat("x", 1024)})
				if _, err := c.admin.CoreV1().ConfigMaps("default").Create(b.Context(), m,
					metav1.CreateOptions{}); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	writers.Wait()
	client := c.plainClient(b)
	for _, mediaType := range []string{runtime.ContentTypeProtobuf, runtime.ContentTypeJSON} {
		for _, way := range []struct{ name, query string }{{"plain", "?pretty=false"}, {"raw", ""}} {
			b.Run(mediaType[len("application/"):]+"/"+way.name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					r := must(
						http.NewRequestWithContext(b.Context(), http.MethodGet,
							c.host+"/api/v1/namespaces/default/configmaps"+way.query, nil))(b)
					r.Header.Set("Accept", mediaType)
					response := must(client.Do(r))(b)
					n, err := io.Copy(io.Discard, response.Body)
					if _ = response.Body.Close(); err != nil || n < 5<<20 {
						b.Fatalf("%d bytes: %v", n, err)
					}
				}
			})
		}
	}
}
