package nodeleases

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
)

// Create implements rest.Creater.
func (s *Storage) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	if scopeOf(ctx) == ofNodes {
		name := ""
		if m, err := meta.Accessor(obj); err == nil {
			name = m.GetName()
		}
		return nil, refused(name)
	}
	return s.Storage.Create(ctx, obj, validate, options)
}

// Update implements rest.Updater. Patches and server-side apply end here, too.
func (s *Storage) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, forceCreate bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	if scopeOf(ctx) == ofNodes {
		return nil, false, refused(name)
	}
	return s.Storage.Update(ctx, name, info, create, update, forceCreate, options)
}

// Delete implements rest.GracefulDeleter.
func (s *Storage) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions) (runtime.Object, bool, error) {
	if scopeOf(ctx) == ofNodes {
		return nil, false, refused(name)
	}
	return s.Storage.Delete(ctx, name, validate, options)
}

// DeleteCollection implements rest.CollectionDeleter.
func (s *Storage) DeleteCollection(ctx context.Context, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions, list *metainternalversion.ListOptions) (runtime.Object, error) {
	if scopeOf(ctx) == ofNodes {
		return nil, refused("")
	}
	return s.Storage.DeleteCollection(ctx, validate, options, list)
}
