package batch

import (
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/groups/validation"
)

// validateJobChange checks the changes of a job after its creation. Not checked, and so free to
// change, are among others parallelism, backoffLimit, suspend and the deadlines.
func validateJobChange(spec *batchv1.JobSpec, old *batchv1.Job, at *field.Path) field.ErrorList {
	was := &old.Spec
	errs := validateCompletionsChange(spec, was, at.Child("completions"))
	errs = append(errs, validation.Immutable(spec.Selector, was.Selector, at.Child("selector"))...)
	errs = append(errs, validateTemplateChange(&spec.Template, old, at)...)
	errs = append(errs, validation.Immutable(spec.CompletionMode, was.CompletionMode, at.Child("completionMode"))...)
	errs = append(errs,
		validation.Immutable(spec.PodFailurePolicy, was.PodFailurePolicy, at.Child("podFailurePolicy"))...)
	errs = append(errs,
		validation.Immutable(spec.BackoffLimitPerIndex, was.BackoffLimitPerIndex, at.Child("backoffLimitPerIndex"))...)
	errs = append(errs, validation.Immutable(spec.ManagedBy, was.ManagedBy, at.Child("managedBy"))...)
	return append(errs, validation.Immutable(spec.SuccessPolicy, was.SuccessPolicy, at.Child("successPolicy"))...)
}

// validateCompletionsChange lets an indexed job grow and shrink, all of its pods at once.
func validateCompletionsChange(spec, was *batchv1.JobSpec, at *field.Path) field.ErrorList {
	switch {
	case !isIndexed(spec):
		return validation.Immutable(spec.Completions, was.Completions, at)
	case spec.Completions == nil || apiequality.Semantic.DeepEqual(spec.Completions, was.Completions):
		return nil
	case *spec.Completions != ptr.Deref(spec.Parallelism, 0):
		return field.ErrorList{
			field.Invalid(at, *spec.Completions, "can only be modified in tandem with spec.parallelism")}
	}
	return nil
}

// validateTemplateChange checks the template, which is fixed while the job runs. While the job is
// suspended without pods, the placement and the resources of its pods can change: a queue suspends
// a job to choose them.
func validateTemplateChange(template *corev1.PodTemplateSpec, old *batchv1.Job, at *field.Path) field.ErrorList {
	if !isParked(old) {
		return validation.Immutable(template, &old.Spec.Template, at.Child("template"))
	}
	allowed := old.Spec.Template.DeepCopy()
	allowPlacement(&allowed.Spec, &template.Spec)
	allowResources(allowed.Spec.Containers, template.Spec.Containers)
	allowResources(allowed.Spec.InitContainers, template.Spec.InitContainers)
	return validation.Immutable(template.Spec, allowed.Spec, at.Child("template", "spec"))
}

// isParked reports whether a job is suspended and has no pods: it has not started yet, or its
// controller has reported that it stopped.
func isParked(j *batchv1.Job) bool {
	stopped := j.Status.StartTime == nil || hasCondition(j, batchv1.JobSuspended)
	return ptr.Deref(j.Spec.Suspend, false) && stopped && j.Status.Active == 0
}

// allowPlacement copies the fields that place pods, except the affinity to other pods.
func allowPlacement(allowed, spec *corev1.PodSpec) {
	switch {
	case spec.Affinity != nil && allowed.Affinity != nil:
		allowed.Affinity.NodeAffinity = spec.Affinity.NodeAffinity
	case spec.Affinity != nil:
		allowed.Affinity = &corev1.Affinity{NodeAffinity: spec.Affinity.NodeAffinity}
	case allowed.Affinity != nil:
		allowed.Affinity.NodeAffinity = nil
		if *allowed.Affinity == (corev1.Affinity{}) {
			allowed.Affinity = nil
		}
	}
	allowed.NodeSelector = spec.NodeSelector
	allowed.Tolerations = spec.Tolerations
	allowed.SchedulingGates = spec.SchedulingGates
}

// allowResources takes over the resources of the containers if they are still the same ones.
func allowResources(allowed, containers []corev1.Container) {
	if len(allowed) != len(containers) {
		return
	}
	for i := range containers {
		if allowed[i].Name == containers[i].Name {
			allowed[i].Resources = containers[i].Resources
		}
	}
}
