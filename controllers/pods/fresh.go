package pods

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/controllers/claim"
	"github.com/barque/barque/controllers/runtime"
)

// Fresh knows, for one term, for which owners the informers have been compared with the API server.
type Fresh struct{ seen runtime.Seen }

// Forget drops what is known of an owner that is gone.
func (f *Fresh) Forget(owner types.UID) { f.seen.Forget(owner) }

// Behind reports whether the informers show an owner, or its pods, as they were, not as the API server has them: as a
// leader before has left them a moment ago. A pod may be missing, older, or gone. It asks the server once for each owner,
// until the answer is no; afterwards it is no without asking. A controller asks before its first act for an owner in a term:
// it would create pods once more, or choose other victims than those which are going.
func (f *Fresh) Behind(ctx context.Context, client kubernetes.Interface, informer cache.SharedIndexInformer, owner claim.Owner) (bool, error) {
	if f.seen.Has(owner.GetUID()) {
		return false, nil
	}
	now, err := owner.Read(ctx)
	if err == nil && now.GetResourceVersion() != owner.GetResourceVersion() || apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading %s/%s: %w", owner.GetNamespace(), owner.GetName(), err)
	}
	live, err := client.CoreV1().Pods(owner.GetNamespace()).List(ctx, metav1.ListOptions{LabelSelector: owner.Selector.String()})
	if err != nil {
		return false, fmt.Errorf("reading the pods of %s/%s: %w", owner.GetNamespace(), owner.GetName(), err)
	}
	there := map[types.UID]bool{}
	for i := range live.Items {
		pod := &live.Items[i]
		if !metav1.IsControlledBy(pod, owner) {
			continue
		}
		there[pod.UID] = true
		obj, exists, err := informer.GetIndexer().GetByKey(runtime.KeyOf(pod).String())
		if err != nil || !exists {
			return true, err
		}
		if shown, ok := obj.(*corev1.Pod); ok && older(shown, pod) {
			return true, nil
		}
	}
	shown, _, err := runtime.Controlled[corev1.Pod](informer, owner.GetNamespace(), owner.GetUID())
	if err != nil {
		return false, err
	}
	for _, pod := range shown {
		if !there[pod.UID] && owner.Selector.Matches(labels.Set(pod.Labels)) {
			return true, nil
		}
	}
	f.seen.Note(owner.GetUID())
	return false, nil
}

// older reports whether a pod is of before another version of the same name.
func older(shown, live *corev1.Pod) bool {
	order, err := resourceversion.CompareResourceVersion(shown.ResourceVersion, live.ResourceVersion)
	return err == nil && order < 0
}
