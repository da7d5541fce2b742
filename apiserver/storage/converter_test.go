package storage

import (
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
)

// converting is the codec of a custom resource whose objects a webhook converts as they are read.
type converting struct {
	runtime.Codec
	down    atomic.Bool // the webhook
	garbage atomic.Bool // garbage is written in place of the object
}

func (c *converting) Decode(
	data []byte, defaults *schema.GroupVersionKind, into runtime.Object,
) (runtime.Object, *schema.GroupVersionKind, error) {
	obj, kind, err := c.Codec.Decode(data, defaults, into)
	if err == nil && c.down.Load() {
		return nil, kind, errors.New("conversion webhook for x.org/v1, Kind=Thing failed: connection refused")
	}
	return obj, kind, err
}

func (c *converting) Encode(obj runtime.Object, w io.Writer) error {
	if c.garbage.Load() {
		_, err := io.WriteString(w, `{"apiVersion":"x.org/v1"`)
		return err
	}
	return c.Codec.Encode(obj, w)
}

// TestAFailedConversionIsNoCorruption: an object that cannot be converted is whole, and its reader
// gets the converter's words. One that cannot be decoded is corrupt, also without the webhook.
func TestAFailedConversionIsNoCorruption(t *testing.T) {
	codec := &converting{Codec: unstructured.UnstructuredJSONScheme}
	s, err := New(
		Config{Backend: newBackend(t), Codec: codec, ResourcePrefix: "/things/",
			GroupResource: schema.GroupResource{Group: "x.org", Resource: "things"},
			New:           func() runtime.Object { return &unstructured.Unstructured{} },
			NewList:       func() runtime.Object { return &unstructured.UnstructuredList{} }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	create := func(name string) {
		t.Helper()
		thing := &unstructured.Unstructured{
			Object: map[string]any{"apiVersion": "x.org/v1", "kind": "Thing", "metadata": map[string]any{"name": name}}}
		err := s.Create(t.Context(), "/things/"+name, thing, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
	}
	create("whole")
	codec.down.Store(true)
	read := func(name string) error {
		return s.Get(t.Context(), "/things/"+name, storage.GetOptions{}, &unstructured.Unstructured{})
	}
	list := func() error {
		return s.GetList(t.Context(), "/things/", storage.ListOptions{Recursive: true, Predicate: storage.Everything},
			&unstructured.UnstructuredList{Object: map[string]any{}})
	}
	for what, err := range map[string]error{"one": read("whole"), "all": list()} {
		if err == nil || storage.IsCorruptObject(err) || strings.Contains(err.Error(), "corrupt") ||
			!strings.Contains(err.Error(), "connection refused") {
			t.Errorf("%s: %v", what, err)
		}
	}
	codec.garbage.Store(true)
	create("broken")
	for _, down := range []bool{true, false} {
		codec.down.Store(down)
		if err := read("broken"); !storage.IsCorruptObject(err) {
			t.Errorf("webhook down %v: a broken object: %v", down, err)
		}
	}
}
