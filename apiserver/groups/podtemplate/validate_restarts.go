package podtemplate

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/barque/barque/apiserver/groups/validation"
)

// validateRestarts checks the restart policy of a container, and the rules that come before it.
func validateRestarts(container *corev1.Container, at *field.Path) field.ErrorList {
	const mostRules, mostCodes = 20, 255
	var errs field.ErrorList
	rules, under := container.RestartPolicyRules, at.Child("restartPolicyRules")
	switch policy := container.RestartPolicy; {
	case policy != nil:
		errs = append(errs, validation.OneOf(*policy, at.Child("restartPolicy"), corev1.ContainerRestartPolicyAlways,
			corev1.ContainerRestartPolicyNever, corev1.ContainerRestartPolicyOnFailure)...)
	case len(rules) == 0:
		return nil
	default:
		errs = append(errs,
			field.Required(at.Child("restartPolicy"), "must specify restartPolicy when restart rules are used"))
	}
	if len(rules) > mostRules {
		errs = append(errs, field.TooMany(under, len(rules), mostRules))
	}
	for i, rule := range rules {
		at := under.Index(i)
		errs = append(errs, validation.OneOf(rule.Action, at.Child("action"),
			corev1.ContainerRestartRuleActionRestart, corev1.ContainerRestartRuleActionRestartAllContainers)...)
		at = at.Child("exitCodes")
		if rule.ExitCodes == nil {
			errs = append(errs, field.Required(at, "must be specified"))
			continue
		}
		errs = append(errs, validation.OneOf(rule.ExitCodes.Operator, at.Child("operator"),
			corev1.ContainerRestartRuleOnExitCodesOpIn, corev1.ContainerRestartRuleOnExitCodesOpNotIn)...)
		if n := len(rule.ExitCodes.Values); n > mostCodes {
			errs = append(errs, field.TooMany(at.Child("values"), n, mostCodes))
		}
	}
	return errs
}

// Restarts reports whether a container of the spec that ended with the exit code may run again. A
// rule of any container that restarts all containers lets each of them run again.
func Restarts(spec *corev1.PodSpec, container *corev1.Container, exitCode int32) bool {
	for _, list := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range list {
			for _, rule := range list[i].RestartPolicyRules {
				if rule.Action == corev1.ContainerRestartRuleActionRestartAllContainers {
					return true
				}
			}
		}
	}
	policy := spec.RestartPolicy
	if container.RestartPolicy != nil {
		policy = corev1.RestartPolicy(*container.RestartPolicy)
		for _, rule := range container.RestartPolicyRules {
			if codes := rule.ExitCodes; codes != nil &&
				slices.Contains(codes.Values,
					exitCode) == (codes.Operator == corev1.ContainerRestartRuleOnExitCodesOpIn) {
				return true // by the only action that is left
			}
		}
	}
	return policy == corev1.RestartPolicyAlways || policy == corev1.RestartPolicyOnFailure && exitCode != 0
}
