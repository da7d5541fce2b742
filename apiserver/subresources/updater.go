package subresources

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/barque/barque/apiserver/resource"
)

// updater writes the object of the parent by rules of its own.
type updater struct{ store *registry.Store }

// prepared replaces the parent strategy's steps of an update.
type prepared struct {
	rest.RESTUpdateStrategy
	resource.BoundedMistakes
	prepare  func(ctx context.Context, obj, old runtime.Object)
	validate func(ctx context.Context, obj, old runtime.Object) field.ErrorList
	warnings func(ctx context.Context, obj, old runtime.Object) []string
}

func newUpdater(s *resource.Storage, p prepared) *updater {
	store := *s.Store
	p.RESTUpdateStrategy = s.UpdateStrategy
	store.UpdateStrategy = p
	store.ResetFieldsStrategy = nil
	store.BeginUpdate, store.AfterUpdate = nil, nil
	return &updater{&store}
}

// Update implements rest.Updater. A subresource never creates its parent.
func (u *updater) Update(
	ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	return u.store.Update(ctx, name, info, create, update, false, options)
}

// PrepareForUpdate implements rest.RESTUpdateStrategy.
func (p prepared) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	p.prepare(ctx, obj, old)
}

// ValidateUpdate implements rest.RESTUpdateStrategy.
func (p prepared) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	return p.validate(ctx, obj, old)
}

// WarningsOnUpdate implements rest.RESTUpdateStrategy.
func (p prepared) WarningsOnUpdate(ctx context.Context, obj, old runtime.Object) []string {
	if p.warnings == nil {
		return nil
	}
	return p.warnings(ctx, obj, old)
}

// AllowCreateOnUpdate implements rest.RESTUpdateStrategy.
func (p prepared) AllowCreateOnUpdate(context.Context) bool { return false }
