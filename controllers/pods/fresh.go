package pods

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/controllers/runtime"
)

// Fresh knows, for one term, for which owners the informer of pods has been compared with the API
// server. The leader before may have created pods a moment ago that the informer does not show.
type Fresh struct {
	mu    sync.Mutex
	known map[types.UID]bool
}

// Forget drops what is known of an owner that is gone.
func (f *Fresh) Forget(owner types.UID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.known, owner)
}

// Knows reports whether the informer has been found to show all of owner's pods.
func (f *Fresh) Knows(owner types.UID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.known[owner]
}

// Behind reports whether the informer shows owner's pods as they were, not as the API server has them: lacks some, has
// older ones, or some that are gone. It asks the server once for each owner, until the answer is no; afterwards it is no
// without asking.
func (f *Fresh) Behind(ctx context.Context, client kubernetes.Interface, informer cache.SharedIndexInformer, owner metav1.Object, selector labels.Selector) (bool, error) {
	if f.Knows(owner.GetUID()) {
		return false, nil
	}
	live, err := client.CoreV1().Pods(owner.GetNamespace()).List(ctx, metav1.ListOptions{LabelSelector: selector.String()})
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
		if !there[pod.UID] && selector.Matches(labels.Set(pod.Labels)) {
			return true, nil
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.known == nil {
		f.known = map[types.UID]bool{}
	}
	f.known[owner.GetUID()] = true
	return false, nil
}

// older reports whether a pod is of before another version of the same name.
func older(shown, live *corev1.Pod) bool {
	order, err := resourceversion.CompareResourceVersion(shown.ResourceVersion, live.ResourceVersion)
	return err == nil && order < 0
}
