// Package garbagecollector deletes objects whose owners are gone. It completes foreground and
// orphan deletions, which the API server only begins, by the finalizers "foregroundDeletion" and
// "orphan". Objects that own each other in a circle would wait for each other for ever in a
// foreground deletion: their references get blockOwnerDeletion=false.
//
// It keeps a graph of all objects by their owner references, from metadata informers that last for
// a term. The graph only suggests deletions. Before one, the object and the absence of its owners
// are read from the API server.
package garbagecollector

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/record"

	"github.com/barque/barque/controllers/runtime"
)

// Config of a Controller.
type Config struct {
	// MetadataFor makes the metadata client of a term: every request of it carries
	// runtime.TermFrom(lead), and ends with lead.
	MetadataFor func(lead context.Context) (metadata.Interface, error)
	Logger      *slog.Logger
	// Workers is how many objects are worked on at once. Default 10.
	Workers int
}

// Controller collects garbage.
type Controller struct {
	cfg Config
	// discover replaces the client's discovery in tests.
	discover func() ([]*metav1.APIResourceList, error)
}

// New checks the configuration.
func New(cfg Config) (*Controller, error) {
	if cfg.MetadataFor == nil {
		return nil, errors.New("controllers/garbagecollector: MetadataFor is required")
	}
	if cfg.Workers <= 0 {
		cfg.Workers = 10
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Controller{cfg: cfg}, nil
}

// Run collects for one term of leadership. The keys are UIDs.
func (c *Controller) Run(ctx context.Context, client kubernetes.Interface) error {
	meta, err := c.cfg.MetadataFor(ctx)
	if err != nil {
		return fmt.Errorf("making a metadata client: %w", err)
	}
	recorder, stop := runtime.Recorder(ctx, client, "garbage-collector-controller")
	defer stop()
	t := &term{Controller: c, client: meta, graph: newGraph(), events: recorder}
	discover := c.discover
	if discover == nil {
		discover = client.Discovery().ServerPreferredResources
	}
	t.sources = newSources(meta, discover, t.changed)
	t.loop = runtime.NewLoop("garbagecollector", c.cfg.Workers, c.cfg.Logger, t.reconcile)

	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wg.Go(func() {
		t.sources.run(ctx, func() { runtime.Started(ctx) },
			func(err error) { c.cfg.Logger.Warn("garbage collector", "err", err) })
	})
	return t.loop.Run(ctx)
}

// term is the state of one leadership term.
type term struct {
	*Controller
	client  metadata.Interface
	graph   *graph
	sources *sources
	loop    *runtime.Loop
	gone    absentees
	events  record.EventRecorder
}

func (t *term) changed(gvr schema.GroupVersionResource, old, now metav1.Object) {
	var look []types.UID
	// An object may have been replaced by another of its name between two events.
	if old != nil && (now == nil || old.GetUID() != now.GetUID()) {
		look = t.graph.remove(old.GetUID())
	}
	if now != nil {
		o := newObject(gvr, now)
		if old == nil || !sameOwners(old.GetOwnerReferences(), o.owners) { // each mistake is reported once
			for _, m := range t.graph.misplaced(o) {
				t.reportMisplaced(m)
			}
		}
		look = append(look, t.graph.put(o)...)
	}
	for _, uid := range look {
		t.loop.Add(runtime.Key{Name: string(uid)})
	}
}

// reportMisplaced warns of a reference to an owner in another namespace. Such an owner does not
// exist, and the object may be deleted.
func (t *term) reportMisplaced(m misplaced) {
	kind, ok := t.sources.named(m.object.resource)
	if !ok {
		return
	}
	object := &corev1.ObjectReference{
		APIVersion: m.object.resource.GroupVersion().String(), Kind: kind,
		Namespace: m.object.namespace, Name: m.object.name, UID: m.object.uid,
	}
	t.events.Eventf(object, corev1.EventTypeWarning, "OwnerRefInvalidNamespace",
		"ownerRef [%s/%s, namespace: %s, name: %s, uid: %s] does not exist in namespace %q",
		m.ref.APIVersion, m.ref.Kind, m.object.namespace, m.ref.Name, m.ref.UID, m.object.namespace)
}

func (t *term) reconcile(ctx context.Context, key runtime.Key) (time.Duration, error) {
	o := t.graph.get(types.UID(key.Name))
	if o == nil {
		return 0, nil
	}
	switch {
	case o.orphaning() || o.foreground():
		if !t.sources.complete() {
			return runtime.Retry, nil // a dependent may not be known yet
		}
		if o.orphaning() {
			return 0, t.orphan(ctx, o)
		}
		return 0, t.finishForeground(ctx, o)
	case o.deleting || len(o.owners) == 0:
		return 0, nil
	}
	return t.collect(ctx, o)
}

// collect deletes an object that has lost its owners.
func (t *term) collect(ctx context.Context, o *object) (time.Duration, error) {
	states, again := map[types.UID]ownerState{}, time.Duration(0)
	for _, ref := range o.owners {
		state, err := t.ownerState(ctx, o, ref)
		if err != nil {
			return 0, err
		}
		if state == waiting && !t.sources.complete() {
			return runtime.Retry, nil // a dependent may not be known yet
		}
		if state == unseen {
			again = runtime.Retry
		}
		states[ref.UID] = state
	}
	hasDependents := len(t.graph.dependentsOf(o.uid)) > 0
	if v := judge(o, states, hasDependents); v.keep && len(v.drop) == 0 {
		return again, nil
	}
	return again, t.judgeLive(ctx, o, states, hasDependents)
}

// judgeLive decides by the object as the API server has it, and acts.
func (t *term) judgeLive(ctx context.Context, o *object, states map[types.UID]ownerState, hasDependents bool) error {
	live, err := t.live(ctx, o)
	if err != nil || live == nil || live.DeletionTimestamp != nil {
		return err
	}
	is := newObject(o.resource, live)
	if !sameOwners(is.owners, o.owners) {
		return nil // the informer will bring it in its new state
	}
	v := judge(is, states, hasDependents)
	if v.keep {
		return t.dropOwners(ctx, is, live, v.drop)
	}
	t.cfg.Logger.Debug("deleting an object whose owners are gone", "resource", o.resource.Resource, "namespace",
		o.namespace, "name", o.name, "policy", v.policy)
	err = t.api(o.resource, o.namespace).Delete(ctx, o.name, metav1.DeleteOptions{
		Preconditions:     &metav1.Preconditions{UID: &o.uid, ResourceVersion: &live.ResourceVersion},
		PropagationPolicy: &v.policy,
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting %s %s/%s, whose owners are gone: %w", o.resource.Resource, o.namespace, o.name, err)
	}
	return nil
}

// ownerState returns the state of one owner, from the graph if it is there, otherwise from the API
// server.
func (t *term) ownerState(ctx context.Context, o *object, ref metav1.OwnerReference) (ownerState, error) {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return solid, nil // cannot be looked up: never a reason to delete
	}
	kind, ok := t.sources.kind(schema.GroupKind{Group: gv.Group, Kind: ref.Kind})
	if !ok {
		return solid,
			fmt.Errorf("owner %s %s of %s %s/%s is of a kind that the API does not serve", ref.Kind, ref.Name,
				o.resource.Resource, o.namespace, o.name)
	}
	if kind.namespaced && o.namespace == "" {
		return solid, nil // an object of the cluster cannot be owned by one of a namespace
	}
	namespace := ""
	if kind.namespaced {
		namespace = o.namespace
	}
	// By name too: a reference across namespaces is a reference to nothing.
	if owner := t.graph.get(ref.UID); owner != nil && owner.namespace == namespace && owner.name == ref.Name &&
		owner.resource.GroupResource() == kind.gvr.GroupResource() {
		if owner.foreground() {
			return waiting, nil
		}
		return solid, nil
	}
	where := runtime.Key{Namespace: namespace, Name: ref.Name}
	if t.gone.has(ref.UID, where) {
		return absent, nil
	}
	owner, err := t.api(kind.gvr, namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	switch {
	case err != nil && !apierrors.IsNotFound(err):
		return solid, fmt.Errorf("looking for owner %s %s: %w", ref.Kind, where, err)
	case err != nil, owner.UID != ref.UID:
		t.gone.add(ref.UID, where)
		return absent, nil
	case t.sources.follows(kind.gvr):
		return unseen, nil
	}
	return solid, nil
}

// finishForeground removes the finalizer from an object whose blocking dependents are gone.
func (t *term) finishForeground(ctx context.Context, o *object) error {
	if owners := deadlock(o, t.graph.dependentsOf); len(owners) > 0 {
		return t.unblock(ctx, o, owners)
	}
	for _, dependent := range t.graph.dependentsOf(o.uid) {
		if dependent.blocks(o.uid) {
			return nil // the graph has woken it for o's deletion; its end, or its letting go, wakes o
		}
	}
	return t.dropFinalizer(ctx, o, metav1.FinalizerDeleteDependents)
}

// unblock lets owners of an object be deleted before it. The last object of a circle to wait sees
// the whole circle, so every circle is opened by at least one.
func (t *term) unblock(ctx context.Context, o *object, owners []types.UID) error {
	live, err := t.live(ctx, o)
	if err != nil || live == nil {
		return err
	}
	if !sameOwners(live.OwnerReferences, o.owners) {
		return nil // the informer will bring it in its new state
	}
	t.cfg.Logger.Info(
		"objects own each other in a circle and wait for each other's end: one no longer blocks its owners",
		"resource", o.resource.Resource, "namespace", o.namespace, "name", o.name, "owners", owners)
	refs := slices.Clone(live.OwnerReferences)
	for i := range refs {
		if slices.Contains(owners, refs[i].UID) {
			refs[i].BlockOwnerDeletion = new(bool)
		}
	}
	return t.patch(ctx, o, live, "ownerReferences", refs)
}

// orphan removes the references to an object from all its dependents, and then its finalizer. A
// missed dependent would be deleted as garbage, so they are read from the API server. The graph may
// lack a dependent that was created just before the object's deletion.
func (t *term) orphan(ctx context.Context, o *object) error {
	for _, r := range t.sources.where(o.namespace) {
		if err := t.release(ctx, r, o); err != nil {
			return err
		}
	}
	return t.dropFinalizer(ctx, o, metav1.FinalizerOrphanDependents)
}

// page is the size of a page in the list of possible dependents.
const page = 500

// release removes the references to an object from all its dependents of one resource.
func (t *term) release(ctx context.Context, gvr schema.GroupVersionResource, o *object) error {
	options := metav1.ListOptions{Limit: page}
	for {
		list, err := t.api(gvr, o.namespace).List(ctx, options)
		if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
			return nil // the resource has gone from the API
		}
		if err != nil {
			return fmt.Errorf("looking for dependents of %s %s/%s among %s: %w", o.resource.Resource, o.namespace,
				o.name, gvr.Resource, err)
		}
		for i := range list.Items {
			if err := t.dropOwners(ctx, newObject(gvr, &list.Items[i]), &list.Items[i],
				[]types.UID{o.uid}); err != nil {
				return err
			}
		}
		if options.Continue = list.Continue; options.Continue == "" {
			return nil
		}
	}
}

func (t *term) dropOwners(ctx context.Context, o *object, live *metav1.PartialObjectMetadata, drop []types.UID) error {
	left := slices.DeleteFunc(slices.Clone(live.OwnerReferences),
		func(ref metav1.OwnerReference) bool { return slices.Contains(drop, ref.UID) })
	if len(left) == len(live.OwnerReferences) {
		return nil
	}
	return t.patch(ctx, o, live, "ownerReferences", left)
}

func (t *term) dropFinalizer(ctx context.Context, o *object, finalizer string) error {
	live, err := t.live(ctx, o)
	if err != nil || live == nil {
		return err
	}
	left := slices.DeleteFunc(slices.Clone(live.Finalizers), func(f string) bool { return f == finalizer })
	if len(left) == len(live.Finalizers) {
		return nil
	}
	return t.patch(ctx, o, live, "finalizers", left)
}

// patch replaces one list in the metadata, if the object is still as it was read. A merge patch is
// understood by every resource, custom ones too.
func (t *term) patch(ctx context.Context, o *object, live *metav1.PartialObjectMetadata, field string, list any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": live.UID, "resourceVersion": live.ResourceVersion, field: list,
	}})
	if err != nil {
		return err
	}
	_, err = t.api(o.resource, o.namespace).Patch(ctx, o.name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("changing the %s of %s %s/%s: %w", field, o.resource.Resource, o.namespace, o.name, err)
	}
	return nil
}

// live reads an object from the API server; nil when it is gone or replaced.
func (t *term) live(ctx context.Context, o *object) (*metav1.PartialObjectMetadata, error) {
	live, err := t.api(o.resource, o.namespace).Get(ctx, o.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading %s %s/%s: %w", o.resource.Resource, o.namespace, o.name, err)
	case live.UID != o.uid:
		return nil, nil
	}
	return live, nil
}

func (t *term) api(gvr schema.GroupVersionResource, namespace string) metadata.ResourceInterface {
	if namespace == "" {
		return t.client.Resource(gvr)
	}
	return t.client.Resource(gvr).Namespace(namespace)
}
