package runtime

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// Names of the indexes that several controllers share. The names say who made them, so that other
// users of the same informers do not collide with them.
const (
	byController = "barque/controller"
)

// EnsureIndex adds an index to an informer unless it has one of that name.
func EnsureIndex(informer cache.SharedIndexInformer, name string, values cache.IndexFunc) error {
	if _, exists := informer.GetIndexer().GetIndexers()[name]; exists {
		return nil
	}
	if err := informer.AddIndexers(cache.Indexers{name: values}); err != nil {
		return fmt.Errorf("adding index %s to an informer: %w", name, err)
	}
	return nil
}

// EnsureControllerIndex makes Controlled work on an informer.
func EnsureControllerIndex(informer cache.SharedIndexInformer) error {
	return EnsureIndex(informer, byController, func(obj any) ([]string, error) {
		meta, ok := obj.(metav1.Object)
		if !ok {
			return nil, nil
		}
		if ref := metav1.GetControllerOfNoCopy(meta); ref != nil {
			return []string{string(ref.UID)}, nil
		}
		return []string{orphansOf(meta.GetNamespace())}, nil
	})
}

// UIDs contain no slash, so orphans share an index with the controlled.
func orphansOf(namespace string) string { return "orphan/" + namespace }

// Controlled returns the objects whose controller reference names uid, and the objects of the
// namespace that have no controller.
func Controlled[T any](
	informer cache.SharedIndexInformer, namespace string, uid types.UID,
) (owned, orphans []*T, err error) {
	if owned, err = ByIndex[T](informer, byController, string(uid)); err != nil {
		return nil, nil, err
	}
	orphans, err = ByIndex[T](informer, byController, orphansOf(namespace))
	return owned, orphans, err
}

// ByIndex returns the objects that an index has under a value. They belong to the informer.
func ByIndex[T any](informer cache.SharedIndexInformer, index, value string) ([]*T, error) {
	objs, err := informer.GetIndexer().ByIndex(index, value)
	if err != nil {
		return nil, fmt.Errorf("reading index %s: %w", index, err)
	}
	out := make([]*T, 0, len(objs))
	for _, obj := range objs {
		if t, ok := obj.(*T); ok {
			out = append(out, t)
		}
	}
	return out, nil
}
