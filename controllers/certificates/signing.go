package certificates

import (
	"context"
	"errors"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/barque/barque/controllers/runtime"
)

// NewSigning makes the controller that signs approved requests. It asks the factory for the
// informer that it needs.
func NewSigning(cfg Config) (*Controller, error) {
	if cfg.Signer == nil {
		return nil, errors.New("controllers/certificates: there is no signer")
	}
	return newRequests(cfg, "csrsigning", 2,
		func(
			ctx context.Context, client kubernetes.Interface, r *certificatesv1.CertificateSigningRequest,
		) (string, time.Duration, error) {
			now := time.Now()
			plan := decideSigning(r, cfg.ownUser, now)
			switch {
			case plan.refusal != nil:
				r = r.DeepCopy()
				r.Status.Conditions = append(r.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
					Type: certificatesv1.CertificateFailed, Status: corev1.ConditionTrue,
					Reason: "SignerValidationFailure", Message: plan.refusal.Error(), LastUpdateTime: metav1.Now(),
				})
			case plan.template != nil:
				cert, err := cfg.Signer.Sign(plan.template, plan.public, now)
				if err != nil {
					return "", 0, fmt.Errorf("signing certificate request %s: %w", r.Name, err)
				}
				r = r.DeepCopy()
				r.Status.Certificate = cert
			default:
				return "", 0, nil
			}
			written, err := client.CertificatesV1().CertificateSigningRequests().UpdateStatus(ctx, r,
				metav1.UpdateOptions{})
			if err != nil {
				return "", 0, fmt.Errorf("writing what became of certificate request %s: %w", r.Name, err)
			}
			return written.ResourceVersion, 0, nil
		}), nil
}

// NewApproving makes the controller that approves client certificates of kubelets. It asks the
// factory for the informer that it needs.
func NewApproving(cfg Config) (*Controller, error) {
	return newRequests(cfg, "csrapproving", 2,
		func(
			ctx context.Context, client kubernetes.Interface, r *certificatesv1.CertificateSigningRequest,
		) (string, time.Duration, error) {
			ways := decideApproval(r, cfg.ownUser)
			for _, way := range ways {
				review, err := client.AuthorizationV1().SubjectAccessReviews().Create(ctx, reviewOf(r, way),
					metav1.CreateOptions{})
				if err != nil {
					return "", 0, fmt.Errorf("asking what the user of certificate request %s may do: %w", r.Name, err)
				}
				if !review.Status.Allowed {
					continue
				}
				r = r.DeepCopy()
				r.Status.Conditions = append(r.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
					Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "AutoApproved",
					Message: way.message,
				})
				written, err := client.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, r.Name, r,
					metav1.UpdateOptions{})
				if err != nil {
					return "", 0, fmt.Errorf("approving certificate request %s: %w", r.Name, err)
				}
				return written.ResourceVersion, 0, nil
			}
			if len(ways) == 0 {
				return "", 0, nil
			}
			return "", askAgain(r, time.Now()), nil
		}), nil
}

// NewCleaner makes the controller that deletes requests without further use. It requests its
// informer from the factory.
func NewCleaner(cfg Config) (*Controller, error) {
	return newRequests(cfg, "csrcleaner", 1,
		func(
			ctx context.Context, client kubernetes.Interface, r *certificatesv1.CertificateSigningRequest,
		) (string, time.Duration, error) {
			at := expires(r)
			if at.IsZero() || r.DeletionTimestamp != nil {
				return "", 0, nil
			}
			if left := time.Until(at); left > 0 {
				return "", left, nil
			}
			err := client.CertificatesV1().CertificateSigningRequests().Delete(ctx, r.Name, metav1.DeleteOptions{
				Preconditions: &metav1.Preconditions{UID: &r.UID, ResourceVersion: &r.ResourceVersion},
			})
			if err != nil && !apierrors.IsNotFound(err) {
				return "", 0, fmt.Errorf("deleting certificate request %s, whose time has passed: %w", r.Name, err)
			}
			return "", 0, nil
		}), nil
}

// reconcile acts on a request. It returns the version that it has written, if any, and the pause
// until the next reconcile without an event.
type reconcile func(
	ctx context.Context, client kubernetes.Interface, r *certificatesv1.CertificateSigningRequest,
) (version string, again time.Duration, err error)

// newRequests makes a controller of CertificateSigningRequests.
func newRequests(cfg Config, name string, workers int, act reconcile) *Controller {
	requests := cfg.Informers.Certificates().V1().CertificateSigningRequests()
	informer, list := requests.Informer(), requests.Lister()
	return &Controller{run: func(ctx context.Context, client kubernetes.Interface) error {
		var loop *runtime.Loop
		loop = runtime.NewLoop(name, workers, cfg.Logger,
			func(ctx context.Context, key runtime.Key) (time.Duration, error) {
				r, err := list.Get(key.Name)
				if apierrors.IsNotFound(err) {
					return 0, nil
				}
				if err != nil {
					return 0, err
				}
				version, again, err := act(ctx, client, r)
				if version != "" {
					loop.Writes().Wrote(key, informer, version)
				}
				return again, err
			})
		runtime.Watch(loop, informer, func(_, now *certificatesv1.CertificateSigningRequest) []runtime.Key {
			if now == nil {
				return nil
			}
			return []runtime.Key{runtime.KeyOf(now)}
		})
		return loop.Run(ctx)
	}}
}
