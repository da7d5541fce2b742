package job

import (
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// verdict is the result of a pod failure policy for one failed pod.
type verdict struct {
	action  batchv1.PodFailurePolicyAction // of the first rule that matches; empty when none does
	message string                         // why the job fails, if it does
}

// counts reports whether the failure counts towards the limits.
func (v verdict) counts() bool { return v.action != batchv1.PodFailurePolicyActionIgnore }

func judge(policy *batchv1.PodFailurePolicy, pod *corev1.Pod) verdict {
	if policy == nil {
		return verdict{}
	}
	for i := range policy.Rules {
		rule := &policy.Rules[i]
		switch {
		case rule.OnExitCodes != nil:
			if c := exited(pod, rule.OnExitCodes); c != nil {
				return verdict{rule.Action,
					fmt.Sprintf("Container %s for pod %s/%s failed with exit code %v matching %v rule at index %d",
						c.Name, pod.Namespace, pod.Name, c.State.Terminated.ExitCode, rule.Action, i)}
			}
		case rule.OnPodConditions != nil:
			if c := hasOneOf(pod, rule.OnPodConditions); c != nil {
				return verdict{rule.Action, fmt.Sprintf("Pod %s/%s has condition %v matching %v rule at index %d",
					pod.Namespace, pod.Name, c.Type, rule.Action, i)}
			}
		}
	}
	return verdict{}
}

// exited returns the first container that failed with an exit code that the rule is about.
func exited(pod *corev1.Pod, rule *batchv1.PodFailurePolicyOnExitCodesRequirement) *corev1.ContainerStatus {
	for _, list := range [][]corev1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses} {
		for i := range list {
			c := &list[i]
			if c.State.Terminated == nil || c.State.Terminated.ExitCode == 0 ||
				(rule.ContainerName != nil && *rule.ContainerName != c.Name) {
				continue
			}
			listed := slices.Contains(rule.Values, c.State.Terminated.ExitCode)
			if (rule.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn && listed) ||
				(rule.Operator == batchv1.PodFailurePolicyOnExitCodesOpNotIn && !listed) {
				return c
			}
		}
	}
	return nil
}

func hasOneOf(pod *corev1.Pod, patterns []batchv1.PodFailurePolicyOnPodConditionsPattern) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		c := &pod.Status.Conditions[i]
		if slices.ContainsFunc(patterns, func(p batchv1.PodFailurePolicyOnPodConditionsPattern) bool {
			return p.Type == c.Type && p.Status == c.Status
		}) {
			return c
		}
	}
	return nil
}

// satisfied returns why the success policy is met by the indexes that succeeded, empty if it is
// not.
func satisfied(policy *batchv1.SuccessPolicy, completions int, succeeded indexes) string {
	if policy == nil || len(succeeded) == 0 {
		return ""
	}
	for i, rule := range policy.Rules {
		have, need := succeeded.count(), -1
		if rule.SucceededIndexes != nil {
			wanted := parseIndexes(*rule.SucceededIndexes, completions)
			if len(wanted) == 0 {
				continue
			}
			have, need = wanted.common(succeeded), wanted.count()
		}
		if rule.SucceededCount != nil {
			need = int(*rule.SucceededCount)
		}
		if need >= 0 && have >= need {
			return fmt.Sprintf("Matched rules at index %d", i)
		}
	}
	return ""
}
