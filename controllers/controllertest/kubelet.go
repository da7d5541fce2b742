package controllertest

import (
	"cmp"
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// RunPods simulates scheduler and kubelet on one node until the test ends. Pods get the node, or
// the one in their affinity. They run, become ready if ready returns true, and are gone after their
// deletion is requested. Call it before Start.
func (c *Cluster) RunPods(node string, ready func(*corev1.Pod) bool) {
	c.t.Helper()
	queue := make(chan *corev1.Pod, 10000)
	add := func(obj any) {
		if pod, ok := obj.(*corev1.Pod); ok {
			queue <- pod
		}
	}
	_, err := c.Informers.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: add, UpdateFunc: func(_, now any) { add(now) },
	})
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case pod := <-queue:
				c.step(ctx, pod, node, ready)
			case <-ctx.Done():
				return
			}
		}
	})
	c.t.Cleanup(func() { cancel(); wg.Wait() })
}

// step does the next thing to a pod. A write that fails was too late: a newer state of the pod is
// on its way here.
func (c *Cluster) step(ctx context.Context, pod *corev1.Pod, node string, ready func(*corev1.Pod) bool) {
	pods := c.Client.CoreV1().Pods(pod.Namespace)
	zero := int64(0)
	switch {
	case pod.DeletionTimestamp != nil:
		_ = pods.Delete(ctx, pod.Name,
			metav1.DeleteOptions{GracePeriodSeconds: &zero, Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
	case pod.Spec.NodeName == "":
		pod = pod.DeepCopy()
		pod.Spec.NodeName = cmp.Or(namedNode(pod), node)
		_, _ = pods.Update(ctx, pod, metav1.UpdateOptions{})
	case pod.Status.Phase == "":
		pod = pod.DeepCopy()
		now := metav1.Now()
		pod.Status.Phase, pod.Status.StartTime = corev1.PodRunning, &now
		status := corev1.ConditionFalse
		if ready(pod) {
			status = corev1.ConditionTrue
		}
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status, LastTransitionTime: now}}
		_, _ = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	}
}

// namedNode returns the node that a pod's affinity names, as that of DaemonSets' pods does.
func namedNode(pod *corev1.Pod) string {
	a := pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, field := range term.MatchFields {
			if field.Key == metav1.ObjectNameField && len(field.Values) == 1 {
				return field.Values[0]
			}
		}
	}
	return ""
}
