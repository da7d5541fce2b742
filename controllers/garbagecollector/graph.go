package garbagecollector

import (
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// object is the collector's record of an API object. It is immutable.
type object struct {
	resource   schema.GroupVersionResource
	namespace  string
	name       string
	uid        types.UID
	owners     []metav1.OwnerReference
	deleting   bool
	finalizers []string // the two of the collector only
}

func newObject(resource schema.GroupVersionResource, m metav1.Object) *object {
	o := &object{
		resource: resource, namespace: m.GetNamespace(), name: m.GetName(), uid: m.GetUID(),
		owners: m.GetOwnerReferences(), deleting: m.GetDeletionTimestamp() != nil,
	}
	for _, f := range m.GetFinalizers() {
		if f == metav1.FinalizerOrphanDependents || f == metav1.FinalizerDeleteDependents {
			o.finalizers = append(o.finalizers, f)
		}
	}
	return o
}

// orphaning: the object waits until its dependents have been let go.
func (o *object) orphaning() bool {
	return o.deleting && slices.Contains(o.finalizers, metav1.FinalizerOrphanDependents)
}

// foreground: the object waits until its dependents are gone.
func (o *object) foreground() bool {
	return o.deleting && slices.Contains(o.finalizers, metav1.FinalizerDeleteDependents)
}

func (o *object) refTo(owner types.UID) *metav1.OwnerReference {
	for i := range o.owners {
		if o.owners[i].UID == owner {
			return &o.owners[i]
		}
	}
	return nil
}

// blocks reports whether o keeps a foreground deletion of owner waiting.
func (o *object) blocks(owner types.UID) bool {
	ref := o.refTo(owner)
	return ref != nil && ref.BlockOwnerDeletion != nil && *ref.BlockOwnerDeletion
}

// graph has every object of the cluster, with its owners and its dependents.
type graph struct {
	mu         sync.RWMutex
	objects    map[types.UID]*object
	dependents map[types.UID]map[types.UID]*object // by owner, whether that is known or not
}

func newGraph() *graph {
	return &graph{objects: map[types.UID]*object{}, dependents: map[types.UID]map[types.UID]*object{}}
}

// put records an object as it is now and returns the objects that have to be looked at for it.
func (g *graph) put(o *object) (look []types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	was := g.objects[o.uid]
	if was != nil {
		g.unlink(was)
	}
	g.objects[o.uid] = o
	for _, ref := range o.owners {
		of := g.dependents[ref.UID]
		if of == nil {
			of = map[types.UID]*object{}
			g.dependents[ref.UID] = of
		}
		of[o.uid] = o
	}
	switch {
	case was == nil, was.deleting != o.deleting, !slices.Equal(was.finalizers, o.finalizers),
		!sameOwners(was.owners, o.owners):
	default:
		return nil
	}
	if len(o.owners) > 0 || o.orphaning() || o.foreground() {
		look = append(look, o.uid)
	}
	if o.foreground() {
		for uid := range g.dependents[o.uid] {
			look = append(look, uid)
		}
	}
	// An object that lets an owner go, or no longer blocks it, may end that owner's waiting.
	if was != nil {
		look = append(look, g.waitingOwners(was)...)
	}
	return look
}

// remove forgets an object that is gone and returns the objects that have to be looked at for it.
func (g *graph) remove(uid types.UID) (look []types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	o := g.objects[uid]
	if o == nil {
		return nil
	}
	g.unlink(o)
	delete(g.objects, uid)
	for dependent := range g.dependents[uid] {
		look = append(look, dependent)
	}
	return append(look, g.waitingOwners(o)...)
}

func (g *graph) waitingOwners(o *object) (look []types.UID) {
	for _, ref := range o.owners {
		if owner := g.objects[ref.UID]; owner != nil && owner.foreground() {
			look = append(look, owner.uid)
		}
	}
	return look
}

func (g *graph) unlink(o *object) {
	for _, ref := range o.owners {
		delete(g.dependents[ref.UID], o.uid)
		if len(g.dependents[ref.UID]) == 0 {
			delete(g.dependents, ref.UID)
		}
	}
}

func (g *graph) get(uid types.UID) *object {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.objects[uid]
}

// dependentsOf returns the objects that name uid as an owner.
func (g *graph) dependentsOf(uid types.UID) []*object {
	g.mu.RLock()
	defer g.mu.RUnlock()
	out := make([]*object, 0, len(g.dependents[uid]))
	for _, o := range g.dependents[uid] {
		out = append(out, o)
	}
	return out
}

// misplaced is a reference to an owner that is in another namespace than its dependent.
type misplaced struct {
	object *object
	ref    metav1.OwnerReference
}

// misplaced returns the mistakes that an object brings: its references to owners in other
// namespaces, and references to it from there. Owners of the cluster have dependents everywhere.
func (g *graph) misplaced(o *object) (found []misplaced) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	for _, ref := range o.owners {
		if owner := g.objects[ref.UID]; owner != nil && owner.namespace != "" && owner.namespace != o.namespace {
			found = append(found, misplaced{o, ref})
		}
	}
	if o.namespace == "" || g.objects[o.uid] != nil {
		return found // an object that is known already was compared with its dependents
	}
	for _, dependent := range g.dependents[o.uid] {
		if ref := dependent.refTo(o.uid); ref != nil && dependent.namespace != o.namespace {
			found = append(found, misplaced{dependent, *ref})
		}
	}
	return found
}

func sameOwners(a, b []metav1.OwnerReference) bool {
	return slices.EqualFunc(a, b, func(x, y metav1.OwnerReference) bool {
		return x.UID == y.UID && isTrue(x.BlockOwnerDeletion) == isTrue(y.BlockOwnerDeletion)
	})
}

func isTrue(b *bool) bool { return b != nil && *b }
