// Package volumeexpand reports, for claims that ask for more space, that another component enlarges
// their volumes: the resizer of the CSI driver or the node. It can enlarge no kind of volume
// itself. So the rest of a resize (conditions, allocatedResources, the outcome of a failed one) is
// theirs.
package volumeexpand

import (
	"context"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/controllers/runtime"
)

// Config of a Controller.
type Config struct {
	Informers informers.SharedInformerFactory
	Logger    *slog.Logger
}

// Controller writes events about claims that wait to grow.
type Controller struct {
	cfg    Config
	claims cache.SharedIndexInformer
	list   corelisters.PersistentVolumeClaimLister
}

// New asks the factory for the informer it needs; it is called before it is started.
func New(cfg Config) (*Controller, error) {
	claims := cfg.Informers.Core().V1().PersistentVolumeClaims()
	return &Controller{cfg, claims.Informer(), claims.Lister()}, nil
}

// Run writes the events for one term of leadership. The keys are claims.
func (c *Controller) Run(ctx context.Context, client kubernetes.Interface) error {
	recorder, stop := runtime.Recorder(ctx, client, "volume_expand")
	defer stop()
	loop := runtime.NewLoop("volumeexpand", 1, c.cfg.Logger,
		func(_ context.Context, key runtime.Key) (time.Duration, error) {
			claim, err := c.list.PersistentVolumeClaims(key.Namespace).Get(key.Name)
			if apierrors.IsNotFound(err) {
				return 0, nil
			}
			if err == nil && wantsMore(claim) {
				recorder.Event(claim, corev1.EventTypeNormal, "ExternalExpanding",
					"waiting for an external controller to expand this PVC")
			}
			return 0, err
		})
	runtime.Watch(loop, c.claims, func(old, now *corev1.PersistentVolumeClaim) []runtime.Key {
		if now == nil || !wantsMore(now) || old != nil && wantsMore(old) && requested(old) == requested(now) {
			return nil
		}
		return []runtime.Key{runtime.KeyOf(now)}
	})
	return loop.Run(ctx)
}

// wantsMore reports whether a bound claim asks for more than it has.
func wantsMore(claim *corev1.PersistentVolumeClaim) bool {
	has := claim.Status.Capacity[corev1.ResourceStorage]
	return claim.Status.Phase == corev1.ClaimBound && !has.IsZero() && requested(claim) > has.Value()
}

func requested(claim *corev1.PersistentVolumeClaim) int64 {
	size := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	return size.Value()
}
