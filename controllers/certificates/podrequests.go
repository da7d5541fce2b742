package certificates

import (
	"context"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/barque/barque/controllers/runtime"
)

// NewPodRequestCleaner makes the controller that deletes PodCertificateRequests 15 minutes after
// their creation, in any state: by then the kubelet has its answer. It requests its informer from
// the factory.
func NewPodRequestCleaner(cfg Config) (*Controller, error) {
	requests := cfg.Informers.Certificates().V1().PodCertificateRequests()
	informer, list := requests.Informer(), requests.Lister()
	return &Controller{run: func(ctx context.Context, client kubernetes.Interface) error {
		loop := runtime.NewLoop("podcertificaterequestcleaner", 1, cfg.Logger,
			func(ctx context.Context, key runtime.Key) (time.Duration, error) {
				r, err := list.PodCertificateRequests(key.Namespace).Get(key.Name)
				if apierrors.IsNotFound(err) || err == nil && r.DeletionTimestamp != nil {
					return 0, nil
				}
				if err != nil {
					return 0, err
				}
				if left := time.Until(r.CreationTimestamp.Add(keepPodRequest)); left > 0 {
					return left, nil
				}
				err = client.CertificatesV1().PodCertificateRequests(key.Namespace).Delete(ctx, key.Name,
					metav1.DeleteOptions{
						Preconditions: &metav1.Preconditions{UID: &r.UID},
					})
				if err != nil && !apierrors.IsNotFound(err) {
					return 0, fmt.Errorf("deleting PodCertificateRequest %s, whose time has passed: %w", key, err)
				}
				return 0, nil
			})
		runtime.Watch(loop, informer, func(old, now *certificatesv1.PodCertificateRequest) []runtime.Key {
			if now == nil || old != nil {
				return nil // its time does not change
			}
			return []runtime.Key{runtime.KeyOf(now)}
		})
		return loop.Run(ctx)
	}}, nil
}
