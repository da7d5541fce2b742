package subresources

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/barque/barque/apiserver/resource"
)

// EphemeralContainers serves pods/ephemeralcontainers, by which kubectl debug adds a container to
// a running pod. Nothing but that list changes.
type EphemeralContainers struct {
	pods  *resource.Storage
	store *updater
}

var _ rest.Patcher = (*EphemeralContainers)(nil)

// NewEphemeralContainers returns the subresource of pods.
func NewEphemeralContainers(
	pods *resource.Storage, validate func(pod, old *corev1.Pod) field.ErrorList,
) *EphemeralContainers {
	return &EphemeralContainers{pods, newUpdater(pods, prepared{
		prepare: func(_ context.Context, obj, old runtime.Object) {
			keepAllButEphemeral(obj.(*corev1.Pod), old.(*corev1.Pod))
		},
		validate: func(_ context.Context, obj, old runtime.Object) field.ErrorList {
			return validate(obj.(*corev1.Pod), old.(*corev1.Pod))
		},
	})}
}

func keepAllButEphemeral(pod, old *corev1.Pod) {
	added := pod.Spec.EphemeralContainers
	version := pod.ResourceVersion
	managed := pod.ManagedFields
	*pod = *old.DeepCopy()
	pod.ResourceVersion, pod.ManagedFields = version, managed
	pod.Spec.EphemeralContainers = added
	if !apiequality.Semantic.DeepEqual(added, old.Spec.EphemeralContainers) {
		pod.Generation = old.Generation + 1
	}
}

// New implements rest.Storage.
func (e *EphemeralContainers) New() runtime.Object { return &corev1.Pod{} }

// Destroy implements rest.Storage; the store is its parent's.
func (e *EphemeralContainers) Destroy() {}

// Get implements rest.Getter.
func (e *EphemeralContainers) Get(
	ctx context.Context, name string, options *metav1.GetOptions,
) (runtime.Object, error) {
	return e.pods.Get(ctx, name, options)
}

// ConvertToTable implements rest.TableConvertor.
func (e *EphemeralContainers) ConvertToTable(ctx context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	return e.pods.ConvertToTable(ctx, obj, options)
}

// Update implements rest.Updater.
func (e *EphemeralContainers) Update(
	ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	return e.store.Update(ctx, name, info, create, update, false, options)
}
