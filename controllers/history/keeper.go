package history

import (
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/controllers/claim"
	"github.com/barque/barque/controllers/runtime"
)

// Keeper writes the histories of a controller's objects for one term, and notes the writes.
type Keeper struct {
	Client   kubernetes.Interface
	Loop     *runtime.Loop
	Informer cache.SharedIndexInformer // of ControllerRevisions
}

// Watch queues the owners of revisions that change.
func (k Keeper) Watch(kind schema.GroupVersionKind) {
	runtime.WatchOwned(k.Loop, k.Informer, kind, func(*appsv1.ControllerRevision, bool) []runtime.Key { return nil })
}

// Claim adopts and releases revisions, and returns the owner's.
func (k Keeper) Claim(ctx context.Context, key runtime.Key, owner claim.Owner) ([]*appsv1.ControllerRevision, error) {
	owner.May = nil
	return claim.Objects(ctx, k.Loop, key, k.Informer, owner,
		k.Client.AppsV1().ControllerRevisions(owner.GetNamespace()))
}

// Act makes a plan true: see the function of that name.
func (k Keeper) Act(
	ctx context.Context, key runtime.Key, owner metav1.Object, p Plan,
) (current *appsv1.ControllerRevision, taken bool, err error) {
	return Act(ctx, k.Client, owner, p,
		func(r *appsv1.ControllerRevision) { k.Loop.Writes().Wrote(key, k.Informer, r.ResourceVersion) })
}

// Delete deletes revisions beyond the history limit, if they still are as the informer shows them.
// A revision whose number has been raised meanwhile is current.
func (k Keeper) Delete(ctx context.Context, key runtime.Key, list []*appsv1.ControllerRevision) error {
	var errs []error
	for _, r := range list {
		err := k.Client.AppsV1().ControllerRevisions(r.Namespace).Delete(ctx, r.Name,
			metav1.DeleteOptions{
				Preconditions: &metav1.Preconditions{UID: &r.UID, ResourceVersion: &r.ResourceVersion}})
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("deleting revision %s beyond the history limit: %w", r.Name, err))
			continue
		}
		k.Loop.Writes().Deleted(key, k.Informer, runtime.KeyOf(r), r.UID)
	}
	return errors.Join(errs...)
}
