// Package protection keeps storage objects in use from being removed. Each has a finalizer, which
// the API server puts on new ones and these controllers on older ones. They remove it from an
// object under deletion when it is no longer used:
//
//   - a claim is used by pods that have a node: a kubelet starts no pod on a claim under deletion,
//     so later pods do not count;
//   - a volume is used by the claim that it is bound to;
//   - a class of volume attributes is used by the claims and volumes that name it.
//
// Before the finalizer is removed, the API server is asked for pods of the claim that the informers
// lack.
//
// NewUnused reports unused claims by a condition with the time.
package protection

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/controllers/runtime"
)

// Config of a Controller.
type Config struct {
	Informers informers.SharedInformerFactory
	Logger    *slog.Logger
}

// Controller protects objects of one kind.
type Controller struct {
	run func(ctx context.Context, client kubernetes.Interface) error
}

// Run reconciles for one term of leadership. The keys are the objects.
func (c *Controller) Run(ctx context.Context, client kubernetes.Interface) error {
	return c.run(ctx, client)
}

// object is a pointer to an API object.
type object[T any] interface {
	*T
	metav1.Object
	DeepCopy() *T
}

// kind has the differences of the controllers.
type kind[T any, P object[T]] struct {
	name      string
	finalizer string
	informer  cache.SharedIndexInformer
	get       func(runtime.Key) (P, error)
	// used reports whether an object that is being deleted is still in use.
	used   func(ctx context.Context, client kubernetes.Interface, obj P) (bool, error)
	update func(ctx context.Context, client kubernetes.Interface, obj P) (P, error)
	// watch adds the other events that wake objects.
	watch func(loop *runtime.Loop)
}

func newController[T any, P object[T]](cfg Config, k kind[T, P]) *Controller {
	return &Controller{func(ctx context.Context, client kubernetes.Interface) error {
		var loop *runtime.Loop
		loop = runtime.NewLoop(k.name, 1, cfg.Logger,
			func(ctx context.Context, key runtime.Key) (time.Duration, error) {
				return 0, k.reconcile(ctx, client, loop, key)
			})
		runtime.Watch(loop, k.informer, func(_, now *T) []runtime.Key {
			if now == nil || !k.wantsChange(now) {
				return nil
			}
			return []runtime.Key{runtime.KeyOf(P(now))}
		})
		k.watch(loop)
		return loop.Run(ctx)
	}}
}

// wantsChange reports whether an object lacks the finalizer, or may lose it.
func (k *kind[T, P]) wantsChange(obj P) bool {
	return slices.Contains(obj.GetFinalizers(), k.finalizer) == (obj.GetDeletionTimestamp() != nil)
}

func (k *kind[T, P]) reconcile(
	ctx context.Context, client kubernetes.Interface, loop *runtime.Loop, key runtime.Key,
) error {
	is, err := k.get(key)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || !k.wantsChange(is) {
		return err
	}
	next := P(is.DeepCopy())
	if is.GetDeletionTimestamp() == nil {
		next.SetFinalizers(append(next.GetFinalizers(), k.finalizer))
	} else {
		if used, err := k.used(ctx, client, is); err != nil || used {
			return err
		}
		next.SetFinalizers(slices.DeleteFunc(next.GetFinalizers(), func(f string) bool { return f == k.finalizer }))
	}
	next, err = k.update(ctx, client, next)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("the finalizer of %s: %w", key, err)
	case next.GetDeletionTimestamp() == nil: // without its last finalizer the object is gone
		loop.Writes().Wrote(key, k.informer, next.GetResourceVersion())
	}
	return nil
}
