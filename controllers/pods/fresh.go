package pods

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/kubernetes"

	"github.com/barque/barque/controllers/claim"
	"github.com/barque/barque/controllers/runtime"
)

// Fresh knows, for one term, for which owners the informers have been compared with the API server.
type Fresh struct{ seen runtime.Seen }

// Forget drops what is known of an owner that is gone.
func (f *Fresh) Forget(owner types.UID) { f.seen.Forget(owner) }

// Behind reports whether an owner, or its pods, are shown as they were, not as the API server has them: as a leader before
// has left them a moment ago. A pod may be missing, older, or gone. shown are the pods that a decision has been made for:
// what the informer has learned since is of no use to it. Behind asks the server once for each owner, until the answer is no;
// afterwards it is no without asking. A controller asks before its first act for an owner in a term: it would create pods
// once more, or choose other victims than those which are going.
func (f *Fresh) Behind(ctx context.Context, client kubernetes.Interface, owner claim.Owner, shown []*corev1.Pod) (bool, error) {
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
	known := make(map[types.UID]*corev1.Pod, len(shown))
	for _, pod := range shown {
		known[pod.UID] = pod
	}
	for i := range live.Items {
		pod := &live.Items[i]
		if !metav1.IsControlledBy(pod, owner) || owner.May != nil && !owner.May(pod) {
			continue
		}
		if known[pod.UID] == nil || older(known[pod.UID], pod) {
			return true, nil
		}
		delete(known, pod.UID)
	}
	if len(known) > 0 {
		return true, nil
	}
	f.seen.Note(owner.GetUID())
	return false, nil
}

// older reports whether a pod is of before another version of the same name.
func older(shown, live *corev1.Pod) bool {
	order, err := resourceversion.CompareResourceVersion(shown.ResourceVersion, live.ResourceVersion)
	return err == nil && order < 0
}
