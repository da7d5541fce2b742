package batch

import (
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/barque/barque/apiserver/groups/validation"
)

const (
	mostRules             = 20 // of a failure policy or a success policy
	mostExitCodes         = 255
	mostConditions        = 20
	longestSuccessIndexes = 64 * 1024
)

// choice checks a required value out of a few, which the error lists.
func choice[T ~string](value T, at *field.Path, allowed ...T) field.ErrorList {
	switch {
	case value == "":
		return field.ErrorList{field.Required(at, fmt.Sprintf("valid values: %q", allowed))}
	case !slices.Contains(allowed, value):
		return field.ErrorList{field.NotSupported(at, value, allowed)}
	}
	return nil
}

func validateFailurePolicy(spec *batchv1.JobSpec, at *field.Path) field.ErrorList {
	at = at.Child("rules")
	var errs field.ErrorList
	rules := spec.PodFailurePolicy.Rules
	if len(rules) > mostRules {
		errs = append(errs, field.TooMany(at, len(rules), mostRules))
	}
	for i := range rules {
		errs = append(errs, validateFailureRule(&rules[i], spec, at.Index(i))...)
	}
	return errs
}

func validateFailureRule(rule *batchv1.PodFailurePolicyRule, spec *batchv1.JobSpec, at *field.Path) field.ErrorList {
	errs := choice(rule.Action, at.Child("action"),
		batchv1.PodFailurePolicyActionCount, batchv1.PodFailurePolicyActionFailIndex,
		batchv1.PodFailurePolicyActionFailJob, batchv1.PodFailurePolicyActionIgnore)
	if rule.Action == batchv1.PodFailurePolicyActionFailIndex && spec.BackoffLimitPerIndex == nil {
		errs = append(errs,
			field.Invalid(at.Child("action"), rule.Action, "requires the backoffLimitPerIndex to be set"))
	}
	if rule.OnExitCodes != nil {
		errs = append(errs, validateExitCodes(rule.OnExitCodes, &spec.Template.Spec, at.Child("onExitCodes"))...)
	}
	errs = append(errs, validatePodConditions(rule.OnPodConditions, at.Child("onPodConditions"))...)
	switch byCode, byCondition := rule.OnExitCodes != nil, len(rule.OnPodConditions) > 0; {
	case byCode && byCondition:
		errs = append(errs,
			field.Invalid(at, field.OmitValueType{},
				"specifying both OnExitCodes and OnPodConditions is not supported"))
	case !byCode && !byCondition:
		errs = append(errs,
			field.Invalid(at, field.OmitValueType{}, "specifying one of OnExitCodes and OnPodConditions is required"))
	}
	return errs
}

func validatePodConditions(patterns []batchv1.PodFailurePolicyOnPodConditionsPattern, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(patterns) > mostConditions {
		errs = append(errs, field.TooMany(at, len(patterns), mostConditions))
	}
	for i, p := range patterns {
		for _, problem := range utilvalidation.IsQualifiedName(string(p.Type)) { // also of none
			errs = append(errs, field.Invalid(at.Index(i).Child("type"), p.Type, problem))
		}
		errs = append(errs, choice(p.Status, at.Index(i).Child("status"),
			corev1.ConditionFalse, corev1.ConditionTrue, corev1.ConditionUnknown)...)
	}
	return errs
}

func validateExitCodes(
	r *batchv1.PodFailurePolicyOnExitCodesRequirement, pod *corev1.PodSpec, at *field.Path,
) field.ErrorList {
	errs := choice(r.Operator, at.Child("operator"),
		batchv1.PodFailurePolicyOnExitCodesOpIn, batchv1.PodFailurePolicyOnExitCodesOpNotIn)
	if name := r.ContainerName; name != nil && !hasContainer(pod, *name) {
		errs = append(errs,
			field.Invalid(at.Child("containerName"), *name,
				"must be one of the container or initContainer names in the pod template"))
	}
	at = at.Child("values")
	switch n := len(r.Values); {
	case n == 0:
		errs = append(errs, field.Invalid(at, r.Values, "at least one value is required"))
	case n > mostExitCodes:
		errs = append(errs, field.TooMany(at, n, mostExitCodes))
	}
	seen := map[int32]bool{}
	for i, code := range r.Values {
		if code == 0 && r.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn {
			errs = append(errs, field.Invalid(at.Index(i), code, "must not be 0 for the In operator"))
		}
		if seen[code] {
			errs = append(errs, field.Duplicate(at.Index(i), code))
		}
		seen[code] = true
	}
	if !slices.IsSorted(r.Values) {
		errs = append(errs, field.Invalid(at, r.Values, "must be ordered"))
	}
	return errs
}

func hasContainer(pod *corev1.PodSpec, name string) bool {
	named := func(c corev1.Container) bool { return c.Name == name }
	return slices.ContainsFunc(pod.Containers, named) || slices.ContainsFunc(pod.InitContainers, named)
}

func validateSuccessPolicy(spec *batchv1.JobSpec, at *field.Path) field.ErrorList {
	if !isIndexed(spec) {
		return field.ErrorList{field.Invalid(at, *spec.SuccessPolicy, "requires indexed completion mode")}
	}
	at = at.Child("rules")
	var errs field.ErrorList
	rules := spec.SuccessPolicy.Rules
	if len(rules) == 0 {
		errs = append(errs,
			field.Required(at, "at least one rules must be specified when the successPolicy is specified"))
	}
	if len(rules) > mostRules {
		errs = append(errs, field.TooMany(at, len(rules), mostRules))
	}
	if spec.Completions == nil { // reported already; there is nothing to compare the rules with
		return errs
	}
	for i := range rules {
		errs = append(errs, validateSuccessRule(&rules[i], *spec.Completions, at.Index(i))...)
	}
	return errs
}

func validateSuccessRule(rule *batchv1.SuccessPolicyRule, completions int32, at *field.Path) field.ErrorList {
	if rule.SucceededCount == nil && rule.SucceededIndexes == nil {
		return field.ErrorList{
			field.Required(at, "at least one of succeededCount or succeededIndexes must be specified")}
	}
	var errs field.ErrorList
	listed := int32(0)
	if text := rule.SucceededIndexes; text != nil {
		at := at.Child("succeededIndexes")
		if len(*text) > longestSuccessIndexes {
			errs = append(errs, field.TooLong(at, "", longestSuccessIndexes))
		}
		indexes, err := parseIndexes(*text, completions)
		if err != nil {
			errs = append(errs, field.Invalid(at, *text, fmt.Sprintf("error parsing succeededIndexes: %s", err)))
		}
		listed = countIndexes(indexes)
	}
	if count := rule.SucceededCount; count != nil {
		at := at.Child("succeededCount")
		errs = append(errs, validation.NonNegative(*count, at)...)
		if *count > completions {
			errs = append(errs,
				field.Invalid(at, *count,
					fmt.Sprintf("must be less than or equal to %d (the number of specified completions)", completions)))
		}
		if rule.SucceededIndexes != nil && *count > listed {
			errs = append(errs,
				field.Invalid(at, *count,
					fmt.Sprintf(
						"must be less than or equal to %d (the number of indexes in the specified succeededIndexes field)", listed)))
		}
	}
	return errs
}

// validateReplacementPolicy checks when a terminating pod is replaced. A failure policy judges how
// a pod failed, so it has to wait until it has.
func validateReplacementPolicy(spec *batchv1.JobSpec, at *field.Path) field.ErrorList {
	policy := spec.PodReplacementPolicy
	if policy == nil {
		return nil
	}
	allowed := []batchv1.PodReplacementPolicy{batchv1.Failed, batchv1.TerminatingOrFailed}
	if spec.PodFailurePolicy != nil {
		allowed = allowed[:1]
	}
	if !slices.Contains(allowed, *policy) {
		return field.ErrorList{field.NotSupported(at, *policy, allowed)}
	}
	return nil
}
