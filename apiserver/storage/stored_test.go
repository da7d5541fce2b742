package storage

import (
	"fmt"
	"testing"
	"time"

	"github.com/barque/barque/apiserver/objectcache"
	"github.com/barque/barque/apiserver/rawlist"
	"github.com/barque/barque/raftstore"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/kubernetes/scheme"
)

// TestWhatIsGoneLeavesWhatIs: an object that has ceased to match is sent as it was, with the
// revision of its new state. Reading the old state must not drop the decoded new one.
func TestWhatIsGoneLeavesWhatIs(t *testing.T) {
	t.Parallel()
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	version := corev1.SchemeGroupVersion
	s, err := New(Config{
		Backend: newBackend(t),
		Codec: scheme.Codecs.CodecForVersions(info.Serializer, scheme.Codecs.UniversalDeserializer(),
			version, version),
		New:              func() runtime.Object { return &corev1.ConfigMap{} },
		NewList:          func() runtime.Object { return &corev1.ConfigMapList{} },
		RawLists:         rawlist.NewCache(1 << 20),
		Objects:          objectcache.New(objectcache.DefaultSize),
		ResourcePrefix:   "/configmaps/",
		GroupResource:    corev1.Resource("configmaps"),
		ProgressInterval: time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	ctx, key, created := t.Context(), "/configmaps/ns/a", &corev1.ConfigMap{}
	web := labels.Set{"app": "web"}
	if err := s.Create(ctx, key,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", Labels: web}}, created,
		0); err != nil {
		t.Fatal(err)
	}
	w, err := s.Watch(ctx, "/configmaps/", storage.ListOptions{
		Recursive: true, ResourceVersion: created.ResourceVersion,
		Predicate: storage.SelectionPredicate{Label: labels.SelectorFromSet(web), Field: fields.Everything()},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	err = s.GuaranteedUpdate(ctx, key, &corev1.ConfigMap{}, false, nil,
		func(obj runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
			obj.(*corev1.ConfigMap).Labels["app"] = "other"
			return obj, nil, nil
		}, nil)
	if err != nil {
		t.Fatal(err)
	}
	view, err := s.backend.View(ctx, raftstore.ViewOptions{})
	if err != nil {
		t.Fatal(err)
	}
	item, _ := view.Get(key)
	is, err := s.shared(ctx, storedItem(&item))
	if err != nil {
		t.Fatal(err)
	}
	event := <-w.ResultChan()
	shared, ok := event.Object.(runtime.CacheableObject)
	if event.Type != watch.Deleted || !ok {
		t.Fatalf("got %s %T", event.Type, event.Object)
	}
	if was := shared.GetObject().(*corev1.ConfigMap); was.Labels["app"] != "web" ||
		was.ResourceVersion != fmt.Sprint(item.ModRevision) {
		t.Errorf("it was %+v", was.ObjectMeta)
	}
	if s.peek(storedItem(&item)) != is {
		t.Error("what it has become has to be decoded again")
	}
}
