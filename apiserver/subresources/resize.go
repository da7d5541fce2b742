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

// Resize serves pods/resize, which changes how much CPU and memory the containers of a pod have
// while they run. Conditions of the status are the kubelet's to set.
type Resize struct {
	pods  *resource.Storage
	store *updater
}

var _ rest.Patcher = (*Resize)(nil)

// NewResize returns the subresource of pods. prepare restores all fields but resources.
func NewResize(
	pods *resource.Storage, prepare func(pod, old *corev1.Pod), validate func(pod, old *corev1.Pod) field.ErrorList,
) *Resize {
	return &Resize{pods, newUpdater(pods, prepared{
		prepare: func(_ context.Context, obj, was runtime.Object) {
			pod, old := obj.(*corev1.Pod), was.(*corev1.Pod)
			prepare(pod, old)
			metav1.ResetObjectMetaForStatus(&pod.ObjectMeta, &old.ObjectMeta)
			if !apiequality.Semantic.DeepEqual(pod.Spec, old.Spec) {
				pod.Generation = old.Generation + 1
			}
		},
		validate: func(_ context.Context, obj, old runtime.Object) field.ErrorList {
			return validate(obj.(*corev1.Pod), old.(*corev1.Pod))
		},
	})}
}

// New implements rest.Storage.
func (r *Resize) New() runtime.Object { return &corev1.Pod{} }

// Destroy implements rest.Storage; the store is its parent's.
func (r *Resize) Destroy() {}

// Get implements rest.Getter.
func (r *Resize) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return r.pods.Get(ctx, name, options)
}

// ConvertToTable implements rest.TableConvertor.
func (r *Resize) ConvertToTable(ctx context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	return r.pods.ConvertToTable(ctx, obj, options)
}

// Update implements rest.Updater.
func (r *Resize) Update(
	ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	return r.store.Update(ctx, name, info, create, update, false, options)
}
