// Package claim decides whose an object is by controller reference and selector, and makes it so.
// It is shared by the controllers that own pods or ReplicaSets through a label selector.
package claim

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Plan says which objects an owner keeps, takes and lets go.
type Plan[T metav1.Object] struct {
	Keep    []T // owned and matching
	Adopt   []T // nobody's and matching
	Release []T // owned but no longer matching
	// Finalizers are added to those that are adopted.
	Finalizers []string
}

// Decide sorts objects. owned are those whose controller reference names the owner, orphans those
// of its namespace without controller; others are never touched. An owner that is being deleted
// takes and releases nothing; an object that is being deleted is not worth either.
func Decide[T metav1.Object](owner metav1.Object, selector labels.Selector, owned, orphans []T) Plan[T] {
	var p Plan[T]
	going := owner.GetDeletionTimestamp() != nil
	for _, o := range owned {
		switch {
		case selector.Matches(labels.Set(o.GetLabels())):
			p.Keep = append(p.Keep, o)
		case !going && o.GetDeletionTimestamp() == nil:
			p.Release = append(p.Release, o)
		}
	}
	if going || selector.Empty() {
		return p
	}
	for _, o := range orphans {
		if o.GetDeletionTimestamp() == nil && o.GetNamespace() == owner.GetNamespace() && selector.Matches(labels.Set(o.GetLabels())) {
			p.Adopt = append(p.Adopt, o)
		}
	}
	return p
}

// Patch writes a strategic merge patch to one object and returns it as written.
type Patch[T metav1.Object] func(ctx context.Context, name string, patch []byte) (T, error)

// Act carries out a plan and returns all objects that are the owner's afterwards. alive must ask
// the API server, not a cache, whether the owner is still there with its UID and not being
// deleted; it is called only when there is something to adopt. wrote is told of each write.
func Act[T metav1.Object](ctx context.Context, p Plan[T], owner metav1.Object, kind schema.GroupVersionKind,
	alive func(context.Context) error, patch Patch[T], wrote func(T)) ([]T, error) {
	mine := p.Keep
	if len(p.Adopt) > 0 {
		if err := alive(ctx); err != nil {
			return nil, err
		}
	}
	for _, o := range p.Adopt {
		now, err := patch(ctx, o.GetName(), refPatch(o.GetUID(), metav1.NewControllerRef(owner, kind), p.Finalizers...))
		switch {
		case apierrors.IsNotFound(err):
			continue
		case err != nil:
			return nil, fmt.Errorf("adopting %s: %w", o.GetName(), err)
		}
		wrote(now)
		mine = append(mine, now)
	}
	for _, o := range p.Release {
		now, err := patch(ctx, o.GetName(), refPatch(o.GetUID(), map[string]any{"$patch": "delete", "uid": owner.GetUID()}))
		switch {
		// Invalid: the object has another UID by now, so it is not the one to release.
		case apierrors.IsNotFound(err), apierrors.IsInvalid(err):
			continue
		case err != nil:
			return nil, fmt.Errorf("releasing %s: %w", o.GetName(), err)
		}
		wrote(now)
	}
	return mine, nil
}

// refPatch changes one owner reference and adds finalizers, on the object with that UID only.
func refPatch(uid types.UID, ref any, finalizers ...string) []byte {
	meta := map[string]any{"uid": uid, "ownerReferences": []any{ref}}
	if len(finalizers) > 0 {
		meta["finalizers"] = finalizers
	}
	patch, err := json.Marshal(map[string]any{"metadata": meta})
	if err != nil {
		panic(err) // plain maps of strings and bools always encode
	}
	return patch
}

// StillThere turns a fresh read of the owner into the answer that Act wants from alive.
func StillThere(owner, fresh metav1.Object, err error) error {
	switch {
	case err != nil:
		return fmt.Errorf("reading %s before adopting for it: %w", owner.GetName(), err)
	case fresh.GetUID() != owner.GetUID():
		return fmt.Errorf("not adopting for %s: it has been replaced by another of that name", owner.GetName())
	case fresh.GetDeletionTimestamp() != nil:
		return fmt.Errorf("not adopting for %s: it is being deleted", owner.GetName())
	}
	return nil
}
