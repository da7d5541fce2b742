package rawlist

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
)

var boats = schema.GroupVersionKind{Group: "sea.example.com", Version: "v1", Kind: "Boat"}

func newBoat() *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(boats)
	return u
}

func newBoatFormat(t testing.TB) *Format {
	t.Helper()
	f := NewFormat(schema.GroupResource{Group: boats.Group, Resource: "boats"}, unstructured.UnstructuredJSONScheme,
		newBoat(), &unstructured.UnstructuredList{}, NewCache(1<<20))
	if f == nil {
		t.Fatal("custom resources have no format")
	}
	return f
}

// marked returns the stored bytes of an object.
func marked(t testing.TB, f *Format, object *unstructured.Unstructured) []byte {
	t.Helper()
	encoded, err := runtime.Encode(unstructured.UnstructuredJSONScheme, object)
	if err != nil {
		t.Fatal(err)
	}
	return markedDocument(t, f, encoded)
}

func markedDocument(t testing.TB, f *Format, encoded []byte) []byte {
	t.Helper()
	decoded, err := runtime.Decode(unstructured.UnstructuredJSONScheme, encoded)
	if err != nil {
		t.Fatal(err)
	}
	return f.Mark(slices.Clip(encoded), decoded)
}

// jsonEncoder is a server's encoder.
func jsonEncoder(gv schema.GroupVersion) runtime.Encoder {
	own := json.NewSerializerWithOptions(json.DefaultMetaFactory, nil, nil,
		json.SerializerOptions{StreamingCollectionsEncoding: true})
	return serializer.NewCodecFactory(runtime.NewScheme()).EncoderForVersion(own, gv)
}

// checkDocument compares the bytes made of stored bytes with those made of the object.
func checkDocument(t testing.TB, f *Format, value []byte, object *unstructured.Unstructured, revision uint64) {
	t.Helper()
	if !f.Marked(value) {
		t.Fatalf("%s is not marked", value)
	}
	versioned := object.DeepCopy()
	versioned.SetResourceVersion(fmt.Sprint(revision))
	own := jsonEncoder(boats.GroupVersion())
	want, err := runtime.Encode(own, versioned)
	if err != nil {
		t.Fatal(err)
	}
	if got, ok := f.Encode(own.Identifier(), own.Encode, value, revision); !ok || !bytes.Equal(got, want) {
		t.Fatalf("event: got\n%s\nwant\n%s", got, want)
	}
	if (&List{wanted: wanted{encoding: Protobuf, version: boats.GroupVersion()}}).Takes(f) {
		t.Fatal("a list in protobuf is made of documents")
	}
	l := &List{wanted: wanted{encoding: JSON, version: boats.GroupVersion(), response: &response{}}}
	if !l.Takes(f) || !l.Begin(f, 2, nil) || l.Copies() {
		t.Fatal("no list is made of documents")
	}
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(boats.GroupVersion().WithKind("BoatList"))
	list.SetContinue("more")
	l.End(list.DeepCopy(), nil)
	for range 2 {
		if err := l.Add(t.Context(), "a", value, revision); err != nil {
			t.Fatal(err)
		}
		list.Items = append(list.Items, *versioned)
	}
	streams := json.NewSerializerWithOptions(nil, nil, nil, json.SerializerOptions{StreamingCollectionsEncoding: true})
	var gotList, wantList bytes.Buffer
	if err := errors.Join(l.CacheEncode("", streams.Encode, &gotList), streams.Encode(list, &wantList)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(gotList.Bytes(), wantList.Bytes()) {
		t.Fatalf("list: got\n%s\nwant\n%s", &gotList, &wantList)
	}
	found, ok := f.Labels(value)
	if !ok {
		t.Fatalf("%s has no labels", value)
	}
	if _, isMap := object.Object["metadata"].(map[string]any)["labels"].(map[string]any); isMap {
		for name, want := range object.GetLabels() {
			if got, exists := found.Lookup(name); !exists || got != want || !found.Has(name) ||
				found.Get(name) != want {
				t.Fatalf("label %q is %q, %v; want %q", name, got, exists, want)
			}
		}
	}
	if _, exists := found.Lookup("none of these"); exists {
		t.Fatal("a label is found that there is not")
	}
	selected := f.Fields(value)
	if selected.Get("metadata.name") != object.GetName() ||
		selected.Get("metadata.namespace") != object.GetNamespace() {
		t.Fatalf("%q in %q, want %q in %q", selected.Get("metadata.name"), selected.Get("metadata.namespace"),
			object.GetName(), object.GetNamespace())
	}
	if _, ok := f.Field("spec.port", value); ok {
		t.Fatal("a field is found that is not looked for")
	}
}

// TestDocuments: the version gets its place, and labels and fields are found, with any
// other contents.
func TestDocuments(t *testing.T) {
	f := newBoatFormat(t)
	texts := []string{"", "plain", `"`, `\`, `\"`, `\\"`, "<&>", "\u2028", "\x01", "{", "}", "[]", ",", ":", "ü",
		`"resourceVersion":"1"`}
	text := func() string { return texts[rand.IntN(len(texts))] + texts[rand.IntN(len(texts))] }
	for range 3000 {
		u := newBoat()
		u.SetName(text() + "x")
		if rand.IntN(2) == 0 {
			u.SetNamespace(text())
		}
		if rand.IntN(2) == 0 {
			u.SetUID("3c1f6d0e") // comes after the version
		}
		if rand.IntN(2) == 0 {
			u.SetLabels(map[string]string{text(): text(), text(): text(), "resourceVersion": "9"})
		}
		if rand.IntN(2) == 0 {
			u.SetAnnotations(map[string]string{text(): text()})
			u.SetOwnerReferences([]metav1.OwnerReference{{Name: text(), UID: "u"}})
		}
		for _, key := range []string{"data", "metadata2", "metadat", "spec", "zone", text()} {
			if rand.IntN(2) == 0 {
				u.Object[key] = map[string]any{text(): []any{text(), int64(5), 1.5, nil, true, map[string]any{}},
					"metadata": map[string]any{"name": "no"}}
			}
		}
		u.SetGroupVersionKind(boats)
		checkDocument(t, f, marked(t, f, u), u, 1+rand.Uint64()>>rand.IntN(64))
	}
}

// TestUnmarkedDocuments: an object that decoding changes has no mark, nor has one without a place
// for the version; and none is taken for another.
func TestUnmarkedDocuments(t *testing.T) {
	f := newBoatFormat(t)
	for _, encoded := range []string{
		"{}\n", `{"apiVersion":"sea.example.com/v1","kind":"Boat"}` + "\n",
		`{"apiVersion":"v1","kind":"Boat","metadata":{}}` + "\n",
		`{"apiVersion":"v1","kind":"Boat","metadata":null}` + "\n",
		`{"apiVersion":"v1","kind":"Boat","metadata":"x"}` + "\n",
		`{"apiVersion":"v1","kind":"Boat","metadata":{"name":"a","resourceVersion":"1"}}` + "\n",
		`{"kind":"Boat","apiVersion":"v1","metadata":{"name":"a"}}` + "\n",
		`{"apiVersion":"v1","kind":"Boat","metadata":{"name": "a"}}` + "\n",
		`{"apiVersion":"v1","kind":"Boat","metadata":{"name":"a"}}`,
		`{"apiVersion":"v1","kind":"Boat","metadata":{"name":"a"},"n":1.0}` + "\n",
	} {
		decoded := newBoat()
		if err := decoded.UnmarshalJSON([]byte(encoded)); err != nil {
			decoded = newBoat()
		}
		if got := f.Mark([]byte(encoded), decoded); string(got) != encoded || f.Marked(got) ||
			!bytes.Equal(Unmarked(got), got) {
			t.Errorf("%q is stored as %q", encoded, got)
		}
	}
	u := newBoat()
	u.SetName("a")
	value := marked(t, f, u)
	if plain := Unmarked(value); len(value) != len(plain)+documentMark || f.Marked(plain) ||
		!bytes.Equal(Unmarked(plain), plain) {
		t.Errorf("%q is %q without its mark", value, plain)
	}
	for name, other := range map[string]*Format{
		"another schema": NewFormat(schema.GroupResource{}, withSchema{unstructured.UnstructuredJSONScheme}, newBoat(),
			nil, NewCache(1)),
		"another kind": newPodFormat(t),
	} {
		if other == nil || other.Marked(value) {
			t.Errorf("%s takes the mark", name)
		}
	}
	cut := value[:len(value)-1]
	if f.Marked(cut) || f.Marked(append(slices.Clip(value), ' ')) ||
		f.Marked([]byte(strings.TrimPrefix(string(value), "{"))) {
		t.Error("what is not whole is marked")
	}
	if decoded, err := runtime.Decode(unstructured.UnstructuredJSONScheme, value); err != nil ||
		decoded.(*unstructured.Unstructured).GetName() != "a" {
		t.Errorf("a marked document is decoded to %v, %v", decoded, err)
	}
}

// withSchema is another type of codec.
type withSchema struct{ runtime.Codec }

// FuzzDocuments: no stored bytes make the reading fail, and a marked object is sent as it is when
// it is decoded.
func FuzzDocuments(f *testing.F) {
	format := newBoatFormat(f)
	f.Add(
		[]byte(
			`{"apiVersion":"sea.example.com/v1","kind":"Boat","metadata":{"labels":{"a":"b"},"name":"x"},"spec":[1,{"a":"\\"}]}`+"\n"), uint64(7))
	f.Add([]byte(`{"metadata":{"name":"`), uint64(1))
	f.Add([]byte(`{"metadata":{"name":"\\"}`), uint64(1))
	f.Fuzz(func(t *testing.T, encoded []byte, revision uint64) {
		if found, ok := format.labels(encoded); ok {
			found.Has("a")
		}
		format.field(encoded, "metadata.name")
		format.event(encoded, revision)
		Unmarked(encoded)
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON(encoded); err != nil || u.GroupVersionKind() != boats || revision == 0 {
			return
		}
		meta, ok := u.Object["metadata"].(map[string]any)
		if !ok {
			return
		}
		if _, ok := meta["labels"].(map[string]any); ok && u.GetLabels() == nil {
			return // not all of them are strings, of which decoding makes none
		}
		if value := markedDocument(t, format, encoded); format.Marked(value) {
			checkDocument(t, format, value, u, revision)
		}
	})
}

// BenchmarkDocumentEvents makes an event of a custom resource of a kilobyte.
func BenchmarkDocumentEvents(b *testing.B) {
	f, u := newBoatFormat(b), newBoat()
	u.SetName("a")
	u.SetUID("3c1f6d0e")
	u.Object["spec"] = map[string]any{"a": strings.Repeat("x", 500),
		"b": map[string]any{"c": []any{strings.Repeat("y", 300)}}}
	value, own := marked(b, f, u), jsonEncoder(boats.GroupVersion())
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := f.Encode(own.Identifier(), own.Encode, value, 12345); !ok {
			b.Fatal("it is not sent as it is stored")
		}
	}
}
