package rawlist

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes/scheme"
)

// write puts the message of a piece together.
func write(p piece) []byte {
	head, rest := p.appendTo(nil)
	return append(head, rest...)
}

// TestSplice: an object with a resourceVersion is encoded as one without it, into which the version
// is spliced.
func TestSplice(t *testing.T) {
	for range 2000 {
		m := &corev1.ConfigMap{Data: map[string]string{"key": string(bytes.Repeat([]byte("x"), rand.IntN(300)))}}
		if rand.IntN(2) == 0 {
			m.Name, m.Namespace, m.UID = "name", "namespace", "uid"
		}
		if rand.IntN(2) == 0 {
			//lint:ignore SA1019 what is stored may still have one
			m.GenerateName, m.SelfLink, m.Generation = "name-", "/link", rand.Int64()
		}
		if n := rand.IntN(200); n > 0 { // so that the length of the metadata passes that of one byte
			m.Labels = map[string]string{"label": string(bytes.Repeat([]byte("y"), n))}
		}
		stored, err := m.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		revision := rand.Uint64() >> rand.IntN(64)
		if revision == 0 {
			revision = math.MaxUint64
		}
		p, ok := splice(stored, revision)
		if !ok {
			t.Fatalf("cannot splice %v", m)
		}
		m.ResourceVersion = fmt.Sprint(revision)
		want, err := m.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		if got := write(p); !bytes.Equal(got, want) || p.size() != len(got) || !p.equals(want) {
			t.Fatalf("got\n%q of size %d, want\n%q", got, p.size(), want)
		}
		if p.revision++; p.equals(want) {
			t.Fatal("a piece of another revision is told to be equal")
		}
	}
}

// FuzzSplice: no bytes that may be stored are misread. Bytes with a version, or without metadata,
// are not spliced.
func FuzzSplice(f *testing.F) {
	with := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "name", ResourceVersion: "1"}}
	without := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "name"}, Data: map[string]string{"a": "b"}}
	for _, m := range []*corev1.ConfigMap{with, without, {}} {
		data, err := m.Marshal()
		if err != nil {
			f.Fatal(err)
		}
		envelope, err := (&runtime.Unknown{TypeMeta: runtime.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"},
			Raw: data}).Marshal()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(append(bytes.Clone(magic), envelope...))
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		_, message, begin, end, ok := envelope(data)
		if ok && (begin < len(magic) || end > len(data) || !bytes.HasSuffix(data[begin:end], message)) {
			t.Errorf("a message from %d to %d in %d bytes", begin, end, len(data))
		}
		if !ok {
			message = data
		}
		var before, after corev1.ConfigMap
		p, ok := splice(message, 7)
		if !ok || before.Unmarshal(message) != nil {
			return
		}
		if got := write(p); p.size() != len(got) {
			t.Errorf("size %d, want %d", p.size(), len(got))
		} else if err := after.Unmarshal(got); err != nil {
			t.Errorf("%q became %q: %v", message, got, err)
		} else if after.Name != before.Name || len(after.Data) != len(before.Data) {
			t.Errorf("%v became %v", &before, &after)
		}
	})
}

func TestCacheIsBounded(t *testing.T) {
	const room = 1 << 20
	c := NewCache(room)
	named := func(key string, revision uint64, encoding Encoding) entry {
		return entry{c.hash(key), revision, encoding}
	}
	size := func() (n int) {
		for i := range c.shards {
			for _, data := range c.shards[i].entries.All() {
				n += entryCost + len(data)
			}
		}
		return n
	}
	hot := named("hot", 1, JSON)
	c.put(hot, []byte("hot"))
	for i := range 100000 {
		e := named(fmt.Sprint("key", i), uint64(i), JSON)
		c.put(e, make([]byte, 100))
		if data, known := c.get(e); !known || len(data) != 100 {
			t.Fatalf("entry %d is gone at once", i)
		}
		if data, known := c.get(hot); !known || string(data) != "hot" {
			t.Fatalf("an entry that is always asked for is gone after %d others", i)
		}
	}
	if n := size(); n > room {
		t.Errorf("%d bytes are kept, the bound is %d", n, room)
	}
	if _, known := c.get(named("key0", 0, JSON)); known {
		t.Error("the first entry is still there")
	}
	large := named("large", 1, JSON)
	if c.put(large, make([]byte, room)); size() > room {
		t.Error("an entry that is larger than the cache was kept")
	}
	for i := range 2 * room / entryCost {
		c.put(named(fmt.Sprint("stored", i), 1, Protobuf), nil)
	}
	if n := size(); n > room {
		t.Errorf("%d bytes are kept of what may be sent as it is, the bound is %d", n, room)
	}
	c.put(named("stored", 1, Protobuf), nil)
	if data, known := c.get(named("stored", 1, Protobuf)); !known || data != nil {
		t.Errorf("what may be sent as it is: %v, %v", data, known)
	}
	if _, known := c.get(named("stored", 1, JSON)); known {
		t.Error("the encodings are mixed up")
	}
}

// codec encodes as the store's does.
var codec = scheme.Codecs.EncoderForVersion(protobuf.NewSerializer(scheme.Scheme, scheme.Scheme),
	corev1.SchemeGroupVersion)

// lister makes Lists of ConfigMaps.
type lister struct {
	*Format
	decoded int
}

func newLister(t *testing.T, bytes int) *lister {
	t.Helper()
	f := NewFormat(corev1.Resource("configmaps"), codec, &corev1.ConfigMap{}, &corev1.ConfigMapList{}, NewCache(bytes))
	if f == nil {
		t.Fatal("ConfigMaps have no format")
	}
	return &lister{Format: f}
}

// list adds ConfigMaps with values of these sizes, and returns the List and the first error.
func (l *lister) list(t *testing.T, encoding Encoding, sizes ...int) (*List, error) {
	t.Helper()
	list := &List{wanted: wanted{encoding: encoding, version: corev1.SchemeGroupVersion}}
	if !list.Takes(l.Format) {
		t.Fatal("the List does not take the format")
	}
	if !list.Begin(l.Format, len(sizes),
		func(_ context.Context, _ string, value []byte, revision uint64) (runtime.Object, error) {
			l.decoded++
			obj, err := runtime.Decode(scheme.Codecs.UniversalDeserializer(), value)
			if err == nil {
				obj.(*corev1.ConfigMap).ResourceVersion = fmt.Sprint(revision)
			}
			return obj, err
		}) {
		return list, ErrTooLarge
	}
	for i, size := range sizes {
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i)},
			Data: map[string]string{"key": strings.Repeat("x", size)}}
		data, err := runtime.Encode(codec, m)
		if err != nil {
			t.Fatal(err)
		}
		if err := list.Add(t.Context(), fmt.Sprint("/registry/configmaps/default/", i), data, uint64(i+1)); err != nil {
			return list, err
		}
		if list.held > l.cache.bound {
			t.Fatalf("%d bytes are held, the bound is %d", list.held, l.cache.bound)
		}
	}
	return list, nil
}

// TestListIsBounded: the held bytes are counted, independent of an estimate from the first objects,
// and bytes from the cache are among them.
func TestListIsBounded(t *testing.T) {
	l := newLister(t, 64<<10)
	sizes := slices.Concat(slices.Repeat([]int{10}, 32), slices.Repeat([]int{4 << 10}, 16))
	for _, time := range []string{"first", "second"} {
		if list, err := l.list(t, JSON, sizes...); !errors.Is(err, ErrTooLarge) || list.Len() <= 32 {
			t.Errorf("%s time: %d objects in JSON, then %v", time, list.Len(), err)
		}
		if list, err := l.list(t, Protobuf, sizes...); err != nil || list.Len() != len(sizes) {
			t.Errorf("%s time: %d objects, which the store holds, then %v", time, list.Len(), err)
		}
	}
	if list, err := l.list(t, Protobuf, make([]int, 1000)...); !errors.Is(err, ErrTooLarge) || list.Len() != 0 {
		t.Errorf("a list of which too little can be remembered has %d objects: %v", list.Len(), err)
	}
	list, _ := l.list(t, JSON, 10)
	if list.Abandon(); list.Len() != 0 || list.Answer(&corev1.ConfigMapList{}) == runtime.Object(list) {
		t.Error("a List that was given up is answered with")
	}
}

// TestLargeObjectsAreKept: with the room that a server gives, an object as large as the store takes
// is encoded once.
func TestLargeObjectsAreKept(t *testing.T) {
	l := newLister(t, 32<<20)
	for range 3 {
		for _, encoding := range []Encoding{JSON, Protobuf} {
			if _, err := l.list(t, encoding, 3<<19-1<<10); err != nil {
				t.Fatal(err)
			}
		}
	}
	if l.decoded != 2 {
		t.Errorf("it was decoded %d times for two encodings", l.decoded)
	}
}

// TestKindsAreKeptApart: a cache entry of an object in lists of one kind is not used in those
// of another.
func TestKindsAreKeptApart(t *testing.T) {
	cache := NewCache(1 << 20)
	one := NewFormat(corev1.Resource("configmaps"), codec, &corev1.ConfigMap{}, &corev1.ConfigMapList{}, cache)
	other := NewFormat(corev1.Resource("secrets"), codec, &corev1.Secret{}, &corev1.SecretList{}, cache)
	if one.entry("key", 1, JSON) == other.entry("key", 1, JSON) {
		t.Error("ConfigMaps and Secrets have the same entries")
	}
}

// TestStream: the API machinery counts the first write as the begin of a response in parts.
func TestStream(t *testing.T) {
	var writes []int
	w := writer(func(p []byte) (int, error) {
		writes = append(writes, len(p))
		return len(p), nil
	})
	if err := stream(w, 4, func(w io.Writer) error {
		for range 10000 {
			if _, err := w.Write(make([]byte, 30)); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if writes[0] != 4 || len(writes) > 10 {
		t.Errorf("writes of %d bytes", writes)
	}
}

type writer func(p []byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

func TestWant(t *testing.T) {
	for _, c := range []struct {
		accept, query, agent, verb string
		want                       Encoding
	}{
		{"application/vnd.kubernetes.protobuf", "", "", "list", Protobuf},
		{"application/vnd.kubernetes.protobuf,application/json", "limit=500", "kubectl", "list", Protobuf},
		{"application/json", "", "kubectl", "list", JSON},
		{"", "", "Go-http-client/2.0", "list", JSON},
		{"*/*", "", "", "list", JSON},
		{"*/*", "", "curl/8.0", "list", None},
		{"application/json", "pretty=true", "", "list", None},
		{"application/yaml", "", "", "list", None},
		{"application/json", "", "", "watch", None},
		{"application/json", "", "", "get", None},
		{"application/json;as=Table;v=v1;g=meta.k8s.io,application/json", "", "", "list", None},
		{"application/json,application/json;AS=Table;v=v1;g=meta.k8s.io", "", "", "list", None},
		{"application/json;q=0.1,application/yaml", "", "", "list", None},
		{"application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", "", "", "list", None},
	} {
		r := httptest.NewRequest(http.MethodGet, "/apis/apps/v1/deployments?"+c.query, nil)
		r.Header.Set("Accept", c.accept)
		r.Header.Set("User-Agent", c.agent)
		info := &request.RequestInfo{IsResourceRequest: true, Verb: c.verb, APIGroup: "apps", APIVersion: "v1",
			Resource: "deployments"}
		var raw *List
		Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			ctx, l := Start(r.Context())
			if raw = l; From(ctx) != l || From(r.Context()) != nil {
				t.Error("the context does not have it, or has it before it is asked for")
			}
		})).ServeHTTP(httptest.NewRecorder(), r.WithContext(request.WithRequestInfo(r.Context(), info)))
		if raw == nil && c.want != None || raw != nil && raw.encoding != c.want {
			t.Errorf("%+v: %+v", c, raw)
		}
	}
}

// TestAuditedResponses: where the audit log gets the response, a list is made of objects.
func TestAuditedResponses(t *testing.T) {
	for level, encoding := range map[auditinternal.Level]Encoding{
		auditinternal.LevelNone: JSON, auditinternal.LevelMetadata: JSON, auditinternal.LevelRequest: JSON,
		auditinternal.LevelRequestResponse: None,
	} {
		ctx := audit.WithAuditContext(
			request.WithRequestInfo(t.Context(),
				&request.RequestInfo{IsResourceRequest: true, Verb: "list", APIVersion: "v1", Resource: "pods"}))
		if err := audit.AuditContextFrom(ctx).Init(audit.RequestAuditConfig{Level: level}, nil); err != nil {
			t.Fatal(err)
		}
		if got := want(
			httptest.NewRequest(http.MethodGet, "/api/v1/pods", nil).WithContext(ctx)).encoding; got != encoding {
			t.Errorf("level %s: %v, want %v", level, got, encoding)
		}
	}
}
