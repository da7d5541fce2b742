package rawlist

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/client-go/kubernetes/scheme"
)

func newPodFormat(t testing.TB) *Format {
	t.Helper()
	f := NewFormat(corev1.Resource("pods"), codec, &corev1.Pod{}, &corev1.PodList{}, NewCache(1<<20))
	if f == nil {
		t.Fatal("Pods have no format")
	}
	f.Find("spec.nodeName", func(obj runtime.Object) string { return obj.(*corev1.Pod).Spec.NodeName })
	// is more
	f.Find("spec.hostname", func(obj runtime.Object) string { return "host " + obj.(*corev1.Pod).Spec.Hostname })
	// is a number
	f.Find("spec.priority", func(runtime.Object) string { return "" })
	f.Find("spec.no.such", func(runtime.Object) string { return "" })
	return f
}

func markedPod(t testing.TB, f *Format, pod *corev1.Pod) []byte {
	t.Helper()
	encoded, err := runtime.Encode(codec, pod)
	if err != nil {
		t.Fatal(err)
	}
	decoded, err := runtime.Decode(scheme.Codecs.UniversalDeserializer(), encoded)
	if err != nil {
		t.Fatal(err)
	}
	return f.Mark(slices.Clip(encoded), decoded) // as the storage does
}

// TestMarks: an object is marked if decoding and encoding it gives the same bytes, and its mark is
// known to servers with the same program and type.
func TestMarks(t *testing.T) {
	f := newPodFormat(t)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "b"}, Spec: corev1.PodSpec{NodeName: "c"}}
	marked := markedPod(t, f, pod)
	plain := Unmarked(marked)
	if !f.Marked(marked) || f.Marked(plain) || len(marked) != len(plain)+2+markSize ||
		!bytes.Equal(Unmarked(plain), plain) {
		t.Fatalf("%q is marked, %q is not", marked, plain)
	}
	large := markedPod(t, f, &corev1.Pod{Spec: corev1.PodSpec{Hostname: strings.Repeat("h", 2500)}})
	if spare := cap(large) - len(large); spare > len(large)/8 { // allocations are of certain sizes
		t.Errorf("a mark takes %d bytes more than it has", spare)
	}
	if got, err := runtime.Decode(scheme.Codecs.UniversalDeserializer(), marked); err != nil ||
		got.(*corev1.Pod).Spec.NodeName != "c" {
		t.Errorf("decoded: %v, %v", got, err)
	}
	changed := pod.DeepCopy()
	changed.Spec.RestartPolicy = "Never" // as a default
	versioned := pod.DeepCopy()
	versioned.ResourceVersion = "7"
	for name, c := range map[string]struct{ encoded, decoded *corev1.Pod }{
		"a default": {pod, changed}, "something was lost": {changed, pod},
		"a version is stored": {versioned, versioned},
	} {
		encoded, err := runtime.Encode(codec, c.encoded)
		if err != nil {
			t.Fatal(err)
		}
		if got := f.Mark(bytes.Clone(encoded), c.decoded); !bytes.Equal(got, encoded) || f.Marked(got) {
			t.Errorf("%s: %q is stored", name, got)
		}
	}
	end := append(bytes.Clone(unmarkedEnd), f.mark...)
	for _, data := range [][]byte{nil, []byte("k8s\x00"), []byte("{}"), end, append(bytes.Clone(magic), end...)} {
		if got := f.Mark(bytes.Clone(data), pod); !bytes.Equal(got, data) || f.Marked(data) ||
			!bytes.Equal(Unmarked(data), data) {
			t.Errorf("%q is marked as %q", data, got)
		}
	}
	maps := NewFormat(corev1.Resource("configmaps"), codec, &corev1.ConfigMap{}, &corev1.ConfigMapList{},
		NewCache(1<<20))
	if maps.Marked(marked) || (*Format)(nil).Marked(marked) {
		t.Error("the mark of one kind is that of another")
	}
	if other := append(bytes.Clone(plain), maps.mark...); f.Marked(other) {
		t.Error("another kind's mark is taken")
	}
}

// TestIDs: a linker's note names a program only if it distinguishes programs.
func TestIDs(t *testing.T) {
	if len(buildID()) == 0 {
		t.Error("this program has no id")
	}
	const header = "\x04\x00\x00\x00\x2f\x00\x00\x00\x04\x00\x00\x00Go\x00\x00"
	made := "QgAmxoyNZui4M-T51j6C/14Djnf738mo2CMvfJKmT/8i52wdKyufvpXN0zkmUX/rRxGvchTLmQHF86MfLpM"
	for id, want := range map[string]string{made: made, "": "", "redacted": "", "v1.2/linux/amd64/release": ""} {
		if got := idIn([]byte(header + id)); string(got) != want {
			t.Errorf("the id %q is taken as %q", id, got)
		}
	}
	if got := idIn([]byte(made)); got != nil {
		t.Errorf("what is no note has the id %q", got)
	}
}

// TestFieldsOfMarkedObjects finds the fields that selectors use.
func TestFieldsOfMarkedObjects(t *testing.T) {
	f := newPodFormat(t)
	for _, node := range []string{"", "node", strings.Repeat("n", 300)} {
		value := markedPod(t, f, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "b", GenerateName: "c"},
			Spec:       corev1.PodSpec{NodeName: node, Hostname: "h"},
		})
		got := f.Fields(value)
		if got.Get("metadata.name") != "a" || got.Get("metadata.namespace") != "b" ||
			got.Get("spec.nodeName") != node || !got.Has("spec.nodeName") {
			t.Errorf("%q, %q, %q", got.Get("metadata.name"), got.Get("metadata.namespace"), got.Get("spec.nodeName"))
		}
		if found, ok := f.Field("spec.nodeName", value); !ok || found != node {
			t.Errorf("found %q, %v; want %q", found, ok, node)
		}
		for _, name := range []string{"spec.hostname", "spec.priority", "spec.no.such", "status.phase"} {
			if _, ok := f.Field(name, value); ok || got.Has(name) {
				t.Errorf("%s is found in bytes", name)
			}
		}
	}
	for selector, want := range map[string]bool{
		"": true, "metadata.name=a,spec.nodeName!=b": true, "spec.hostname=h": false,
		"metadata.name=a,status.phase=b": false,
	} {
		if parsed := fields.ParseSelectorOrDie(selector); f.Finds(parsed) != want {
			t.Errorf("%s can be found: %v", selector, !want)
		}
	}
}

// TestEncodersAreTried: stored bytes are for an encoder with a known identifier that encodes to the
// stored form.
func TestEncodersAreTried(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	own := scheme.Codecs.EncoderForVersion(info.Serializer, corev1.SchemeGroupVersion)
	with := func(e runtime.Encoder) runtime.Encoder {
		return runtime.NewEncoderWithAllocator(e.(runtime.EncoderWithAllocator), &runtime.Allocator{})
	}
	for name, c := range map[string]struct {
		identifier runtime.Identifier
		encode     func(runtime.Object, io.Writer) error
		want       bool
	}{
		"the server's": {with(own).Identifier(), with(own).Encode, true},
		"one of another group": {
			scheme.Codecs.EncoderForVersion(info.Serializer, metav1.SchemeGroupVersion).Identifier(), own.Encode,
			false},
		"JSON": {
			scheme.Codecs.EncoderForVersion(
				json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme,
					json.SerializerOptions{}), corev1.SchemeGroupVersion).Identifier(), own.Encode, false},
		"without a version":   {info.Serializer.Identifier(), info.Serializer.Encode, false},
		"another of its name": {own.Identifier(), func(runtime.Object, io.Writer) error { return nil }, false},
		"one that fails": {own.Identifier(), func(runtime.Object, io.Writer) error { return errors.New("no") },
			false},
	} {
		f := newPodFormat(t)
		value := markedPod(t, f, pod)
		for _, revision := range []uint64{1, 1 << 40} {
			got, ok := f.Encode(c.identifier, c.encode, value, revision)
			if ok != c.want {
				t.Errorf("%s: %v", name, ok)
			}
			if !ok {
				continue
			}
			versioned := pod.DeepCopy()
			versioned.ResourceVersion = fmt.Sprint(revision)
			want, err := runtime.Encode(own, versioned)
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: got\n%q\nwant\n%q, %v", name, got, want, err)
			}
		}
		if _, ok := f.Encode(c.identifier, c.encode, Unmarked(value), 1); ok {
			t.Errorf("%s: what has no mark is sent as it is stored", name)
		}
	}
}

// An encoder that fails once does not cost the kind its stored bytes.
func TestAnEncoderThatFailsIsTriedAgain(t *testing.T) {
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	own := scheme.Codecs.EncoderForVersion(info.Serializer, corev1.SchemeGroupVersion)
	f := newPodFormat(t)
	value := markedPod(t, f, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
	if _, ok := f.Encode(own.Identifier(), func(runtime.Object, io.Writer) error { return errors.New("no") }, value,
		1); ok {
		t.Error("an encoder that fails has encoded")
	}
	if _, ok := f.Encode(own.Identifier(), own.Encode, value, 1); !ok {
		t.Error("no encoder is tried after one that failed")
	}
}
