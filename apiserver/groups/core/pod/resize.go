package pod

import (
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/groups/podtemplate"
)

// PrepareResize restores all that a resize does not change: everything but the resources of the
// pod and its containers, and their policies of resizing. A list of other containers stays as it
// is, for validation to refuse.
func PrepareResize(p, old *corev1.Pod) {
	if !sameContainers(p.Spec.InitContainers, old.Spec.InitContainers) ||
		!sameContainers(p.Spec.Containers, old.Spec.Containers) {
		return
	}
	wanted := p.Spec
	p.Spec, p.Status = *old.Spec.DeepCopy(), *old.Status.DeepCopy()
	takeResources(p.Spec.InitContainers, wanted.InitContainers)
	takeResources(p.Spec.Containers, wanted.Containers)
	if wanted.Resources != nil {
		// A client without the field of resources of whole pods sends none, and means no change.
		p.Spec.Resources = wanted.Resources
	}
	defaultPodResources(p)
}

func sameContainers(a, b []corev1.Container) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Name != b[i].Name {
			return false
		}
	}
	return true
}

func takeResources(containers, from []corev1.Container) {
	for i := range containers {
		containers[i].Resources, containers[i].ResizePolicy = from[i].Resources, from[i].ResizePolicy
	}
}

// ValidateResize checks a write to the resize subresource: how much CPU and memory there is may
// change, and nothing else.
func ValidateResize(p, old *corev1.Pod) field.ErrorList {
	at := field.NewPath("spec")
	errs := podtemplate.ValidateSpec(&p.Spec, at)
	if _, static := old.Annotations[corev1.MirrorPodAnnotationKey]; static {
		return field.ErrorList{field.Forbidden(field.NewPath(""), "static pods cannot be resized")}
	}
	if old.Spec.OS != nil && old.Spec.OS.Name == corev1.Windows {
		return field.ErrorList{field.Forbidden(field.NewPath(""), "windows pods cannot be resized")}
	}
	class := old.Status.QOSClass
	if class == "" {
		class = podtemplate.QOSClass(&old.Spec)
	}
	if podtemplate.QOSClass(&p.Spec) != class {
		errs = append(errs,
			field.Invalid(at, p.Status.QOSClass, "Pod QOS Class may not change as a result of resizing"))
	}
	if !resizable(old) {
		errs = append(errs, field.Forbidden(at, "Pod running on node without support for resize"))
	}
	masked := p.Spec.DeepCopy()
	errs = append(errs, validatePodResources(masked, &old.Spec, at)...)
	if wrong := validateOrder(&p.Spec, &old.Spec, at); len(wrong) > 0 {
		return append(errs, wrong...)
	}
	errs = append(errs, resizeInitContainers(masked.InitContainers, old.Spec.InitContainers, at)...)
	errs = append(errs, resizeContainers(masked.Containers, old.Spec.Containers, at)...)
	if !apiequality.Semantic.DeepEqual(p.Spec.Volumes, old.Spec.Volumes) {
		errs = append(errs,
			field.Forbidden(at.Child("volumes"),
				"volumes are immutable on resize when InPlacePodVerticalScalingMemoryBackedVolumes feature gate is disabled"))
	}
	if len(errs) == 0 && !apiequality.Semantic.DeepEqual(masked, &old.Spec) {
		errs = append(errs, field.Forbidden(at, onlyAmounts))
	}
	return errs
}

const onlyAmounts = "only cpu and memory resources are mutable"

// resizable reports whether the pod's node reports the actual resources of containers, as nodes do
// that can change them. Before a container runs, they are not known.
func resizable(p *corev1.Pod) bool {
	for i := range p.Status.ContainerStatuses {
		if s := &p.Status.ContainerStatuses[i]; s.State.Running != nil {
			return s.Resources != nil
		}
	}
	return true
}

// validatePodResources checks the resources of the pod as a whole, and sets CPU and memory in
// masked to the old values.
func validatePodResources(masked, old *corev1.PodSpec, at *field.Path) field.ErrorList {
	if !hasResources(masked) && !hasResources(old) {
		return nil
	}
	if old.Resources != nil && masked.Resources == nil {
		return field.ErrorList{field.Forbidden(at.Child("resources"), "pod-level resources cannot be removed")}
	}
	var errs field.ErrorList
	was := ptr.Deref(old.Resources, corev1.ResourceRequirements{})
	if removed(masked.Resources.Requests, was.Requests) {
		errs = append(errs,
			field.Forbidden(at.Child("resources", "requests"), "pod-level resource requests cannot be removed"))
	}
	if removed(masked.Resources.Limits, was.Limits) {
		errs = append(errs,
			field.Forbidden(at.Child("resources", "limits"), "pod-level resource limits cannot be removed"))
	}
	mask(masked.Resources, &was)
	if old.Resources == nil &&
		len(masked.Resources.Requests)+len(masked.Resources.Limits)+len(masked.Resources.Claims) == 0 {
		masked.Resources = nil
	}
	if !apiequality.Semantic.DeepEqual(masked.Resources, old.Resources) {
		errs = append(errs, field.Forbidden(at, "only cpu and memory resources are mutable at pod-level"))
	}
	return errs
}

func hasResources(spec *corev1.PodSpec) bool {
	return spec.Resources != nil && len(spec.Resources.Requests)+len(spec.Resources.Limits) > 0
}

// validateOrder refuses other containers, and containers in another order.
func validateOrder(spec, old *corev1.PodSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, list := range []struct {
		name     string
		new, old []corev1.Container
	}{{"containers", spec.Containers, old.Containers}, {"initContainers", spec.InitContainers, old.InitContainers}} {
		if len(list.new) != len(list.old) {
			errs = append(errs,
				field.Forbidden(at.Child(list.name), list.name+" may not be added or removed on resize"))
			continue
		}
		for i := range list.new {
			if list.new[i].Name != list.old[i].Name {
				errs = append(errs,
					field.Forbidden(at.Child(list.name).Index(i).Child("name"),
						list.name+" may not be renamed or reordered on resize"))
			}
		}
	}
	return errs
}

// resizeContainers checks changes in containers, and sets CPU and memory to the old values.
func resizeContainers(containers, old []corev1.Container, spec *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range containers {
		c, was := &containers[i], &old[i]
		errs = append(errs,
			validateKept(&c.Resources, &was.Resources, spec.Child("containers").Index(i).Child("resources"))...)
		mask(&c.Resources, &was.Resources)
		if !apiequality.Semantic.DeepEqual(c, was) {
			errs = append(errs, field.Forbidden(spec, onlyAmounts))
		}
	}
	return errs
}

// resizeInitContainers is resizeContainers for init containers.
func resizeInitContainers(containers, old []corev1.Container, spec *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range containers {
		c, was, at := &containers[i], &old[i], spec.Child("initContainers").Index(i)
		errs = append(errs, validateKept(&c.Resources, &was.Resources, at.Child("resources"))...)
		mask(&c.Resources, &was.Resources)
		if !apiequality.Semantic.DeepEqual(c, was) {
			errs = append(errs,
				field.Forbidden(at, "only cpu and memory resources for init or sidecar containers are mutable"))
		}
	}
	return errs
}

// validateKept refuses to remove a request or limit.
func validateKept(r, old *corev1.ResourceRequirements, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if removed(r.Requests, old.Requests) {
		errs = append(errs, field.Forbidden(at.Child("requests"), "resource requests cannot be removed"))
	}
	if removed(r.Limits, old.Limits) {
		errs = append(errs, field.Forbidden(at.Child("limits"), "resource limits cannot be removed"))
	}
	return errs
}

func removed(list, old corev1.ResourceList) bool {
	for name := range old {
		if _, ok := list[name]; !ok {
			return true
		}
	}
	return false
}

// mask sets CPU and memory to the old values, so that a comparison shows other differences.
func mask(r, old *corev1.ResourceRequirements) {
	r.Requests, r.Limits = maskList(r.Requests, old.Requests), maskList(r.Limits, old.Limits)
}

func maskList(list, old corev1.ResourceList) corev1.ResourceList {
	out := corev1.ResourceList{}
	for name, q := range list {
		if name != corev1.ResourceCPU && name != corev1.ResourceMemory {
			out[name] = q
		}
	}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if q, ok := old[name]; ok {
			out[name] = q
		}
	}
	return out
}
