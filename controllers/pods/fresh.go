package pods

import (
	"context"
	"fmt"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
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

// Behind reports whether the informer lacks pods of owner that the API server has. It asks the
// server once for each owner, until the answer is no; afterwards it is no without asking.
func (f *Fresh) Behind(ctx context.Context, client kubernetes.Interface, informer cache.SharedIndexInformer, owner metav1.Object, selector labels.Selector) (bool, error) {
	if f.Knows(owner.GetUID()) {
		return false, nil
	}
	live, err := client.CoreV1().Pods(owner.GetNamespace()).List(ctx, metav1.ListOptions{LabelSelector: selector.String()})
	if err != nil {
		return false, fmt.Errorf("reading the pods of %s/%s: %w", owner.GetNamespace(), owner.GetName(), err)
	}
	for i := range live.Items {
		pod := &live.Items[i]
		if !metav1.IsControlledBy(pod, owner) {
			continue
		}
		if _, exists, err := informer.GetIndexer().GetByKey(runtime.KeyOf(pod).String()); err != nil || !exists {
			return true, err
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
