package runtime

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// Object is a pointer to an API type.
type Object[T any] interface {
	*T
	metav1.Object
}

// WatchOwners queues the objects that a loop reconciles when they change. gone, unless it is nil,
// is told of those that are deleted, to forget what is remembered of them.
func WatchOwners[T any, P Object[T]](l *Loop, informer cache.SharedIndexInformer, gone func(types.UID)) {
	Watch(l, informer, func(old, now *T) []Key {
		if now == nil && gone != nil {
			gone(P(old).GetUID())
		}
		return Itself[T, P](old, now)
	})
}

// WatchOwned queues the owners of what an informer holds: the controllers of that kind before and
// after a change. For an object without a controller, matching returns who may adopt it; going
// tells that it is deleted, being deleted, or that this is how it was before the change.
func WatchOwned[T any, P Object[T]](
	l *Loop, informer cache.SharedIndexInformer, kind schema.GroupVersionKind,
	matching func(orphan P, going bool) []Key,
) {
	Watch(l, informer, func(old, now *T) []Key {
		if old != nil && now != nil && P(old).GetResourceVersion() == P(now).GetResourceVersion() {
			return nil
		}
		var keys []Key
		for _, obj := range []*T{old, now} {
			switch {
			case obj == nil:
			case metav1.GetControllerOfNoCopy(P(obj)) != nil:
				keys = append(keys, OwnerKey(P(obj), kind)...)
			default:
				keys = append(keys, matching(obj, obj != now || P(obj).GetDeletionTimestamp() != nil)...)
			}
		}
		return keys
	})
}

// OwnerKey returns the key of an object's controller, if that is of the kind.
func OwnerKey(obj metav1.Object, kind schema.GroupVersionKind) []Key {
	ref := metav1.GetControllerOfNoCopy(obj)
	if ref == nil || ref.Kind != kind.Kind || ref.APIVersion != kind.GroupVersion().String() {
		return nil
	}
	return []Key{{Namespace: obj.GetNamespace(), Name: ref.Name}}
}

// Selecting returns the keys of those owners whose selectors match an orphan. An empty selector
// matches nothing.
func Selecting[P metav1.Object](owners []P, selectorOf func(P) *metav1.LabelSelector, orphan metav1.Object) []Key {
	if len(orphan.GetLabels()) == 0 {
		return nil
	}
	var keys []Key
	for _, o := range owners {
		selector, err := metav1.LabelSelectorAsSelector(selectorOf(o))
		if err == nil && !selector.Empty() && selector.Matches(labels.Set(orphan.GetLabels())) {
			keys = append(keys, KeyOf(o))
		}
	}
	return keys
}

// WriteStatus writes the status of the object that key is about, unless it is the same as before or
// the term has ended, and notes the write. An object that is gone needs no status.
func WriteStatus[T metav1.Object](
	ctx context.Context, l *Loop, key Key, informer cache.SharedIndexInformer, before, after any,
	write func() (T, error),
) error {
	if equality.Semantic.DeepEqual(before, after) || ctx.Err() != nil {
		return nil
	}
	now, err := write()
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("writing the status of %s: %w", key, err)
	}
	l.writes.Wrote(key, informer, now.GetResourceVersion())
	return nil
}
