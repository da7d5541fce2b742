package pod

import (
	"context"
	"fmt"
	"math"
	"net"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/diff"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/barque/barque/apiserver/groups/podtemplate"
	"github.com/barque/barque/apiserver/groups/podtemplate/warn"
	"github.com/barque/barque/apiserver/groups/validation"
)

func validatePod(_ context.Context, p, old *corev1.Pod) field.ErrorList {
	errs := validation.Meta(p, old, true, validation.SubdomainName)
	annotations, spec := field.NewPath("metadata", "annotations"), field.NewPath("spec")
	errs = append(errs, podtemplate.ValidateAnnotations(p.Annotations, &p.Spec, annotations)...)
	errs = append(errs, podtemplate.ValidateSpec(&p.Spec, spec)...)
	errs = append(errs, validatePodOnly(p, spec)...)
	if old != nil {
		errs = append(errs, validateKeptAnnotations(p.Annotations, old.Annotations, annotations)...)
		return append(errs, validatePodUpdate(p, old, spec)...)
	}
	errs = append(errs, podtemplate.ValidateAgreement(p.Annotations, &p.Spec, spec)...)
	if len(p.Spec.EphemeralContainers) > 0 {
		errs = append(errs, field.Forbidden(spec.Child("ephemeralContainers"), "cannot be set on create"))
	}
	if len(p.Spec.SchedulingGates) > 0 && p.Spec.NodeName != "" {
		errs = append(errs,
			field.Forbidden(spec.Child("nodeName"), "cannot be set until all schedulingGates have been cleared"))
	}
	return errs
}

// validatePodOnly checks the rules of a pod that a template does not have.
func validatePodOnly(p *corev1.Pod, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, v := range p.Spec.Volumes {
		if v.Projected == nil || p.Spec.ServiceAccountName != "" {
			continue
		}
		for j, source := range v.Projected.Sources {
			if source.ServiceAccountToken != nil {
				errs = append(errs,
					field.Forbidden(
						at.Child("volumes").Index(i).Child("projected", "sources").Index(j).Child(
							"serviceAccountToken"), "must not be specified when serviceAccountName is not set"))
			}
		}
	}
	errs = append(errs,
		validation.OptionalNonNegative(p.Spec.TerminationGracePeriodSeconds,
			at.Child("terminationGracePeriodSeconds"))...)
	for i := range p.Spec.Containers {
		errs = append(errs,
			podtemplate.ValidateImage(p.Spec.Containers[i].Image, at.Child("containers").Index(i).Child("image"))...)
	}
	for i := range p.Spec.InitContainers {
		errs = append(errs,
			podtemplate.ValidateImage(p.Spec.InitContainers[i].Image,
				at.Child("initContainers").Index(i).Child("image"))...)
	}
	return errs
}

// validateKeptAnnotations: the annotations that a pod was started with cannot change.
func validateKeptAnnotations(annotations, old map[string]string, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, kept := range []struct {
		name string
		is   func(key string) bool
	}{
		{"AppArmor annotations", func(key string) bool {
			return strings.HasPrefix(key, corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix)
		}},
		{"mirror pod annotation", func(key string) bool { return key == corev1.MirrorPodAnnotationKey }},
	} {
		for _, key := range validation.SortedKeys(old) {
			if value, ok := annotations[key]; kept.is(key) && (!ok || value != old[key]) {
				errs = append(errs, field.Forbidden(at.Key(key), "may not remove or update "+kept.name))
			}
		}
		for _, key := range validation.SortedKeys(annotations) {
			if _, ok := old[key]; kept.is(key) && !ok {
				errs = append(errs, field.Forbidden(at.Key(key), "may not add "+kept.name))
			}
		}
	}
	return errs
}

// podUpdateRule lists the fields that an update of a pod may change.
const podUpdateRule = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"

// validatePodUpdate checks an update of a pod: mutable fields are checked by themselves and then
// taken out of the comparison of everything else.
func validatePodUpdate(p, old *corev1.Pod, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(p.Spec.Containers) != len(old.Spec.Containers) {
		return field.ErrorList{field.Forbidden(at.Child("containers"), "pod updates may not add or remove containers")}
	}
	if len(p.Spec.InitContainers) != len(old.Spec.InitContainers) {
		return field.ErrorList{
			field.Forbidden(at.Child("initContainers"), "pod updates may not add or remove containers")}
	}
	rest := p.Spec.DeepCopy()
	keepImages(rest.Containers, old.Spec.Containers)
	keepImages(rest.InitContainers, old.Spec.InitContainers)
	errs = append(errs, updateDeadline(rest, &old.Spec, at.Child("activeDeadlineSeconds"))...)
	if len(errs) > 0 && p.Spec.ActiveDeadlineSeconds != nil {
		return errs
	}
	errs = append(errs, updateTolerations(rest, &old.Spec, at.Child("tolerations"))...)
	if grace, was := rest.TerminationGracePeriodSeconds, old.Spec.TerminationGracePeriodSeconds; grace != nil &&
		was != nil && *was < 0 && *grace == 1 {
		rest.TerminationGracePeriodSeconds = was
	}
	errs = append(errs, updateGates(rest, &old.Spec, at)...)
	if !apiequality.Semantic.DeepEqual(rest, &old.Spec) {
		errs = append(errs, field.Forbidden(at, podUpdateRule+"\n"+diff.Diff(old.Spec, *rest)))
	}
	return errs
}

// keepImages takes the images, which may change, out of the comparison.
func keepImages(containers, old []corev1.Container) {
	for i := range containers {
		containers[i].Image = old[i].Image
	}
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
	for _, was := range old.Tolerations {
		if !hasToleration(spec.Tolerations, was) {
			errs = append(errs,
				field.Forbidden(at, "existing toleration can not be modified except its tolerationSeconds"))
			break
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
			errs = append(errs,
				field.Forbidden(at.Child("schedulingGates").Index(i).Child("name"),
					fmt.Sprintf("only deletion is allowed, but found new scheduling gate '%s'", gate.Name)))
		}
	}
	spec.SchedulingGates = old.SchedulingGates
	if len(old.SchedulingGates) == 0 {
		return errs
	}
	for key, value := range old.NodeSelector {
		if spec.NodeSelector[key] != value {
			errs = append(errs,
				field.Invalid(at.Child("nodeSelector"), spec.NodeSelector,
					"only additions to spec.nodeSelector are allowed (no mutations or deletions)"))
			break
		}
	}
	spec.NodeSelector = old.NodeSelector
	return append(errs, narrowAffinity(spec, old, at.Child("affinity", "nodeAffinity"))...)
}

// narrowAffinity: a pod with scheduling gates may get a node affinity, and more demands in each
// term of the one that it has. Preferences may change freely.
func narrowAffinity(spec, old *corev1.PodSpec, at *field.Path) field.ErrorList {
	var now, was *corev1.NodeAffinity
	if spec.Affinity != nil {
		now = spec.Affinity.NodeAffinity
	}
	if old.Affinity != nil {
		was = old.Affinity.NodeAffinity
	}
	if apiequality.Semantic.DeepEqual(now, was) {
		return nil
	}
	errs := validateNarrowed(now, was, at)
	switch {
	case spec.Affinity == nil:
		spec.Affinity = &corev1.Affinity{NodeAffinity: was}
	case old.Affinity == nil && spec.Affinity.PodAffinity == nil && spec.Affinity.PodAntiAffinity == nil:
		spec.Affinity = nil
	default:
		spec.Affinity.NodeAffinity = was
	}
	return errs
}

func validateNarrowed(now, was *corev1.NodeAffinity, at *field.Path) field.ErrorList {
	if was == nil || was.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	at = at.Child("requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
	had := was.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	if len(had) == 0 {
		return nil
	}
	var has []corev1.NodeSelectorTerm
	if now != nil && now.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		has = now.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	}
	if len(has) != len(had) {
		return field.ErrorList{
			field.Invalid(at, has, "no additions/deletions to non-empty NodeSelectorTerms list are allowed")}
	}
	var errs field.ErrorList
	for i := range had {
		if !narrows(&has[i], &had[i]) {
			errs = append(errs,
				field.Invalid(at.Index(i), has[i], "only additions are allowed (no mutations or deletions)"))
		}
	}
	return errs
}

// narrows reports that a term has all of another one's demands, in their order, and perhaps more at
// the end. A term without any matches no node, and can get none.
func narrows(now, was *corev1.NodeSelectorTerm) bool {
	if len(was.MatchExpressions)+len(was.MatchFields) == 0 {
		return len(now.MatchExpressions)+len(now.MatchFields) == 0
	}
	begins := func(list, with []corev1.NodeSelectorRequirement) bool {
		return len(list) >= len(with) && (len(with) == 0 || apiequality.Semantic.DeepEqual(list[:len(with)], with))
	}
	return begins(now.MatchExpressions, was.MatchExpressions) && begins(now.MatchFields, was.MatchFields)
}

// validatePodStatus checks a status that a client, usually the kubelet, reports.
func validatePodStatus(_ context.Context, p, old *corev1.Pod) field.ErrorList {
	errs := validation.Meta(p, old, true, validation.SubdomainName)
	annotations := field.NewPath("metadata", "annotations")
	errs = append(errs, validateKeptAnnotations(p.Annotations, old.Annotations, annotations)...)
	errs = append(errs, podtemplate.ValidateAnnotations(p.Annotations, &p.Spec, annotations)...)
	at := field.NewPath("status")
	if name := p.Status.NominatedNodeName; name != "" && name != old.Status.NominatedNodeName {
		errs = append(errs, validation.Check(name, at.Child("nominatedNodeName"), utilvalidation.IsDNS1123Subdomain)...)
		if old.Spec.NodeName != "" {
			errs = append(errs,
				field.Forbidden(at.Child("nominatedNodeName"),
					"may not be set on pods that are already bound to a node"))
		}
	}
	if p.Status.ObservedGeneration < 0 {
		errs = append(errs,
			field.Invalid(at.Child("observedGeneration"), p.Status.ObservedGeneration,
				"must be a non-negative integer"))
	}
	errs = append(errs, validation.Immutable(p.Status.QOSClass, old.Status.QOSClass, at.Child("qosClass"))...)
	errs = append(errs, validatePodIPs(p, at)...)
	errs = append(errs, validateHostIPs(p, at)...)
	for i, c := range p.Status.Conditions {
		at := at.Child("conditions").Index(i)
		if c.ObservedGeneration < 0 {
			errs = append(errs,
				field.Invalid(at.Child("observedGeneration"), c.ObservedGeneration, "must be a non-negative integer"))
		}
		errs = append(errs, validation.Check(string(c.Type), at.Child("Type"), utilvalidation.IsQualifiedName)...)
	}
	errs = append(errs,
		validateNoRevival(p.Status.ContainerStatuses, old.Status.ContainerStatuses, &old.Spec, old.Spec.Containers,
			at.Child("containerStatuses"))...)
	errs = append(errs,
		validateNoRevival(p.Status.InitContainerStatuses, old.Status.InitContainerStatuses, &old.Spec,
			old.Spec.InitContainers, at.Child("initContainerStatuses"))...)
	return append(errs,
		validateNoRevival(p.Status.EphemeralContainerStatuses, old.Status.EphemeralContainerStatuses, &old.Spec, nil,
			at.Child("ephemeralContainerStatuses"))...)
}

func validatePodIPs(p *corev1.Pod, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	at = at.Child("podIPs")
	var ips []string
	for i, ip := range p.Status.PodIPs {
		errs = append(errs, validation.IP(ip.IP, at.Index(i))...)
		ips = append(ips, ip.IP)
	}
	if len(ips) > 1 && !oneOfEachFamily(ips) {
		errs = append(errs, field.Invalid(at, p.Status.PodIPs, "may specify no more than one IP for each IP family"))
	}
	switch {
	case (p.Status.PodIP == "") != (len(ips) == 0):
		errs = append(errs,
			field.Invalid(at, p.Status.PodIPs, "podIP and podIPs must either both be set or both be unset"))
	case len(ips) > 0 && p.Status.PodIP != ips[0]:
		errs = append(errs, field.Invalid(at.Index(0).Child("ip"), ips[0], "must be equal to `podIP`"))
	}
	return errs
}

func validateHostIPs(p *corev1.Pod, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	at = at.Child("hostIPs")
	var ips []string
	for i, ip := range p.Status.HostIPs {
		errs = append(errs, validation.IP(ip.IP, at.Index(i))...)
		ips = append(ips, ip.IP)
	}
	if len(ips) > 0 && p.Status.HostIP != ips[0] {
		errs = append(errs, field.Invalid(at.Index(0).Child("ip"), ips[0], "must be equal to `hostIP`"))
	}
	if len(ips) > 1 && !oneOfEachFamily(ips) {
		errs = append(errs, field.Invalid(at, p.Status.HostIPs, "may specify no more than one IP for each IP family"))
	}
	return errs
}

// oneOfEachFamily reports whether there are two addresses of different families.
func oneOfEachFamily(ips []string) bool {
	if len(ips) != 2 {
		return false
	}
	is4 := func(ip string) bool { parsed := net.ParseIP(ip); return parsed != nil && parsed.To4() != nil }
	return is4(ips[0]) != is4(ips[1])
}

// validateNoRevival: a container that has ended stays so when its pod is never to restart it. Those
// that are not among the containers, the ephemeral ones, never restart.
func validateNoRevival(
	statuses, old []corev1.ContainerStatus, spec *corev1.PodSpec, containers []corev1.Container, at *field.Path,
) field.ErrorList {
	var errs field.ErrorList
	for i, was := range old {
		t := was.State.Terminated
		if t == nil {
			continue
		}
		of := slices.IndexFunc(containers, func(c corev1.Container) bool { return c.Name == was.Name })
		if of >= 0 && podtemplate.Restarts(spec, &containers[of], t.ExitCode) {
			continue
		}
		for _, c := range statuses {
			if c.Name == was.Name && c.State.Terminated == nil {
				errs = append(errs,
					field.Forbidden(at.Index(i).Child("state"), "may not be transitioned to non-terminated state"))
			}
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
			errs = append(errs,
				field.Forbidden(at.Index(i),
					fmt.Sprintf("existing ephemeral containers %q may not be changed",
						old.Spec.EphemeralContainers[i].Name)))
		}
	}
	return errs
}

func podWarnings(_ context.Context, p, old *corev1.Pod) []string {
	if old != nil {
		return nil
	}
	return warn.Pod(p)
}

func podStatusWarnings(_ context.Context, p, _ *corev1.Pod) []string {
	var warnings []string
	at := field.NewPath("status")
	for i, ip := range p.Status.PodIPs {
		warnings = append(warnings, utilvalidation.GetWarningsForIP(at.Child("podIPs").Index(i).Child("ip"), ip.IP)...)
	}
	for i, ip := range p.Status.HostIPs {
		warnings = append(warnings, utilvalidation.GetWarningsForIP(at.Child("hostIPs").Index(i).Child("ip"), ip.IP)...)
	}
	return warnings
}
