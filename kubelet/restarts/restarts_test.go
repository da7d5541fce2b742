package restarts

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

func rule(
	action v1.ContainerRestartRuleAction, op v1.ContainerRestartRuleOnExitCodesOperator, codes ...int32,
) v1.ContainerRestartRule {
	return v1.ContainerRestartRule{Action: action,
		ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: op, Values: codes}}
}

const (
	in    = v1.ContainerRestartRuleOnExitCodesOpIn
	notIn = v1.ContainerRestartRuleOnExitCodesOpNotIn
	one   = v1.ContainerRestartRuleActionRestart
	all   = v1.ContainerRestartRuleActionRestartAllContainers
)

func TestAgain(t *testing.T) {
	never, always, onFailure := ptr.To(v1.ContainerRestartPolicyNever), ptr.To(v1.ContainerRestartPolicyAlways),
		ptr.To(v1.ContainerRestartPolicyOnFailure)
	for name, c := range map[string]struct {
		pod        v1.RestartPolicy
		own        *v1.ContainerRestartPolicy
		rules      []v1.ContainerRestartRule
		code       int32
		again, all bool
	}{
		"pod Never":                    {pod: v1.RestartPolicyNever, code: 1},
		"pod OnFailure, succeeded":     {pod: v1.RestartPolicyOnFailure},
		"pod OnFailure, failed":        {pod: v1.RestartPolicyOnFailure, code: 1, again: true},
		"own policy before the pod's":  {pod: v1.RestartPolicyAlways, own: never, code: 1},
		"own Always in a pod of Never": {pod: v1.RestartPolicyNever, own: always, again: true},
		"own OnFailure, succeeded":     {pod: v1.RestartPolicyAlways, own: onFailure},
		"rule matches": {pod: v1.RestartPolicyNever, own: never,
			rules: []v1.ContainerRestartRule{rule(one, in, 42)}, code: 42, again: true},
		"rule does not match": {pod: v1.RestartPolicyNever, own: never,
			rules: []v1.ContainerRestartRule{rule(one, in, 42)}, code: 1},
		"not in": {pod: v1.RestartPolicyNever, own: never,
			rules: []v1.ContainerRestartRule{rule(one, notIn, 42)}, code: 1, again: true},
		"success that is not in": {pod: v1.RestartPolicyNever, own: never,
			rules: []v1.ContainerRestartRule{rule(one, notIn, 42)}, again: true},
		"rule without a policy of its own": {pod: v1.RestartPolicyNever,
			rules: []v1.ContainerRestartRule{rule(one, in, 42)}, code: 42},
		"all": {pod: v1.RestartPolicyNever, own: never,
			rules: []v1.ContainerRestartRule{rule(all, in, 42)}, code: 42, again: true, all: true},
		"the first match counts": {pod: v1.RestartPolicyNever, own: never,
			rules: []v1.ContainerRestartRule{rule(one, in, 42), rule(all, in, 42)}, code: 42, again: true},
		"an unknown operator matches nothing": {pod: v1.RestartPolicyNever, own: never,
			rules: []v1.ContainerRestartRule{rule(one, "Near", 42)}, code: 42},
	} {
		pod := &v1.Pod{Spec: v1.PodSpec{RestartPolicy: c.pod}}
		container := &v1.Container{RestartPolicy: c.own, RestartPolicyRules: c.rules}
		if got := Again(pod, container, c.code); got != c.again {
			t.Errorf("%s: Again is %v", name, got)
		}
		if got := All(container, c.code); got != c.all {
			t.Errorf("%s: All is %v", name, got)
		}
	}
}
