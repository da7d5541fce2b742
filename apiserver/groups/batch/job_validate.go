package batch

import (
	"context"
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/barque/barque/apiserver/groups/podtemplate"
	"github.com/barque/barque/apiserver/groups/validation"
)

// Bounds of indexed jobs. They bound the length of the lists of indexes in the status.
const (
	mostParallel      = 100_000
	mostFailedIndexes = 100_000

	// Jobs of more completions than manyCompletions have narrower bounds.
	manyCompletions         = 100_000
	mostParallelOfMany      = 10_000
	mostFailedIndexesOfMany = 10_000

	longestManagedBy = 63
)

func validateJob(_ context.Context, j, old *batchv1.Job) field.ErrorList {
	errs := validation.Meta(j, old, true, validation.SubdomainName)
	if old == nil {
		errs = append(errs, validateGeneratedSelector(j)...)
	}
	at := field.NewPath("spec")
	errs = append(errs, validateJobSpec(&j.Spec, at)...)
	errs = append(errs, validateSelector(&j.Spec, at)...)
	if old != nil {
		errs = append(errs, validateJobChange(&j.Spec, old, at)...)
	}
	return append(errs, validateIndexedName(j)...)
}

// validateIndexedName checks that every pod of an indexed job can have its hostname: the name of
// the job and the index.
func validateIndexedName(j *batchv1.Job) field.ErrorList {
	if !isIndexed(&j.Spec) || j.Spec.Completions == nil || *j.Spec.Completions <= 0 {
		return nil
	}
	longest := fmt.Sprintf("%s-%d", j.Name, *j.Spec.Completions-1)
	if len(utilvalidation.IsDNS1123Label(longest)) == 0 {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("metadata", "name"), j.Name,
		"will not able to create pod with invalid DNS label: "+longest)}
}

// validateGeneratedSelector checks that a client has set neither other labels than the generated
// ones, nor a selector of its own, unless it manages the selector.
func validateGeneratedSelector(j *batchv1.Job) field.ErrorList {
	if j.Spec.ManualSelector != nil && *j.Spec.ManualSelector || j.Spec.Selector == nil {
		return nil
	}
	var errs field.ErrorList
	if j.UID == "" {
		errs = append(errs, field.Required(field.NewPath("metadata", "uid"), ""))
	}
	want, at := generatedLabels(j), field.NewPath("spec", "template", "metadata", "labels")
	for _, label := range validation.SortedKeys(want) {
		message := fmt.Sprintf("must be '%s'", want[label])
		if value, ok := j.Spec.Template.Labels[label]; !ok {
			errs = append(errs, field.Required(at.Key(label), message))
		} else if value != want[label] {
			errs = append(errs, field.Invalid(at.Key(label), j.Spec.Template.Labels, message))
		}
	}
	selector, err := metav1.LabelSelectorAsSelector(j.Spec.Selector)
	if err == nil && !selector.Matches(labels.Set(want)) {
		errs = append(errs,
			field.Invalid(field.NewPath("spec", "selector"), j.Spec.Selector, "`selector` not auto-generated"))
	}
	return errs
}

// validateSelector checks that the job selects the pods that it makes. Without a selector it does
// not.
func validateSelector(spec *batchv1.JobSpec, at *field.Path) field.ErrorList {
	errs := validation.LabelSelector(spec.Selector, at.Child("selector"))
	if spec.Selector == nil {
		errs = append(errs, field.Required(at.Child("selector"), ""))
	}
	selector, err := metav1.LabelSelectorAsSelector(spec.Selector)
	if err == nil && !selector.Matches(labels.Set(spec.Template.Labels)) {
		errs = append(errs,
			field.Invalid(at.Child("template", "metadata", "labels"), spec.Template.Labels,
				"`selector` does not match template `labels`"))
	}
	return errs
}

// validateJobSpec checks the rules that jobs and templates of jobs have in common.
func validateJobSpec(spec *batchv1.JobSpec, at *field.Path) field.ErrorList {
	errs := validateNumbers(spec, at)
	if by := spec.ManagedBy; by != nil {
		errs = append(errs, utilvalidation.IsDomainPrefixedPath(at.Child("managedBy"), *by)...)
		if len(*by) > longestManagedBy {
			errs = append(errs, field.TooLong(at.Child("managedBy"), "", longestManagedBy))
		}
	}
	errs = append(errs, validateCompletionMode(spec, at)...)
	if spec.PodFailurePolicy != nil {
		errs = append(errs, validateFailurePolicy(spec, at.Child("podFailurePolicy"))...)
	}
	if spec.SuccessPolicy != nil {
		errs = append(errs, validateSuccessPolicy(spec, at.Child("successPolicy"))...)
	}
	errs = append(errs, validateReplacementPolicy(spec, at.Child("podReplacementPolicy"))...)
	errs = append(errs, podtemplate.Validate(&spec.Template, at.Child("template"))...)
	return append(errs, validateRestartPolicy(spec, at.Child("template", "spec", "restartPolicy"))...)
}

func validateNumbers(spec *batchv1.JobSpec, at *field.Path) field.ErrorList {
	errs := validation.OptionalNonNegative(spec.Parallelism, at.Child("parallelism"))
	errs = append(errs, validation.OptionalNonNegative(spec.Completions, at.Child("completions"))...)
	errs = append(errs,
		validation.OptionalNonNegative(spec.ActiveDeadlineSeconds, at.Child("activeDeadlineSeconds"))...)
	errs = append(errs, validation.OptionalNonNegative(spec.BackoffLimit, at.Child("backoffLimit"))...)
	errs = append(errs,
		validation.OptionalNonNegative(spec.TTLSecondsAfterFinished, at.Child("ttlSecondsAfterFinished"))...)
	errs = append(errs, validation.OptionalNonNegative(spec.BackoffLimitPerIndex, at.Child("backoffLimitPerIndex"))...)
	errs = append(errs, validation.OptionalNonNegative(spec.MaxFailedIndexes, at.Child("maxFailedIndexes"))...)
	if spec.MaxFailedIndexes != nil && spec.BackoffLimitPerIndex == nil {
		errs = append(errs, field.Required(at.Child("backoffLimitPerIndex"), "when maxFailedIndexes is specified"))
	}
	return errs
}

func validateCompletionMode(spec *batchv1.JobSpec, at *field.Path) field.ErrorList {
	if spec.CompletionMode != nil {
		switch mode := *spec.CompletionMode; mode {
		case batchv1.IndexedCompletion:
			return validateIndexed(spec, at)
		case batchv1.NonIndexedCompletion:
		default:
			return field.ErrorList{field.NotSupported(at.Child("completionMode"), mode,
				[]batchv1.CompletionMode{batchv1.NonIndexedCompletion, batchv1.IndexedCompletion})}
		}
	}
	const indexedOnly = "requires indexed completion mode"
	var errs field.ErrorList
	if spec.BackoffLimitPerIndex != nil {
		errs = append(errs, field.Invalid(at.Child("backoffLimitPerIndex"), *spec.BackoffLimitPerIndex, indexedOnly))
	}
	if spec.MaxFailedIndexes != nil {
		errs = append(errs, field.Invalid(at.Child("maxFailedIndexes"), *spec.MaxFailedIndexes, indexedOnly))
	}
	return errs
}

func validateIndexed(spec *batchv1.JobSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	atMost := func(value *int32, limit int32, name, when string) {
		if value != nil && *value > limit {
			errs = append(errs,
				field.Invalid(at.Child(name), *value, fmt.Sprintf("must be less than or equal to %d%s", limit, when)))
		}
	}
	atMost(spec.Parallelism, mostParallel, "parallelism", " when completion mode is Indexed")
	atMost(spec.MaxFailedIndexes, mostFailedIndexes, "maxFailedIndexes", "")
	if spec.Completions == nil {
		return append(errs, field.Required(at.Child("completions"), "when completion mode is Indexed"))
	}
	if failed := spec.MaxFailedIndexes; failed != nil && *failed > *spec.Completions {
		errs = append(errs,
			field.Invalid(at.Child("maxFailedIndexes"), *failed, "must be less than or equal to completions"))
	}
	if *spec.Completions > manyCompletions && spec.BackoffLimitPerIndex != nil {
		if spec.MaxFailedIndexes == nil {
			errs = append(errs,
				field.Required(at.Child("maxFailedIndexes"),
					fmt.Sprintf("must be specified when completions is above %d", manyCompletions)))
		}
		when := fmt.Sprintf(" when completions are above %d and used with backoff limit per index", manyCompletions)
		atMost(spec.Parallelism, mostParallelOfMany, "parallelism", when)
		atMost(spec.MaxFailedIndexes, mostFailedIndexesOfMany, "maxFailedIndexes", when)
	}
	return errs
}

// validateRestartPolicy refuses the policy that pods have by default: they would never end.
func validateRestartPolicy(spec *batchv1.JobSpec, at *field.Path) field.ErrorList {
	switch policy := spec.Template.Spec.RestartPolicy; {
	case policy == "" || policy == corev1.RestartPolicyAlways:
		return field.ErrorList{
			field.Required(at,
				fmt.Sprintf("valid values: %q, %q", corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever))}
	case policy != corev1.RestartPolicyOnFailure && policy != corev1.RestartPolicyNever:
		return field.ErrorList{
			field.NotSupported(at, policy,
				[]corev1.RestartPolicy{corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever})}
	case policy != corev1.RestartPolicyNever && spec.PodFailurePolicy != nil:
		return field.ErrorList{
			field.Invalid(at, policy,
				fmt.Sprintf("only %q is supported when podFailurePolicy is specified", corev1.RestartPolicyNever))}
	}
	return nil
}
