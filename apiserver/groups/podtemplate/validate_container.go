package podtemplate

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/barque/barque/apiserver/groups/validation"
)

// EachContainer calls f with each container of all three sorts, and its path below at.
func EachContainer(spec *corev1.PodSpec, at *field.Path, f func(c *corev1.Container, at *field.Path)) {
	for i := range spec.InitContainers {
		f(&spec.InitContainers[i], at.Child("initContainers").Index(i))
	}
	for i := range spec.Containers {
		f(&spec.Containers[i], at.Child("containers").Index(i))
	}
	for i := range spec.EphemeralContainers {
		c := corev1.Container(spec.EphemeralContainers[i].EphemeralContainerCommon)
		f(&c, at.Child("ephemeralContainers").Index(i))
	}
}

// validateContainers checks all containers of the spec, and that their names differ.
func (c *checker) validateContainers(at *field.Path) field.ErrorList {
	var errs field.ErrorList
	names := map[string]bool{}
	unique := func(name string, at *field.Path) {
		if names[name] {
			errs = append(errs, field.Duplicate(at.Child("name"), name))
		}
	}
	if len(c.spec.Containers) == 0 {
		errs = append(errs, field.Required(at.Child("containers"), ""))
	}
	ports := map[string]bool{}
	for i := range c.spec.Containers {
		container, at := &c.spec.Containers[i], at.Child("containers").Index(i)
		errs = append(errs, c.validateContainer(container, at)...)
		errs = append(errs, c.validateProbes(container, at)...)
		errs = append(errs, c.validateLifecycle(container, at)...)
		errs = append(errs, hostPortConflicts(container, ports, at.Child("ports"))...)
		errs = append(errs, c.hostPorts(container, at.Child("ports"))...)
		errs = append(errs, validateRestarts(container, at)...)
		unique(container.Name, at)
		names[container.Name] = true
	}
	for i := range c.spec.InitContainers {
		container, at := &c.spec.InitContainers[i], at.Child("initContainers").Index(i)
		errs = append(errs, c.validateInitContainer(container, at)...)
		unique(container.Name, at)
		if container.Name != "" {
			names[container.Name] = true
		}
	}
	for i := range c.spec.EphemeralContainers {
		container, at := &c.spec.EphemeralContainers[i], at.Child("ephemeralContainers").Index(i)
		errs = append(errs, c.validateEphemeralContainer(container, at)...)
		unique(container.Name, at)
		names[container.Name] = true
	}
	return errs
}

// validateInitContainer checks a container that runs to its end before the others start, or, with
// restartPolicy Always, beside them.
func (c *checker) validateInitContainer(container *corev1.Container, at *field.Path) field.ErrorList {
	errs := c.validateContainer(container, at)
	errs = append(errs, validateRestarts(container, at)...)
	errs = append(errs, hostPortConflicts(container, map[string]bool{}, at.Child("ports"))...)
	if container.RestartPolicy != nil && *container.RestartPolicy == corev1.ContainerRestartPolicyAlways {
		errs = append(errs, c.validateProbes(container, at)...)
		return append(errs, c.validateLifecycle(container, at)...)
	}
	const only = "may not be set for init containers without restartPolicy=Always"
	for i, p := range container.ResizePolicy {
		if p.RestartPolicy == corev1.RestartContainer {
			errs = append(errs,
				field.Invalid(at.Child("resizePolicy").Index(i).Child("restartPolicy"), p.RestartPolicy,
					"must not be set to 'RestartContainer' for non-sidecar initContainers"))
		}
	}
	return append(errs, forbid(at, only,
		named{"livenessProbe", container.LivenessProbe != nil},
		named{"readinessProbe", container.ReadinessProbe != nil},
		named{"startupProbe", container.StartupProbe != nil},
		named{"lifecycle", container.Lifecycle != nil})...)
}

// validateEphemeralContainer checks a container added to a running pod: it gets no guarantees.
func (c *checker) validateEphemeralContainer(e *corev1.EphemeralContainer, at *field.Path) field.ErrorList {
	container := corev1.Container(e.EphemeralContainerCommon)
	errs := c.validateContainer(&container, at)
	errs = append(errs, ValidateImage(container.Image, at.Child("image"))...)
	resources := &container.Resources
	errs = append(errs, forbid(at, "cannot be set for an Ephemeral Container",
		named{"ports", container.Ports != nil},
		named{"livenessProbe", container.LivenessProbe != nil},
		named{"readinessProbe", container.ReadinessProbe != nil},
		named{"startupProbe", container.StartupProbe != nil},
		named{"lifecycle", container.Lifecycle != nil},
		named{"resources", len(resources.Limits)+len(resources.Requests)+len(resources.Claims) > 0},
		named{"resizePolicy", container.ResizePolicy != nil},
		named{"restartPolicy", container.RestartPolicy != nil},
		named{"restartPolicyRules", len(container.RestartPolicyRules) > 0})...)
	for i, mount := range container.VolumeMounts {
		errs = append(errs, forbid(at.Child("volumeMounts").Index(i), "cannot be set for an Ephemeral Container",
			named{"subPath", mount.SubPath != ""}, named{"subPathExpr", mount.SubPathExpr != ""})...)
	}
	if e.TargetContainerName == "" {
		return errs
	}
	for _, containers := range [][]corev1.Container{c.spec.Containers, c.spec.InitContainers} {
		for _, other := range containers {
			if other.Name == e.TargetContainerName {
				return errs
			}
		}
	}
	return append(errs, field.NotFound(at.Child("targetContainerName"), e.TargetContainerName))
}

// named is a field that may be set.
type named struct {
	name string
	set  bool
}

// forbid reports the given fields that are set.
func forbid(at *field.Path, why string, fields ...named) field.ErrorList {
	var errs field.ErrorList
	for _, f := range fields {
		if f.set {
			errs = append(errs, field.Forbidden(at.Child(f.name), why))
		}
	}
	return errs
}

// validateContainer checks the rules that all types of containers have in common.
func (c *checker) validateContainer(container *corev1.Container, at *field.Path) field.ErrorList {
	errs := validation.DNSLabel(container.Name, at.Child("name"))
	if container.Image == "" {
		errs = append(errs, field.Required(at.Child("image"), ""))
	}
	errs = append(errs, validation.Enum(container.ImagePullPolicy, at.Child("imagePullPolicy"),
		corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever)...)
	errs = append(errs, validation.Enum(container.TerminationMessagePolicy, at.Child("terminationMessagePolicy"),
		corev1.TerminationMessageReadFile, corev1.TerminationMessageFallbackToLogsOnError)...)
	errs = append(errs, validatePorts(container.Ports, at.Child("ports"))...)
	errs = append(errs, c.validateEnv(container.Env, at.Child("env"))...)
	errs = append(errs, validateEnvFrom(container.EnvFrom, at.Child("envFrom"))...)
	errs = append(errs, c.validateMounts(container, at.Child("volumeMounts"))...)
	errs = append(errs, c.validateDevices(container, at.Child("volumeDevices"))...)
	errs = append(errs, validation.ResourceRequirements(&container.Resources, c.claims, at.Child("resources"))...)
	errs = append(errs, validateResizePolicy(container.ResizePolicy, c.spec.RestartPolicy, at.Child("resizePolicy"))...)
	errs = append(errs, validateSecurityContext(container.SecurityContext, c.spec, at.Child("securityContext"))...)
	return errs
}

// ValidateImage checks the image of a container of a pod. In a template anything may stand for an
// image, to be replaced later.
func ValidateImage(image string, at *field.Path) field.ErrorList {
	if strings.TrimSpace(image) != image {
		return field.ErrorList{field.Invalid(at, image, "must not have leading or trailing whitespace")}
	}
	return nil
}

func validatePorts(ports []corev1.ContainerPort, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	names := map[string]bool{}
	for i, p := range ports {
		at := at.Index(i)
		if p.Name != "" {
			if bad := validation.Check(p.Name, at.Child("name"), utilvalidation.IsValidPortName); len(bad) > 0 {
				errs = append(errs, bad...)
			} else if names[p.Name] {
				errs = append(errs, field.Duplicate(at.Child("name"), p.Name))
			}
			names[p.Name] = true
		}
		if p.ContainerPort == 0 {
			errs = append(errs, field.Required(at.Child("containerPort"), ""))
		} else {
			errs = append(errs, validation.Port(p.ContainerPort, at.Child("containerPort"))...)
		}
		if p.HostPort != 0 {
			errs = append(errs, validation.Port(p.HostPort, at.Child("hostPort"))...)
		}
		errs = append(errs,
			validation.Enum(p.Protocol, at.Child("protocol"), corev1.ProtocolTCP, corev1.ProtocolUDP,
				corev1.ProtocolSCTP)...)
	}
	return errs
}

// hostPorts demands that the host ports of a container on the host's network are its
// container ports.
func (c *checker) hostPorts(container *corev1.Container, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, p := range container.Ports {
		if c.spec.HostNetwork && p.HostPort != 0 && p.HostPort != p.ContainerPort {
			errs = append(errs,
				field.Invalid(at.Index(i).Child("hostPort"), p.HostPort,
					"must match `containerPort` when `hostNetwork` is true"))
		}
	}
	return errs
}

// hostPortConflicts reports ports of the host that are already in use.
func hostPortConflicts(container *corev1.Container, used map[string]bool, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, p := range container.Ports {
		if p.HostPort == 0 {
			continue
		}
		key := fmt.Sprintf("%s/%s/%d", p.Protocol, p.HostIP, p.HostPort)
		if used[key] {
			errs = append(errs, field.Duplicate(at.Index(i).Child("hostPort"), key))
		}
		used[key] = true
	}
	return errs
}

func validateResizePolicy(
	policies []corev1.ContainerResizePolicy, restart corev1.RestartPolicy, at *field.Path,
) field.ErrorList {
	var errs field.ErrorList
	seen := map[corev1.ResourceName]bool{}
	for i, p := range policies {
		if seen[p.ResourceName] {
			errs = append(errs, field.Duplicate(at.Index(i), p.ResourceName))
		}
		seen[p.ResourceName] = true
		errs = append(errs, validation.Enum(p.ResourceName, at, corev1.ResourceCPU, corev1.ResourceMemory)...)
		errs = append(errs, validation.Enum(p.RestartPolicy, at, corev1.NotRequired, corev1.RestartContainer)...)
		if restart == corev1.RestartPolicyNever && p.RestartPolicy != corev1.NotRequired {
			errs = append(errs,
				field.Invalid(at, p.RestartPolicy, "must be 'NotRequired' when pod `restartPolicy` is 'Never'"))
		}
	}
	return errs
}
