package scheduler

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/barque/barque/scheduler/framework"
)

// extenders are the term's extenders, for the plugins.
type extenders struct{ *term }

var _ framework.Extenders = extenders{}

// Bind has an extender bind the pod, and checks that the pod is bound. No term fences an extender's
// write. The API server ensures that a pod is bound once, and by its UID.
func (x extenders) Bind(ctx context.Context, pod *v1.Pod) (took bool, err error) {
	took, err = x.extenders.Bind(ctx, pod, pod.Spec.NodeName)
	if !took || err != nil {
		return took, err
	}
	now, err := x.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if err != nil {
		return true, err
	}
	if now.UID == pod.UID && now.Spec.NodeName != pod.Spec.NodeName {
		return true,
			fmt.Errorf("an extender says that it has bound the pod to %q, but its node is %q", pod.Spec.NodeName,
				now.Spec.NodeName)
	}
	return true, nil
}

// Preempt asks about nodes of the running cycle.
func (x extenders) Preempt(
	ctx context.Context, pod *v1.Pod, victims map[string]*extenderv1.Victims,
) (map[string]*extenderv1.Victims, error) {
	return x.extenders.Preempt(ctx, pod, victims, x.snapshot)
}
