package nodelifecycle

import (
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// words remembers when kubelets' writes of their conditions were last seen. It listens while this
// server does not lead, too. A new leader that had only the stamp would depend on that node's
// clock.
type words struct {
	mu    sync.Mutex
	nodes map[string]word
}

// word is the last one of a kubelet.
type word struct {
	told  time.Time   // when it was seen, by this server's clock
	stamp metav1.Time // when it was written, by the node's
}

func newWords() *words { return &words{nodes: map[string]word{}} }

// listen adds words' handler to an informer.
func (w *words) listen(nodes cache.SharedIndexInformer) error {
	_, err := nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { w.notice(obj) },
		UpdateFunc: func(_, obj any) { w.notice(obj) },
		DeleteFunc: func(obj any) {
			if key, err := cache.DeletionHandlingObjectToName(obj); err == nil {
				w.forget(key.Name)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("listening to kubelets: %w", err)
	}
	return nil
}

func (w *words) notice(obj any) {
	if node, ok := obj.(*corev1.Node); ok {
		w.hear(node, time.Now())
	}
}

// hear records a kubelet's write when its stamp has changed, and returns the time of the last one.
// The stamp itself counts only when this process sees the node for the first time. Only the kubelet
// stamps conditions; marking a node as Unknown keeps the stamps.
func (w *words) hear(node *corev1.Node, now time.Time) (told time.Time) {
	stamp := stampOf(node)
	w.mu.Lock()
	defer w.mu.Unlock()
	last, seen := w.nodes[node.Name]
	switch {
	case seen && stamp.Equal(&last.stamp):
		return last.told
	case seen || stamp.After(now):
		told = now
	default:
		told = stamp.Time
	}
	w.nodes[node.Name] = word{told, stamp}
	return told
}

func (w *words) forget(node string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.nodes, node)
}

func stampOf(node *corev1.Node) metav1.Time {
	for i := range node.Status.Conditions {
		if c := &node.Status.Conditions[i]; c.Type == corev1.NodeReady {
			return c.LastHeartbeatTime
		}
	}
	return metav1.Time{}
}
