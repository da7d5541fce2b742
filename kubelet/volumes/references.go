package volumes

import (
	"context"
	"errors"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Objects gives the ConfigMaps and Secrets that pods of this node refer to.
type Objects interface {
	ConfigMap(ctx context.Context, pod *v1.Pod, name string) (*v1.ConfigMap, error)
	Secret(ctx context.Context, pod *v1.Pod, name string) (*v1.Secret, error)
	// Forget ends the watches for a pod.
	Forget(uid types.UID)
}

// IsNotFound reports whether the API server knows no such object.
func IsNotFound(err error) bool { return apierrors.IsNotFound(err) }

// Tokens hands out service-account tokens that are bound to a pod.
type Tokens interface {
	// Get returns a token and when to ask again. The same one is returned until then.
	Get(ctx context.Context, pod *v1.Pod, audience string, seconds int64) (token string, renew time.Time, err error)
	// Forget drops the tokens of a pod.
	Forget(uid types.UID)
}

// Certificates gives pods certificates of their own.
type Certificates interface {
	// Get returns the key and the certificate chain, PEM, of the index-th source of a pod's volume,
	// and when to ask again. The same ones are returned until there are new ones. While there are
	// none yet the error is ErrNotIssued, after a while; the pod is woken when there are.
	Get(
		ctx context.Context, pod *v1.Pod, volume string, index int, source *v1.PodCertificateProjection,
	) (key, chain []byte, again time.Time, err error)
	// Forget drops the certificates of a pod.
	Forget(uid types.UID)
}

// ErrNotIssued is returned while a request waits for its signer.
var ErrNotIssued = errors.New("credential bundle is not issued yet")

// TrustBundles gives the trust anchors that pods of this node refer to.
type TrustBundles interface {
	// Named returns those of one bundle, or a not-found error.
	Named(ctx context.Context, pod *v1.Pod, name string) ([]byte, error)
	// Signed returns those of the bundles of a signer that the selector selects: of none when it is
	// nil, of all when it is empty. Without any, the error is ErrNoBundle.
	Signed(ctx context.Context, pod *v1.Pod, signer string, selector *metav1.LabelSelector) ([]byte, error)
	// Forget ends the watch for a pod.
	Forget(uid types.UID)
}

// ErrNoBundle is returned when no bundle is selected.
var ErrNoBundle = errors.New("combination of signerName and labelSelector matched zero ClusterTrustBundles")
