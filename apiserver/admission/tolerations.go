package admission

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/utils/ptr"
)

// Tolerations lets pods stay for a while on a node that stops answering, unless they have
// tolerations of that taint.
type Tolerations struct {
	*admission.Handler
	notReady, unreachable int64 // seconds
}

var _ admission.MutationInterface = (*Tolerations)(nil)

// DefaultTolerationSeconds is how long pods stay on a node that is not ready or unreachable.
const DefaultTolerationSeconds = 300

// NewTolerations returns the step.
func NewTolerations(notReadySeconds, unreachableSeconds int64) *Tolerations {
	return &Tolerations{admission.NewHandler(admission.Create, admission.Update), notReadySeconds, unreachableSeconds}
}

// Admit implements admission.MutationInterface.
func (t *Tolerations) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod := PodOf(a)
	if pod == nil {
		return nil
	}
	for _, taint := range []struct {
		key     string
		seconds int64
	}{{corev1.TaintNodeNotReady, t.notReady}, {corev1.TaintNodeUnreachable, t.unreachable}} {
		if !toleratesEviction(pod, taint.key) {
			pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{
				Key: taint.key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute,
				TolerationSeconds: ptr.To(taint.seconds),
			})
		}
	}
	return nil
}

func toleratesEviction(pod *corev1.Pod, taint string) bool {
	for i := range pod.Spec.Tolerations {
		t := &pod.Spec.Tolerations[i]
		if (t.Key == taint || t.Key == "") && (t.Effect == corev1.TaintEffectNoExecute || t.Effect == "") {
			return true
		}
	}
	return false
}
