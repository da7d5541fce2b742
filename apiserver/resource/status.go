package resource

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// statusStorage serves the status subresource over the store of the main resource.
type statusStorage struct {
	store *registry.Store
}

var (
	_ rest.Patcher             = (*statusStorage)(nil)
	_ rest.ResetFieldsStrategy = (*statusStorage)(nil)
	_ rest.TableConvertor      = (*statusStorage)(nil)
)

func (k *Kind[T]) buildStatus(main *Storage) *statusStorage {
	store := *main.Store
	base := main.CreateStrategy.(strategy[T])
	s := statusStrategy[T]{base}
	store.UpdateStrategy = s
	store.ResetFieldsStrategy = s
	// The hooks of the main resource allocate and release; a status owns nothing to allocate.
	store.BeginUpdate, store.AfterUpdate = nil, nil
	return &statusStorage{store: &store}
}

// New implements rest.Storage.
func (s *statusStorage) New() runtime.Object { return s.store.New() }

// Destroy implements rest.Storage. The store is the main resource's to destroy.
func (s *statusStorage) Destroy() {}

// Get implements rest.Getter.
func (s *statusStorage) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return s.store.Get(ctx, name, options)
}

// Update implements rest.Updater. A status is never created by an update.
func (s *statusStorage) Update(
	ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	return s.store.Update(ctx, name, info, create, update, false, options)
}

// ConvertToTable implements rest.TableConvertor.
func (s *statusStorage) ConvertToTable(ctx context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	return s.store.ConvertToTable(ctx, obj, options)
}

// GetResetFields implements rest.ResetFieldsStrategy.
func (s *statusStorage) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return s.store.GetResetFields()
}
