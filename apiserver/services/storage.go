package services

import (
	"context"
	"net/netip"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/barque/barque/apiserver/resource"
)

// choices are the values that the server has chosen for a request, and not its client. The server
// may choose others until the Service is written.
type choices struct {
	addresses map[netip.Addr]bool
	ports     map[int32]bool
}

type choicesKey struct{}

// choicesOf returns the choices of a request, empty ones where none are kept.
func choicesOf(ctx context.Context) *choices {
	if c, ok := ctx.Value(choicesKey{}).(*choices); ok {
		return c
	}
	return &choices{}
}

func withChoices(ctx context.Context) context.Context {
	return context.WithValue(ctx, choicesKey{}, &choices{})
}

// serviceStorage is the storage of Services. Each request that may allocate keeps its choices.
type serviceStorage struct {
	*resource.Storage
}

var _ rest.StandardStorage = (*serviceStorage)(nil)

func newStorage(s *resource.Storage) rest.Storage { return &serviceStorage{s} }

// Create implements rest.Creater.
func (s *serviceStorage) Create(
	ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions,
) (runtime.Object, error) {
	return s.Storage.Create(withChoices(ctx), obj, validate, options)
}

// Update implements rest.Updater.
func (s *serviceStorage) Update(
	ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc, forceCreate bool, options *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	return s.Storage.Update(withChoices(ctx), name, info, create, update, forceCreate, options)
}
