// Package claim decides which objects belong to an owner, by controller reference and selector, and
// writes the references. Controllers that own pods, ReplicaSets or revisions by a label selector
// share it.
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
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/controllers/runtime"
)

// Owner is an object that owns others by a selector.
type Owner struct {
	metav1.Object
	Kind     schema.GroupVersionKind
	Selector labels.Selector
	// Read asks the API server, not a cache, for the owner as it is now.
	Read func(ctx context.Context) (metav1.Object, error)
	// May, unless it is nil, reports whether an object can belong to the owner at all, such as by
	// its name. Other objects are neither kept nor released.
	May func(metav1.Object) bool
	// Finalizers are added to adopted objects.
	Finalizers []string
}

// ReadBy makes an Owner's Read of a typed client.
func ReadBy[T metav1.Object](client interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (T, error)
}, name string) func(context.Context) (metav1.Object, error) {
	return func(ctx context.Context) (metav1.Object, error) {
		now, err := client.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		return now, nil
	}
}

// Patcher is a typed client of the claimed objects.
type Patcher[P any] interface {
	Patch(
		ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions,
		subresources ...string,
	) (P, error)
}

// Objects adopts and releases objects of an informer, for one reconcile of key, and returns all
// objects of the owner afterwards. The informer needs the index of runtime.EnsureControllerIndex.
func Objects[T any, P runtime.Object[T]](
	ctx context.Context, loop *runtime.Loop, key runtime.Key, informer cache.SharedIndexInformer, owner Owner,
	client Patcher[P],
) ([]P, error) {
	owned, orphans, err := runtime.Controlled[T](informer, owner.GetNamespace(), owner.GetUID())
	if err != nil {
		return nil, err
	}
	p := decide(owner, candidates[T, P](owner, owned), candidates[T, P](owner, orphans))
	return act(ctx, owner, p, client, func(now P) { loop.Writes().Wrote(key, informer, now.GetResourceVersion()) })
}

func candidates[T any, P runtime.Object[T]](owner Owner, list []*T) []P {
	out := make([]P, 0, len(list))
	for _, obj := range list {
		if owner.May == nil || owner.May(P(obj)) {
			out = append(out, obj)
		}
	}
	return out
}

// plan has the objects that an owner keeps, adopts and releases.
type plan[T metav1.Object] struct {
	keep    []T // owned and matching
	adopt   []T // without an owner, and matching
	release []T // owned but no longer matching
}

// decide sorts objects. owned have a controller reference to the owner; orphans are objects of its
// namespace without a controller. Others are never touched. A terminating owner adopts and releases
// nothing, and terminating objects are left alone.
func decide[T metav1.Object](owner Owner, owned, orphans []T) plan[T] {
	var p plan[T]
	going := owner.GetDeletionTimestamp() != nil
	for _, o := range owned {
		switch {
		case owner.Selector.Matches(labels.Set(o.GetLabels())):
			p.keep = append(p.keep, o)
		case !going && o.GetDeletionTimestamp() == nil:
			p.release = append(p.release, o)
		}
	}
	if going || owner.Selector.Empty() {
		return p
	}
	for _, o := range orphans {
		if o.GetDeletionTimestamp() == nil && o.GetNamespace() == owner.GetNamespace() &&
			owner.Selector.Matches(labels.Set(o.GetLabels())) {
			p.adopt = append(p.adopt, o)
		}
	}
	return p
}

// act carries out a plan and returns all objects of the owner afterwards. wrote receives each
// write.
func act[T metav1.Object](ctx context.Context, owner Owner, p plan[T], client Patcher[T], wrote func(T)) ([]T, error) {
	patch := func(name string, data []byte) (T, error) {
		return client.Patch(ctx, name, types.StrategicMergePatchType, data, metav1.PatchOptions{})
	}
	mine := p.keep
	if len(p.adopt) > 0 {
		fresh, err := owner.Read(ctx)
		if err := stillThere(owner, fresh, err); err != nil {
			return nil, err
		}
	}
	for _, o := range p.adopt {
		now, err := patch(o.GetName(),
			refPatch(o.GetUID(), metav1.NewControllerRef(owner, owner.Kind), owner.Finalizers...))
		switch {
		case apierrors.IsNotFound(err):
			continue
		case err != nil:
			return nil, fmt.Errorf("adopting %s: %w", o.GetName(), err)
		}
		wrote(now)
		mine = append(mine, now)
	}
	for _, o := range p.release {
		now, err := patch(o.GetName(), refPatch(o.GetUID(), map[string]any{"$patch": "delete", "uid": owner.GetUID()}))
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

// stillThere returns why an owner that was read afresh must not adopt.
func stillThere(owner, fresh metav1.Object, err error) error {
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
