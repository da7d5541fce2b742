package disruption

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/barque/barque/controllers/pods"
)

const (
	// deletionTimeout is how long an evicted pod counts as lost although its deletion has not been
	// seen.
	deletionTimeout = 2 * time.Minute
	// conditionTimeout is how long a pod may have the condition of a disruption that does not come.
	conditionTimeout = 2 * time.Minute
)

// plan has the changes for one PodDisruptionBudget.
type plan struct {
	status policyv1.PodDisruptionBudgetStatus
	// kept are pods that were evicted and never deleted: they count again.
	kept []*corev1.Pod
	// again is when the next evicted pod counts again, 0 when none is waited for.
	again time.Duration
}

// needsScale reports whether the budget depends on how many pods its pods' controllers want. A
// fixed number of available pods does not.
func needsScale(budget *policyv1.PodDisruptionBudget) bool {
	if budget.Spec.MaxUnavailable != nil {
		return true
	}
	return budget.Spec.MinAvailable != nil && budget.Spec.MinAvailable.Type == intstr.String
}

// decide computes the status. mine are the pods that the budget selects; scale is how many pods
// their controllers want in total, where needsScale.
func decide(budget *policyv1.PodDisruptionBudget, mine []*corev1.Pod, scale int32, now time.Time) (plan, error) {
	expected, desired, err := wanted(budget, len(mine), scale)
	if err != nil {
		return plan{}, err
	}
	p := plan{}
	disrupted := map[string]metav1.Time{}
	var healthy int32
	for _, pod := range mine {
		if pod.DeletionTimestamp != nil {
			continue
		}
		if since, evicted := budget.Status.DisruptedPods[pod.Name]; evicted {
			left := since.Add(deletionTimeout).Sub(now)
			if left > 0 {
				disrupted[pod.Name] = since
				if p.again == 0 || left < p.again {
					p.again = left
				}
				continue
			}
			p.kept = append(p.kept, pod)
		}
		if pods.Ready(pod) {
			healthy++
		}
	}
	// A budget without pods allows nothing: its first pods come before their status is computed.
	allowed := int32(0)
	if expected > 0 {
		allowed = max(0, healthy-desired)
	}
	p.status = policyv1.PodDisruptionBudgetStatus{
		ObservedGeneration: budget.Generation,
		DisruptedPods:      disrupted,
		DisruptionsAllowed: allowed,
		CurrentHealthy:     healthy,
		DesiredHealthy:     desired,
		ExpectedPods:       expected,
	}
	condition := metav1.Condition{Status: metav1.ConditionFalse, Reason: policyv1.InsufficientPodsReason,
		ObservedGeneration: budget.Generation}
	if allowed > 0 {
		condition.Status, condition.Reason = metav1.ConditionTrue, policyv1.SufficientPodsReason
	}
	p.status.Conditions = withCondition(budget, condition, now)
	return p, nil
}

// wanted returns how many pods there should be, and how many of them must be healthy.
func wanted(budget *policyv1.PodDisruptionBudget, mine int, scale int32) (expected, desired int32, err error) {
	switch spec := budget.Spec; {
	case spec.MaxUnavailable != nil:
		unavailable, err := intstr.GetScaledValueFromIntOrPercent(spec.MaxUnavailable, int(scale), true)
		if err != nil {
			return 0, 0, err
		}
		return scale, max(0, scale-int32(unavailable)), nil
	case spec.MinAvailable == nil:
		return 0, 0, nil
	case spec.MinAvailable.Type == intstr.Int:
		return int32(mine), spec.MinAvailable.IntVal, nil
	default:
		available, err := intstr.GetScaledValueFromIntOrPercent(spec.MinAvailable, int(scale), true)
		return scale, int32(available), err
	}
}

// failed is the status of a budget that could not be computed: nothing may be disrupted. The
// generation stays unobserved.
func failed(budget *policyv1.PodDisruptionBudget, why error, now time.Time) policyv1.PodDisruptionBudgetStatus {
	status := *budget.Status.DeepCopy()
	status.DisruptionsAllowed = 0
	status.Conditions = withCondition(budget, metav1.Condition{
		Status: metav1.ConditionFalse, Reason: policyv1.SyncFailedReason, Message: why.Error(),
		ObservedGeneration: status.ObservedGeneration,
	}, now)
	return status
}

func withCondition(budget *policyv1.PodDisruptionBudget, c metav1.Condition, now time.Time) []metav1.Condition {
	conditions := budget.DeepCopy().Status.Conditions
	c.Type, c.LastTransitionTime = policyv1.DisruptionAllowedCondition, metav1.NewTime(now)
	meta.SetStatusCondition(&conditions, c)
	return conditions
}

// sameStatus reports whether two statuses are equal.
func sameStatus(a, b policyv1.PodDisruptionBudgetStatus) bool {
	return equality.Semantic.DeepEqual(a, b)
}

// stale reports whether a pod has the condition of a disruption without a deletion, and after how
// long the condition is removed. The kubelet's own conditions stay: the end of a pod may take any
// time.
func stale(pod *corev1.Pod, now time.Time) (found bool, after time.Duration) {
	c := pods.Condition(pod, corev1.DisruptionTarget)
	if c == nil || c.Status != corev1.ConditionTrue || c.Reason == corev1.PodReasonTerminationByKubelet ||
		!pods.Active(pod) {
		return false, 0
	}
	return true, max(0, c.LastTransitionTime.Add(conditionTimeout).Sub(now))
}
