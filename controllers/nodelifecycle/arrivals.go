package nodelifecycle

import (
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// arrivals remember when pods with a start in the future were first seen: a server whose clock was
// ahead has bound them. Without that memory each reconcile would postpone the eviction until that
// future. Like sightings they are kept while this server does not lead.
type arrivals struct {
	mu   sync.Mutex
	seen map[types.UID]time.Time
}

func newArrivals() *arrivals { return &arrivals{seen: map[types.UID]time.Time{}} }

// listen adds arrivals' handler to an informer.
func (a *arrivals) listen(pods cache.SharedIndexInformer) error {
	notice := func(obj any) {
		if pod, ok := obj.(*corev1.Pod); ok && pod.Spec.NodeName != "" {
			a.of(pod, time.Now())
		}
	}
	_, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    notice,
		UpdateFunc: func(_, obj any) { notice(obj) },
		DeleteFunc: func(obj any) {
			if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = unknown.Obj
			}
			if pod, ok := obj.(*corev1.Pod); ok {
				a.forget(pod.UID)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("listening to pods: %w", err)
	}
	return nil
}

// of returns when a pod came to its node: the same at every call, and never later than the first
// call.
func (a *arrivals) of(pod *corev1.Pod, now time.Time) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	if seen, known := a.seen[pod.UID]; known {
		return seen
	}
	came := arrival(pod)
	if !came.After(now) {
		return came
	}
	a.seen[pod.UID] = now
	return now
}

func (a *arrivals) forget(pod types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.seen, pod)
}
