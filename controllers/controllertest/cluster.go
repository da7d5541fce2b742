// Package controllertest is an in-memory API for the tests of the controllers. It adds to
// client-go's object tracker the behaviour that controllers rely on:
//   - comparable resourceVersions, watches without losses, conflicts, UIDs, generated names, and
//     generations;
//   - status subresources that do not touch the spec (but may touch labels and annotations), and
//     the other way round;
//   - graceful deletion of pods, deletion of collections, and finalization of namespaces.
//
// Only tests import it.
package controllertest

import (
	"context"
	"fmt"
	"reflect"
	"strconv"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"

	"github.com/barque/barque/internal/await"
)

// Cluster is the in-memory API with long-lived informers.
type Cluster struct {
	Client    *fake.Clientset
	Informers informers.SharedInformerFactory
	// Collected means that a garbage collector runs: foreground and orphan deletions wait for it.
	Collected bool

	tracker *Tracker
	mu      sync.Mutex             // makes read-modify-write of the tracker atomic
	inform  func() context.Context // of the informers
	t       testing.TB
}

// New makes a cluster that holds objects. Its informers are started by Start.
func New(t testing.TB, objects ...kruntime.Object) *Cluster {
	t.Helper()
	c := &Cluster{t: t, tracker: NewTracker(scheme.Scheme, scheme.Codecs.UniversalDecoder())}
	c.Client = &fake.Clientset{}
	c.tracker.Serve(&c.Client.Fake)
	c.Client.PrependReactor("create", "*", c.create)
	c.Client.PrependReactor("update", "*", c.update)
	c.Client.PrependReactor("patch", "*", c.patch)
	c.Client.PrependReactor("delete", "*", c.delete)
	c.Client.PrependReactor("delete-collection", "*", c.deleteCollection)
	c.Client.PrependReactor("create", "namespaces", c.finalize)
	for _, obj := range objects {
		c.Add(obj)
	}
	c.Informers = informers.NewSharedInformerFactory(c.Client, 0)
	c.inform = sync.OnceValue(c.informing)
	return c
}

// Add puts an object into the cluster as it is, with a UID and a resourceVersion.
func (c *Cluster) Add(obj kruntime.Object) {
	c.t.Helper()
	m, err := meta.Accessor(obj)
	if err != nil {
		c.t.Fatal(err)
	}
	c.fillIn(m)
	if err := c.tracker.Add(obj); err != nil {
		c.t.Fatal(err)
	}
}

func (c *Cluster) fillIn(m metav1.Object) {
	if m.GetName() == "" && m.GetGenerateName() != "" {
		m.SetName(m.GetGenerateName() + strconv.FormatInt(c.tracker.revision.Load(), 36))
	}
	if m.GetUID() == "" {
		m.SetUID(types.UID(fmt.Sprintf("uid-%d", c.tracker.revision.Load())))
	}
	if m.GetGeneration() == 0 {
		m.SetGeneration(1)
	}
	c.stamp(m)
}

func (c *Cluster) stamp(m metav1.Object) {
	m.SetResourceVersion(strconv.FormatInt(c.tracker.next(), 10))
}

func (c *Cluster) create(action clienttesting.Action) (bool, kruntime.Object, error) {
	a, ok := action.(clienttesting.CreateActionImpl)
	if !ok || a.GetSubresource() != "" {
		return false, nil, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	obj := a.GetObject().DeepCopyObject()
	m, err := meta.Accessor(obj)
	if err != nil {
		return true, nil, err
	}
	m.SetResourceVersion("")
	c.fillIn(m)
	if at := m.GetCreationTimestamp(); at.IsZero() {
		m.SetCreationTimestamp(metav1.Now())
	}
	if m.GetNamespace() == "" {
		m.SetNamespace(a.GetNamespace())
	}
	if err := c.tracker.Create(a.GetResource(), obj, a.GetNamespace()); err != nil {
		return true, nil, err
	}
	return true, obj, nil
}

func (c *Cluster) update(action clienttesting.Action) (bool, kruntime.Object, error) {
	a, ok := action.(clienttesting.UpdateActionImpl)
	if !ok {
		return false, nil, nil
	}
	part := a.GetSubresource()
	if part == "approval" {
		part = "status" // where it is stored
	}
	if part != "" && part != "status" {
		return false, nil, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.write(a.GetResource(), a.GetNamespace(), part, a.GetObject().DeepCopyObject())
}

// write replaces one object by rules: a conflict on another resourceVersion, status and the rest
// kept apart, no event when nothing changes. c.mu is held.
func (c *Cluster) write(
	gvr schema.GroupVersionResource, namespace, subresource string, obj kruntime.Object,
) (bool, kruntime.Object, error) {
	m, err := meta.Accessor(obj)
	if err != nil {
		return true, nil, err
	}
	was, err := c.tracker.Get(gvr, namespace, m.GetName())
	if err != nil {
		return true, nil, err
	}
	wasMeta, err := meta.Accessor(was)
	if err != nil {
		return true, nil, err
	}
	if rv := m.GetResourceVersion(); rv != "" && rv != wasMeta.GetResourceVersion() {
		return true, nil,
			apierrors.NewConflict(gvr.GroupResource(), m.GetName(),
				fmt.Errorf("it is at %s, not %s", wasMeta.GetResourceVersion(), rv))
	}
	m.SetResourceVersion(wasMeta.GetResourceVersion())
	if subresource == "status" {
		next := was.DeepCopyObject()
		copyField(next, obj, "Status")
		nextMeta, err := meta.Accessor(next)
		if err != nil {
			return true, nil, err
		}
		nextMeta.SetLabels(m.GetLabels())
		nextMeta.SetAnnotations(m.GetAnnotations())
		obj, m = next, nextMeta
	} else {
		copyField(obj, was, "Status")
		if differs(obj, was, "Spec") {
			m.SetGeneration(wasMeta.GetGeneration() + 1)
		}
	}
	if equality.Semantic.DeepEqual(was, obj) {
		return true, was, nil
	}
	c.stamp(m)
	if m.GetDeletionTimestamp() != nil && len(m.GetFinalizers()) == 0 && len(wasMeta.GetFinalizers()) > 0 {
		// The event of a deletion carries its own, newer resourceVersion.
		if err := c.tracker.Update(gvr, obj, namespace); err != nil {
			return true, nil, err
		}
		return true, obj, c.tracker.Delete(gvr, namespace, m.GetName())
	}
	return true, obj, c.tracker.Update(gvr, obj, namespace)
}

func copyField(to, from kruntime.Object, field string) {
	t, f := reflect.ValueOf(to).Elem().FieldByName(field), reflect.ValueOf(from).Elem().FieldByName(field)
	if t.IsValid() && f.IsValid() {
		t.Set(f)
	}
}

func differs(a, b kruntime.Object, field string) bool {
	x, y := reflect.ValueOf(a).Elem().FieldByName(field), reflect.ValueOf(b).Elem().FieldByName(field)
	return x.IsValid() && y.IsValid() && !equality.Semantic.DeepEqual(x.Interface(), y.Interface())
}

// patch lets the tracker's own reaction compute the result on a scratch copy and writes that by
// the rules.
func (c *Cluster) patch(action clienttesting.Action) (bool, kruntime.Object, error) {
	a, ok := action.(clienttesting.PatchActionImpl)
	if !ok || (a.GetSubresource() != "" && a.GetSubresource() != "status") {
		return false, nil, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	was, err := c.tracker.Get(a.GetResource(), a.GetNamespace(), a.GetName())
	if err != nil {
		return true, nil, err
	}
	scratch := clienttesting.NewObjectTracker(scheme.Scheme, scheme.Codecs.UniversalDecoder())
	if err := scratch.Create(a.GetResource(), was, a.GetNamespace()); err != nil {
		return true, nil, err
	}
	_, obj, err := clienttesting.ObjectReaction(scratch)(a)
	if err != nil {
		return true, nil, err
	}
	before, err := meta.Accessor(was)
	if err != nil {
		return true, nil, err
	}
	after, err := meta.Accessor(obj)
	if err != nil {
		return true, nil, err
	}
	if before.GetUID() != after.GetUID() {
		return true, nil,
			apierrors.NewConflict(a.GetResource().GroupResource(), a.GetName(), fmt.Errorf("it has another UID"))
	}
	return c.write(a.GetResource(), a.GetNamespace(), a.GetSubresource(), obj)
}

func (c *Cluster) delete(action clienttesting.Action) (bool, kruntime.Object, error) {
	a, ok := action.(clienttesting.DeleteActionImpl)
	if !ok {
		return false, nil, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return true, nil, c.remove(a)
}

// deleteCollection deletes all objects of a namespace that have the labels.
func (c *Cluster) deleteCollection(action clienttesting.Action) (bool, kruntime.Object, error) {
	a, ok := action.(clienttesting.DeleteCollectionActionImpl)
	if !ok {
		return false, nil, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	gvk, err := kindOf(a.GetResource())
	if err != nil {
		return true, nil, err
	}
	list, err := c.tracker.List(a.GetResource(), gvk, a.GetNamespace())
	if err != nil {
		return true, nil, err
	}
	return true, nil, meta.EachListItem(list, func(obj kruntime.Object) error {
		m, err := meta.Accessor(obj)
		if err != nil {
			return err
		}
		if selector := a.GetListRestrictions().Labels; selector != nil && !selector.Matches(labels.Set(m.GetLabels())) {
			return nil
		}
		return c.remove(
			clienttesting.NewDeleteActionWithOptions(a.GetResource(), a.GetNamespace(), m.GetName(), a.DeleteOptions))
	})
}

// kindOf finds the kind of a resource by its name, which is the kind's, small and in the plural.
func kindOf(gvr schema.GroupVersionResource) (schema.GroupVersionKind, error) {
	for kind := range scheme.Scheme.KnownTypes(gvr.GroupVersion()) {
		gvk := gvr.GroupVersion().WithKind(kind)
		if plural, _ := meta.UnsafeGuessKindToResource(gvk); plural == gvr {
			return gvk, nil
		}
	}
	return schema.GroupVersionKind{}, fmt.Errorf("no kind has the resource %s", gvr)
}

// finalize writes the finalizers in the spec of a namespace, which goes with the last one.
func (c *Cluster) finalize(action clienttesting.Action) (bool, kruntime.Object, error) {
	a, ok := action.(clienttesting.CreateActionImpl)
	if !ok || a.GetSubresource() != "finalize" {
		return false, nil, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	asked, ok := a.GetObject().(*corev1.Namespace)
	if !ok {
		return true, nil, apierrors.NewBadRequest("not a namespace")
	}
	obj, err := c.tracker.Get(a.GetResource(), "", asked.Name)
	if err != nil {
		return true, nil, err
	}
	next, ok := obj.DeepCopyObject().(*corev1.Namespace)
	if !ok {
		return true, nil, fmt.Errorf("namespace %s is a %T", asked.Name, obj)
	}
	if rv := asked.ResourceVersion; rv != "" && rv != next.ResourceVersion {
		return true, nil,
			apierrors.NewConflict(a.GetResource().GroupResource(), asked.Name,
				fmt.Errorf("it is at %s, not %s", next.ResourceVersion, rv))
	}
	next.Spec.Finalizers = asked.Spec.Finalizers
	c.stamp(next)
	if err := c.tracker.Update(a.GetResource(), next, ""); err != nil || next.DeletionTimestamp == nil || held(next) {
		return true, next, err
	}
	return true, next, c.tracker.Delete(a.GetResource(), "", next.Name)
}

// held reports whether an object stays until its finalizers are removed.
func held(obj metav1.Object) bool {
	ns, ok := obj.(*corev1.Namespace)
	return len(obj.GetFinalizers()) > 0 || ok && len(ns.Spec.Finalizers) > 0
}

// remove carries out a deletion. c.mu is held.
func (c *Cluster) remove(a clienttesting.DeleteActionImpl) error {
	gvr := a.GetResource()
	obj, err := c.tracker.Get(gvr, a.GetNamespace(), a.GetName())
	if err != nil {
		return err
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	if p := a.DeleteOptions.Preconditions; p != nil {
		if (p.UID != nil && *p.UID != m.GetUID()) ||
			(p.ResourceVersion != nil && *p.ResourceVersion != m.GetResourceVersion()) {
			return apierrors.NewConflict(gvr.GroupResource(), a.GetName(), fmt.Errorf("precondition failed"))
		}
	}
	force := a.DeleteOptions.GracePeriodSeconds != nil && *a.DeleteOptions.GracePeriodSeconds == 0
	c.propagate(m, a.DeleteOptions.PropagationPolicy)
	if held(m) || (gvr.Resource == "pods" && onNode(obj) && !force) {
		if m.GetDeletionTimestamp() != nil {
			return nil
		}
		now := metav1.Now()
		m.SetDeletionTimestamp(&now)
		c.stamp(m)
		return c.tracker.Update(gvr, obj, a.GetNamespace())
	}
	// The event of a deletion carries its own, newer resourceVersion.
	c.stamp(m)
	if err := c.tracker.Update(gvr, obj, a.GetNamespace()); err != nil {
		return err
	}
	return c.tracker.Delete(gvr, a.GetNamespace(), a.GetName())
}

// propagate puts the finalizer on an object that a garbage collector takes off.
func (c *Cluster) propagate(m metav1.Object, policy *metav1.DeletionPropagation) {
	if !c.Collected || policy == nil || m.GetDeletionTimestamp() != nil {
		return
	}
	switch *policy {
	case metav1.DeletePropagationForeground:
		m.SetFinalizers(append(m.GetFinalizers(), metav1.FinalizerDeleteDependents))
	case metav1.DeletePropagationOrphan:
		m.SetFinalizers(append(m.GetFinalizers(), metav1.FinalizerOrphanDependents))
	}
}

func onNode(obj kruntime.Object) bool {
	spec := reflect.ValueOf(obj).Elem().FieldByName("Spec")
	return spec.IsValid() && spec.FieldByName("NodeName").String() != ""
}

// Start starts the informers, waits until they have synced, and runs a routine until the test ends.
// The returned function ends it earlier and waits for it.
func (c *Cluster) Start(run func(ctx context.Context, client kubernetes.Interface) error) (stop func()) {
	c.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	c.Informers.StartWithContext(c.inform())
	c.Informers.WaitForCacheSync(ctx.Done())
	done := make(chan error, 1)
	go func() { done <- run(ctx, c.Client) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			c.t.Errorf("the routine failed: %v", err)
		}
	})
	c.t.Cleanup(stop)
	return stop
}

// informing returns a context that ends with the test: informers outlast every routine.
func (c *Cluster) informing() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	c.t.Cleanup(func() {
		cancel()
		c.Informers.Shutdown()
	})
	return ctx
}

// Eventually waits for a condition.
func Eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	await.True(t, what, holds)
}

// SkipTo makes the next write get a resourceVersion above the given one.
func (c *Cluster) SkipTo(version int64) { c.tracker.revision.Store(version) }
