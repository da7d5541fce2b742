// Package restarts decides which ended containers of a pod are started again: by the rules of the
// container, its own restart policy, or that of its pod. All decisions are functions of their
// arguments alone.
package restarts

import (
	"slices"

	v1 "k8s.io/api/core/v1"
)

// IsSidecar reports whether an init container runs beside the other containers.
func IsSidecar(c *v1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways
}

// Policy is the restart policy that holds for one container when none of its rules matches.
func Policy(pod *v1.Pod, c *v1.Container) v1.RestartPolicy {
	if c.RestartPolicy != nil {
		return v1.RestartPolicy(*c.RestartPolicy)
	}
	return pod.Spec.RestartPolicy
}

// Again reports whether a container that ended with the exit code is to be started again.
func Again(pod *v1.Pod, c *v1.Container, exitCode int32) bool {
	if action(c, exitCode) != "" {
		return true // both actions start it
	}
	switch Policy(pod, c) {
	case v1.RestartPolicyNever:
		return false
	case v1.RestartPolicyOnFailure:
		return exitCode != 0
	}
	return true
}

// All reports whether the exit code makes all containers of the pod start again.
func All(c *v1.Container, exitCode int32) bool {
	return action(c, exitCode) == v1.ContainerRestartRuleActionRestartAllContainers
}

// CouldBeAll reports whether a container of the pod has a rule that restarts all.
func CouldBeAll(pod *v1.Pod) bool {
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			for _, rule := range list[i].RestartPolicyRules {
				if rule.Action == v1.ContainerRestartRuleActionRestartAllContainers {
					return true
				}
			}
		}
	}
	return false
}

// action returns the action of the first rule that matches the exit code, or "".
func action(c *v1.Container, exitCode int32) v1.ContainerRestartRuleAction {
	if c.RestartPolicy == nil {
		return "" // rules complete a policy of the container's own
	}
	for _, rule := range c.RestartPolicyRules {
		if rule.ExitCodes == nil {
			continue
		}
		in := slices.Contains(rule.ExitCodes.Values, exitCode)
		switch rule.ExitCodes.Operator {
		case v1.ContainerRestartRuleOnExitCodesOpIn:
		case v1.ContainerRestartRuleOnExitCodesOpNotIn:
			in = !in
		default:
			continue
		}
		if in {
			return rule.Action
		}
	}
	return ""
}
