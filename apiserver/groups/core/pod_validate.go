package core

import (
	"context"
	"fmt"
	"math"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/barque/barque/apiserver/groups/podtemplate"
	"github.com/barque/barque/apiserver/groups/validation"
)

func validatePod(_ context.Context, p, old *corev1.Pod) field.ErrorList {
	errs := validation.Meta(p, old, true, validation.SubdomainName)
	spec := field.NewPath("spec")
	if old == nil {
		errs = append(errs, podtemplate.ValidateSpec(&p.Spec, spec)...)
		if len(p.Spec.EphemeralContainers) > 0 {
			errs = append(errs, field.Forbidden(spec.Child("ephemeralContainers"), "cannot be set on create"))
		}
		if len(p.Spec.SchedulingGates) > 0 && p.Spec.NodeName != "" {
			errs = append(errs, field.Forbidden(spec.Child("nodeName"), "cannot be set until all schedulingGates have been cleared"))
		}
		return errs
	}
	return append(errs, validatePodUpdate(p, old, spec)...)
}

// podUpdateRule tells what an update of a pod may change.
const podUpdateRule = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"

// validatePodUpdate checks an update of a pod: what may change is checked by itself and then taken
// out of the comparison of everything else.
func validatePodUpdate(p, old *corev1.Pod, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(p.Spec.Containers) != len(old.Spec.Containers) {
		return field.ErrorList{field.Forbidden(at.Child("containers"), "pod updates may not add or remove containers")}
	}
	if len(p.Spec.InitContainers) != len(old.Spec.InitContainers) {
		return field.ErrorList{field.Forbidden(at.Child("initContainers"), "pod updates may not add or remove containers")}
	}
	rest := p.Spec.DeepCopy()
	errs = append(errs, updateImages(rest.Containers, old.Spec.Containers, at.Child("containers"))...)
	errs = append(errs, updateImages(rest.InitContainers, old.Spec.InitContainers, at.Child("initContainers"))...)
	errs = append(errs, updateDeadline(rest, &old.Spec, at.Child("activeDeadlineSeconds"))...)
	errs = append(errs, updateTolerations(rest, &old.Spec, at.Child("tolerations"))...)
	if grace, was := rest.TerminationGracePeriodSeconds, old.Spec.TerminationGracePeriodSeconds; grace != nil && was != nil && *was < 0 && *grace == 1 {
		rest.TerminationGracePeriodSeconds = was
	}
	errs = append(errs, updateGates(rest, &old.Spec, at)...)
	if len(errs) > 0 {
		// What is wrong above would only be said again below.
		return errs
	}
	if !apiequality.Semantic.DeepEqual(rest, &old.Spec) {
		errs = append(errs, field.Forbidden(at, podUpdateRule))
	}
	return errs
}

func updateImages(containers, old []corev1.Container, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range containers {
		image := containers[i].Image
		if image == "" {
			errs = append(errs, field.Required(at.Index(i).Child("image"), ""))
		} else if image != old[i].Image {
			errs = append(errs, validation.Check(image, at.Index(i).Child("image"), func(s string) []string {
				for _, end := range []byte{s[0], s[len(s)-1]} {
					if end == ' ' || end == '\t' || end == '\n' {
						return []string{"must not have leading or trailing whitespace"}
					}
				}
				return nil
			})...)
		}
		containers[i].Image = old[i].Image
	}
	return errs
}

// updateDeadline: a deadline may be set, and set earlier, but neither later nor taken back.
func updateDeadline(spec, old *corev1.PodSpec, at *field.Path) field.ErrorList {
	deadline, was := spec.ActiveDeadlineSeconds, old.ActiveDeadlineSeconds
	spec.ActiveDeadlineSeconds = was
	switch {
	case deadline == nil && was != nil:
		return field.ErrorList{field.Invalid(at, nil, "must not update from a positive integer to nil value")}
	case deadline == nil:
		return nil
	case *deadline < 0 || *deadline > math.MaxInt32:
		return field.ErrorList{field.Invalid(at, *deadline, utilvalidation.InclusiveRangeError(0, math.MaxInt32))}
	case was != nil && *deadline > *was:
		return field.ErrorList{field.Invalid(at, *deadline, "must be less than or equal to previous value")}
	}
	return nil
}

// updateTolerations: tolerations may be added, and the seconds of an old one may change.
func updateTolerations(spec, old *corev1.PodSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if !apiequality.Semantic.DeepEqual(spec.Tolerations, old.Tolerations) {
		errs = podtemplate.ValidateTolerations(spec.Tolerations, at)
		for _, was := range old.Tolerations {
			if !hasToleration(spec.Tolerations, was) {
				errs = append(errs, field.Forbidden(at, "existing toleration can not be modified except its tolerationSeconds"))
				break
			}
		}
	}
	spec.Tolerations = old.Tolerations
	return errs
}

func hasToleration(tolerations []corev1.Toleration, t corev1.Toleration) bool {
	for _, o := range tolerations {
		if o.MatchToleration(&t) {
			return true
		}
	}
	return false
}

// updateGates: gates may be taken away, never added. While gates hold a pod back, where it may go
// can still be narrowed.
func updateGates(spec, old *corev1.PodSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	was := map[string]bool{}
	for _, gate := range old.SchedulingGates {
		was[gate.Name] = true
	}
	for i, gate := range spec.SchedulingGates {
		if !was[gate.Name] {
			errs = append(errs, field.Forbidden(at.Child("schedulingGates").Index(i), fmt.Sprintf("only deletion is allowed, but found new scheduling gate '%s'", gate.Name)))
		}
	}
	spec.SchedulingGates = old.SchedulingGates
	if len(old.SchedulingGates) == 0 {
		return errs
	}
	for key, value := range old.NodeSelector {
		if spec.NodeSelector[key] != value {
			errs = append(errs, field.Invalid(at.Child("nodeSelector").Key(key), spec.NodeSelector[key], "only additions are allowed (no deletions or mutations)"))
		}
	}
	errs = append(errs, validation.Labels(spec.NodeSelector, at.Child("nodeSelector"))...)
	spec.NodeSelector = old.NodeSelector
	return errs
}

// validatePodStatus checks a status that somebody, usually the kubelet, reports.
func validatePodStatus(_ context.Context, p, old *corev1.Pod) field.ErrorList {
	var errs field.ErrorList
	at := field.NewPath("status")
	if name := p.Status.NominatedNodeName; name != "" {
		errs = append(errs, validation.DNSSubdomain(name, at.Child("nominatedNodeName"))...)
	}
	if p.Status.QOSClass != old.Status.QOSClass && old.Status.QOSClass != "" {
		errs = append(errs, field.Invalid(at.Child("qosClass"), p.Status.QOSClass, "field is immutable"))
	}
	for i, ip := range p.Status.PodIPs {
		errs = append(errs, validation.IP(ip.IP, at.Child("podIPs").Index(i))...)
	}
	for i, ip := range p.Status.HostIPs {
		errs = append(errs, validation.IP(ip.IP, at.Child("hostIPs").Index(i))...)
	}
	for i, c := range p.Status.Conditions {
		errs = append(errs, validation.QualifiedName(string(c.Type), at.Child("conditions").Index(i).Child("type"))...)
	}
	errs = append(errs, validateNoRevival(p.Status.ContainerStatuses, old.Status.ContainerStatuses, old.Spec.RestartPolicy, at.Child("containerStatuses"))...)
	return errs
}

// validateNoRevival: a container that has ended stays so when its pod is never to restart it.
func validateNoRevival(statuses, old []corev1.ContainerStatus, policy corev1.RestartPolicy, at *field.Path) field.ErrorList {
	if policy == corev1.RestartPolicyAlways {
		return nil
	}
	ended := map[string]bool{}
	for _, c := range old {
		if t := c.State.Terminated; t != nil && (policy == corev1.RestartPolicyNever || t.ExitCode == 0) {
			ended[c.Name] = true
		}
	}
	var errs field.ErrorList
	for i, c := range statuses {
		if ended[c.Name] && c.State.Terminated == nil {
			errs = append(errs, field.Forbidden(at.Index(i).Child("state"), "may not be transitioned to non-terminated state"))
		}
	}
	return errs
}

// ValidateEphemeralContainers checks a write to the ephemeralcontainers subresource: containers
// are added, and those that are there stay as they are.
func ValidateEphemeralContainers(p, old *corev1.Pod) field.ErrorList {
	at := field.NewPath("spec", "ephemeralContainers")
	errs := podtemplate.ValidateSpec(&p.Spec, field.NewPath("spec"))
	if len(p.Spec.EphemeralContainers) < len(old.Spec.EphemeralContainers) {
		return append(errs, field.Forbidden(at, "existing ephemeral containers may not be removed"))
	}
	for i := range old.Spec.EphemeralContainers {
		if !apiequality.Semantic.DeepEqual(p.Spec.EphemeralContainers[i], old.Spec.EphemeralContainers[i]) {
			errs = append(errs, field.Forbidden(at.Index(i), fmt.Sprintf("existing ephemeral containers %q may not be changed", old.Spec.EphemeralContainers[i].Name)))
		}
	}
	return errs
}

func podWarnings(_ context.Context, p, old *corev1.Pod) []string {
	if old != nil {
		return nil
	}
	return podtemplate.PodWarnings(p)
}
