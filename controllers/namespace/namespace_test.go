package namespace

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/barque/barque/controllers/controllertest"
)

var (
	podsGVR    = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	widgets    = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
)

type world struct {
	*controllertest.Cluster
	content      *metadatafake.FakeMetadataClient
	discoveryErr error
	order        []string
	t            *testing.T
}

func newWorld(t *testing.T) *world {
	scheme := kruntime.NewScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	for gvr, kind := range map[schema.GroupVersionResource]string{podsGVR: "Pod", configMaps: "ConfigMap",
		widgets: "Widget"} {
		scheme.AddKnownTypeWithName(gvr.GroupVersion().WithKind(kind), &metav1.PartialObjectMetadata{})
		scheme.AddKnownTypeWithName(gvr.GroupVersion().WithKind(kind+"List"), &metav1.PartialObjectMetadataList{})
	}
	w := &world{Cluster: controllertest.New(t), t: t, content: metadatafake.NewSimpleMetadataClient(scheme)}
	w.content.PrependReactor("delete", "*", func(a clienttesting.Action) (bool, kruntime.Object, error) {
		d := a.(clienttesting.DeleteActionImpl)
		return true, nil, w.delete(d.GetResource(), d.GetNamespace(), d.GetName())
	})
	w.content.PrependReactor("delete-collection", "*", func(a clienttesting.Action) (bool, kruntime.Object, error) {
		list, err := w.content.Tracker().List(a.GetResource(),
			schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, a.GetNamespace())
		if err != nil {
			return true, nil, err
		}
		for _, o := range list.(*metav1.PartialObjectMetadataList).Items {
			if err := w.delete(a.GetResource(), a.GetNamespace(), o.Name); err != nil {
				return true, nil, err
			}
		}
		return true, nil, nil
	})
	return w
}

// delete ends an object, unless a finalizer or the grace of a pod holds it.
func (w *world) delete(gvr schema.GroupVersionResource, namespace, name string) error {
	w.order = append(w.order, gvr.Resource+"/"+name)
	obj, err := w.content.Tracker().Get(gvr, namespace, name)
	if err != nil {
		return err
	}
	o := obj.DeepCopyObject().(*metav1.PartialObjectMetadata)
	if len(o.Finalizers) == 0 && gvr != podsGVR {
		return w.content.Tracker().Delete(gvr, namespace, name)
	}
	now := metav1.Now()
	o.DeletionTimestamp = &now
	return w.content.Tracker().Update(gvr, o, namespace)
}

func (w *world) add(gvr schema.GroupVersionResource, namespace, name string, finalizers ...string) {
	w.t.Helper()
	o := &metav1.PartialObjectMetadata{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Finalizers: finalizers}}
	if err := w.content.Tracker().Create(gvr, o, namespace); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) start() {
	w.t.Helper()
	c, err := New(
		Config{Informers: w.Informers,
			MetadataFor: func(context.Context) (metadata.Interface, error) { return w.content, nil }})
	if err != nil {
		w.t.Fatal(err)
	}
	c.discover = func() ([]*metav1.APIResourceList, error) {
		return []*metav1.APIResourceList{
			{GroupVersion: "v1", APIResources: []metav1.APIResource{
				{Name: "pods", Kind: "Pod", Namespaced: true, Verbs: metav1.Verbs{"list", "delete"}},
				{Name: "configmaps", Kind: "ConfigMap", Namespaced: true,
					Verbs: metav1.Verbs{"list", "delete", "deletecollection"}},
				{Name: "bindings", Kind: "Binding", Namespaced: true, Verbs: metav1.Verbs{"create"}},
			}},
			{GroupVersion: "example.com/v1", APIResources: []metav1.APIResource{
				{Name: "widgets", Kind: "Widget", Namespaced: true, Verbs: metav1.Verbs{"list", "delete"}},
			}},
		}, w.discoveryErr
	}
	w.Start(c.Run)
}

func (w *world) remove() {
	w.t.Helper()
	now := metav1.Now()
	w.Add(&corev1.Namespace{
		// the tracker takes no deleting object without one
		ObjectMeta: metav1.ObjectMeta{Name: "a", DeletionTimestamp: &now, Finalizers: []string{"test/keep"}},
		Spec:       corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{corev1.FinalizerKubernetes}},
	})
}

func (w *world) namespace() *corev1.Namespace {
	w.t.Helper()
	ns, err := w.Client.CoreV1().Namespaces().Get(w.t.Context(), "a", metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return ns
}

func (w *world) condition(t corev1.NamespaceConditionType) corev1.NamespaceCondition {
	for _, c := range w.namespace().Status.Conditions {
		if c.Type == t {
			return c
		}
	}
	return corev1.NamespaceCondition{}
}

func TestEmptiesAndLetsGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.add(podsGVR, "a", "p")
		w.add(configMaps, "a", "c1")
		w.add(configMaps, "a", "c2")
		w.add(widgets, "a", "w", "example.com/hold")
		w.add(configMaps, "b", "other")
		w.start()
		w.remove()
		time.Sleep(3 * time.Second)
		if w.namespace().Status.Phase != corev1.NamespaceTerminating {
			t.Error("not marked as Terminating")
		}
		if !slices.Equal(w.order, []string{"pods/p"}) {
			t.Errorf("deleted while a pod runs: %v", w.order)
		}
		if c := w.condition(corev1.NamespaceContentRemaining); c.Status != corev1.ConditionTrue ||
			!strings.Contains(c.Message, "pods has 1 resource instances") {
			t.Errorf("condition %+v", c)
		}
		if err := w.content.Tracker().Delete(podsGVR, "a", "p"); err != nil { // its kubelet is done
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		if c := w.condition(corev1.NamespaceFinalizersRemaining); c.Status != corev1.ConditionTrue ||
			!strings.Contains(c.Message, "example.com/hold in 1") {
			t.Errorf("condition %+v", c)
		}
		if len(w.namespace().Spec.Finalizers) == 0 {
			t.Error("let go with content in it")
		}
		if err := w.content.Tracker().Delete(widgets, "a", "w"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		if len(w.namespace().Spec.Finalizers) > 0 {
			t.Error("not let go although it is empty")
		}
		if _, err := w.content.Resource(configMaps).Namespace("b").Get(t.Context(), "other",
			metav1.GetOptions{}); err != nil {
			t.Errorf("another namespace's object: %v", err)
		}
	})
}

func TestUnknownContentIsNoContent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.discoveryErr = &discovery.ErrGroupDiscoveryFailed{
			Groups: map[schema.GroupVersion]error{{Group: "down", Version: "v1"}: errors.New("no answer")}}
		w.start()
		w.remove()
		time.Sleep(10 * time.Second)
		if len(w.namespace().Spec.Finalizers) == 0 {
			t.Error("let go although a group could not be asked")
		}
		if c := w.condition(corev1.NamespaceDeletionDiscoveryFailure); c.Status != corev1.ConditionTrue {
			t.Errorf("condition %+v", c)
		}
	})
}

func TestContentThatCannotBeDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.add(configMaps, "a", "c1")
		w.content.PrependReactor("delete-collection", "*", func(clienttesting.Action) (bool, kruntime.Object, error) {
			return true, nil, errors.New("no luck")
		})
		w.start()
		w.remove()
		time.Sleep(10 * time.Second)
		if c := w.condition(corev1.NamespaceDeletionContentFailure); c.Status != corev1.ConditionTrue ||
			!strings.Contains(c.Message, "no luck") {
			t.Errorf("condition %+v", c)
		}
		if len(w.namespace().Spec.Finalizers) == 0 {
			t.Error("let go with content in it")
		}
	})
}

// An object that stays because of a finalizer costs little.
func TestNamespaceThatStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.add(widgets, "a", "w", "example.com/hold")
		var passes atomic.Int32
		w.content.PrependReactor("list", "pods", func(clienttesting.Action) (bool, kruntime.Object, error) {
			passes.Add(1)
			return false, nil, nil
		})
		w.start()
		w.remove()
		time.Sleep(time.Second)
		if n := passes.Load(); n > 3 {
			t.Errorf("%d passes in the first second", n)
		}
		time.Sleep(time.Hour)
		if n := passes.Load(); n > 300 {
			t.Errorf("%d passes in an hour", n)
		}
		if err := w.content.Tracker().Delete(widgets, "a", "w"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(17 * time.Second)
		if len(w.namespace().Spec.Finalizers) > 0 {
			t.Error("not let go although it is empty")
		}
	})
}
