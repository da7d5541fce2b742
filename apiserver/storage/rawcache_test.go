package storage

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/barque/barque/raftstore"
)

// TestCachedObjectsAreListed: after some objects were asked for, the others come from one list.
// None is taken for another one, or for another revision of itself.
func TestCachedObjectsAreListed(t *testing.T) {
	e := newEnv(t, envOptions{cached: true, prefix: "/registry"})
	const objects, worth = 20, 4
	for i := range objects {
		pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprintf("ns%d", i%2), Name: fmt.Sprintf("pod%d", i)}}
		if err := e.store.Create(e.ctx, "/pods/"+pod.Namespace+"/"+pod.Name, pod, nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	caughtUp := func() {
		t.Helper()
		if err := e.store.GetList(e.ctx, "/pods/", storage.ListOptions{Recursive: true, Predicate: storage.Everything}, &example.PodList{}); err != nil {
			t.Fatal(err)
		}
	}
	caughtUp()
	view, err := e.backend.View(e.ctx, raftstore.ViewOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c := &cachedObjects{resuming: e.store.(*resuming), key: "/pods/", list: &example.PodList{}, worth: worth}
	var items []raftstore.Item
	view.Ascend("/registry/pods/", "", func(item raftstore.Item) bool {
		items = append(items, item)
		obj := c.get(e.ctx, item.Key, item.ModRevision)
		if obj == nil {
			t.Fatalf("%s at %d is not known", item.Key, item.ModRevision)
		}
		pod := obj.(*example.Pod)
		if want := "/registry/pods/" + pod.Namespace + "/" + pod.Name; item.Key != want || pod.ResourceVersion != fmt.Sprint(item.ModRevision) {
			t.Errorf("%s at %d is %s at %s", item.Key, item.ModRevision, want, pod.ResourceVersion)
		}
		if c.counted() != (len(items) > worth) {
			t.Errorf("after %d objects: listed: %v", len(items), c.counted())
		}
		return true
	})
	if len(items) != objects {
		t.Fatalf("%d objects", len(items))
	}
	first, last := items[0], items[objects-1]
	for _, other := range []struct {
		key      string
		revision uint64
	}{
		{first.Key, last.ModRevision},
		{first.Key + "0", first.ModRevision},
		{"/registry/pods/x" + first.Key[len("/registry/pods/"):], first.ModRevision},
		{first.Key, view.Revision() + 1},
	} {
		if obj := c.get(e.ctx, other.key, other.revision); obj != nil {
			t.Errorf("%s at %d is %v", other.key, other.revision, obj)
		}
	}
}

// A key is that of an object when its last parts are the namespace and the name.
func TestEndsWith(t *testing.T) {
	for _, c := range []struct {
		key, namespace, name string
		want                 bool
	}{
		{"/registry/pods/ns/name", "ns", "name", true},
		{"/registry/nodes/name", "", "name", true},
		{"/registry/pods/ns/a-name", "ns", "name", false},
		{"/registry/pods/an-ns/name", "ns", "name", false},
		{"/registry/pods/ns/name", "name", "ns", false},
		{"/registry/pods/ns/other", "ns", "name", false},
		{"name", "", "name", false},
	} {
		if got := endsWith(c.key, c.namespace, c.name); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
