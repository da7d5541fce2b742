package batch

import (
	"context"

	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"

	"github.com/barque/barque/apiserver/resource"
)

// podsStay is the warning about a delete that leaves the pods of a job behind, which is the default
// of batch/v1.
const podsStay = "child pods are preserved by default when jobs are deleted; " +
	"set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning"

// jobStorage is the storage of jobs, with a warning at deletion.
type jobStorage struct {
	*resource.Storage
}

var _ rest.StandardStorage = (*jobStorage)(nil)

// List implements rest.Lister.
func (s *jobStorage) List(ctx context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	return s.ListEncoded(ctx, options)
}

// Delete implements rest.GracefulDeleter.
func (s *jobStorage) Delete(
	ctx context.Context, name string, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions,
) (runtime.Object, bool, error) {
	warnOfOrphans(ctx, options)
	return s.Storage.Delete(ctx, name, validate, options)
}

// DeleteCollection implements rest.CollectionDeleter.
func (s *jobStorage) DeleteCollection(
	ctx context.Context, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions,
	list *metainternalversion.ListOptions,
) (runtime.Object, error) {
	warnOfOrphans(ctx, options)
	return s.Storage.DeleteCollection(ctx, validate, options, list)
}

func warnOfOrphans(ctx context.Context, options *metav1.DeleteOptions) {
	//lint:ignore SA1019 clients of old still set it
	if options != nil && options.PropagationPolicy == nil && options.OrphanDependents == nil {
		warning.AddWarning(ctx, "", podsStay)
	}
}
