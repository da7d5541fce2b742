package pods

import (
	"context"
	"fmt"
	"slices"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/controllers/claim"
	"github.com/barque/barque/controllers/runtime"
)

// Fresh knows, for one term, for which owners the informers have been compared with the API server.
//
// An owner that was created in this term needs no comparison: no leader before has acted for it. A
// comparison lists a whole namespace, so that many new owners in one would cost the square of their
// number. A restore brings back owners that were created and deleted in the same term; the leader's
// work begins anew then, and a Fresh is of before (raftstore.Store.AwaitLeadership).
type Fresh struct {
	// Owners is the informer of the owners, and Newest asks the API server for its newest revision.
	// Without them all owners are taken for older than the term.
	Owners cache.SharedIndexInformer
	Newest func(context.Context) (string, error)

	asking sync.Mutex // held while Newest is called
	seen   runtime.Seen
	mu     sync.Mutex
	left   map[types.UID]*livePods
	began  string              // a revision of this term; empty until it is known
	older  sets.Set[types.UID] // owners of before began, and some newer; nil until the informer has shown it
}

// Newest makes a Fresh's Newest from a list of owners.
func Newest[T metav1.ListInterface](
	list func(context.Context, metav1.ListOptions) (T, error),
) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		one, err := list(ctx, metav1.ListOptions{Limit: 1})
		if err != nil {
			return "", fmt.Errorf("reading the newest revision: %w", err)
		}
		return one.GetResourceVersion(), nil
	}
}

// ofThisTerm reports whether an owner was certainly created after the term began.
func (f *Fresh) ofThisTerm(ctx context.Context, owner types.UID) (bool, error) {
	if f.Owners == nil {
		return false, nil
	}
	f.asking.Lock()
	defer f.asking.Unlock()
	if f.began == "" {
		began, err := f.Newest(ctx)
		if err != nil {
			return false, err
		}
		f.began = began
	}
	if f.older == nil {
		if !runtime.Reached(f.Owners, f.began) {
			return false, nil
		}
		older := sets.New[types.UID]()
		for _, obj := range f.Owners.GetStore().List() {
			if o, ok := obj.(metav1.Object); ok {
				older.Insert(o.GetUID())
			}
		}
		f.older = older
	}
	return !f.older.Has(owner), nil
}

// livePods is the API server's state of an owner that the informers have not shown yet. Former
// leaders cannot write any more, so that one answer has all their writes.
type livePods struct {
	owner string // resourceVersion of the owner
	items string // the newest resourceVersion of its pods
	// shown means that the informer had items before a decision.
	shown bool
	gone  map[types.UID]bool // pods of the informer that the API server no longer had
}

// Forget drops the state of a deleted owner.
func (f *Fresh) Forget(owner types.UID) {
	f.seen.Forget(owner)
	f.keep(owner, nil)
}

func (f *Fresh) livePods(owner types.UID) *livePods {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.left[owner]
}

func (f *Fresh) keep(owner types.UID, p *livePods) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case p == nil:
		delete(f.left, owner)
	case f.left == nil:
		f.left = map[types.UID]*livePods{owner: p}
	default:
		f.left[owner] = p
	}
}

// Behind reports whether the informer lacks writes of the last leader to an owner or its pods. A
// pod may be missing, older, or gone. shown are the pods that the decision was made for: news since
// then are of no use to it.
//
// Behind asks the API server once for each owner that is older than the term. Then it waits until
// the informer has shown all of the answer, and not for newer changes. A controller asks before its
// first act for an owner in a term. Otherwise it would create pods again, or delete other pods than
// those that are ending.
func (f *Fresh) Behind(
	ctx context.Context, client kubernetes.Interface, informer cache.SharedIndexInformer, owner claim.Owner,
	shown []*corev1.Pod,
) (bool, error) {
	return behind(ctx, f, informer, owner, shown, func(selector metav1.ListOptions) ([]*corev1.Pod, error) {
		list, err := client.CoreV1().Pods(owner.GetNamespace()).List(ctx, selector)
		if err != nil {
			return nil, err
		}
		return pointers(list.Items), nil
	})
}

// BehindSets is Behind for a Deployment and its ReplicaSets: by the template of before it would
// roll back.
func (f *Fresh) BehindSets(
	ctx context.Context, client kubernetes.Interface, informer cache.SharedIndexInformer, owner claim.Owner,
	shown []*appsv1.ReplicaSet,
) (bool, error) {
	return behind(ctx, f, informer, owner, shown, func(selector metav1.ListOptions) ([]*appsv1.ReplicaSet, error) {
		list, err := client.AppsV1().ReplicaSets(owner.GetNamespace()).List(ctx, selector)
		if err != nil {
			return nil, err
		}
		return pointers(list.Items), nil
	})
}

func pointers[T any](items []T) []*T {
	out := make([]*T, len(items))
	for i := range items {
		out[i] = &items[i]
	}
	return out
}

func behind[T metav1.Object](
	ctx context.Context, f *Fresh, informer cache.SharedIndexInformer, owner claim.Owner, shown []T,
	list func(metav1.ListOptions) ([]T, error),
) (bool, error) {
	uid := owner.GetUID()
	if f.seen.Has(uid) {
		return false, nil
	}
	if fresh, err := f.ofThisTerm(ctx, uid); err != nil || fresh {
		return err != nil, err
	}
	p, late := f.livePods(uid), false
	if p == nil {
		var err error
		if p, late, err = take(ctx, owner, shown, list); err != nil || p == nil {
			return true, err
		}
		f.keep(uid, p)
	} else {
		late = !p.shown || slices.ContainsFunc(shown, func(obj T) bool { return p.gone[obj.GetUID()] })
	}
	if late || runtime.Older(owner.GetResourceVersion(), p.owner) {
		// Known for the next decision; this one may be of before.
		p.shown = p.shown || runtime.Reached(informer, p.items)
		return true, nil
	}
	f.seen.Note(uid)
	f.keep(uid, nil)
	return false, nil
}

// take asks the API server for an owner and its pods. It returns nil for a deleted owner. late
// means that shown differs.
func take[T metav1.Object](
	ctx context.Context, owner claim.Owner, shown []T, list func(metav1.ListOptions) ([]T, error),
) (p *livePods, late bool, err error) {
	now, err := owner.Read(ctx)
	switch {
	case apierrors.IsNotFound(err):
		return nil, false, nil
	case err != nil:
		return nil, false, fmt.Errorf("reading %s/%s: %w", owner.GetNamespace(), owner.GetName(), err)
	case now.GetUID() != owner.GetUID():
		return nil, false, nil
	}
	live, err := list(metav1.ListOptions{LabelSelector: owner.Selector.String()})
	if err != nil {
		return nil, false, fmt.Errorf("reading what belongs to %s/%s: %w", owner.GetNamespace(), owner.GetName(), err)
	}
	p = &livePods{owner: now.GetResourceVersion(), shown: true, gone: map[types.UID]bool{}}
	versions := make(map[types.UID]string, len(shown))
	for _, obj := range shown {
		versions[obj.GetUID()] = obj.GetResourceVersion()
		p.gone[obj.GetUID()] = true
	}
	for _, obj := range live {
		if !metav1.IsControlledBy(obj, owner) || owner.May != nil && !owner.May(obj) {
			continue
		}
		delete(p.gone, obj.GetUID())
		if p.items == "" || runtime.Older(p.items, obj.GetResourceVersion()) {
			p.items = obj.GetResourceVersion()
		}
		was, known := versions[obj.GetUID()]
		p.shown = p.shown && known && !runtime.Older(was, obj.GetResourceVersion())
	}
	return p, !p.shown || len(p.gone) > 0, nil
}
