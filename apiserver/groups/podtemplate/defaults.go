package podtemplate

import (
	_ "crypto/sha512" // digests of images

	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// Default fills in the defaults of a template.
func Default(t *corev1.PodTemplateSpec) { DefaultSpec(&t.Spec) }

// DefaultSpec fills in the defaults that every pod spec gets, in a template or in a pod.
func DefaultSpec(spec *corev1.PodSpec) {
	setDefault(&spec.RestartPolicy, corev1.RestartPolicyAlways)
	setDefault(&spec.DNSPolicy, corev1.DNSClusterFirst)
	setDefault(&spec.SchedulerName, corev1.DefaultSchedulerName)
	setDefaultPtr(&spec.TerminationGracePeriodSeconds, int64(corev1.DefaultTerminationGracePeriodSeconds))
	setDefaultPtr(&spec.SecurityContext, corev1.PodSecurityContext{})
	// serviceAccount is the old name of serviceAccountName; both are always shown.
	setDefault(&spec.ServiceAccountName, spec.DeprecatedServiceAccount)
	spec.DeprecatedServiceAccount = spec.ServiceAccountName

	RoundUp(spec.Overhead)
	if spec.Resources != nil {
		RoundUp(spec.Resources.Limits)
		RoundUp(spec.Resources.Requests)
	}
	for i := range spec.Volumes {
		defaultVolume(&spec.Volumes[i])
	}
	for i := range spec.InitContainers {
		defaultContainer(&spec.InitContainers[i])
	}
	for i := range spec.Containers {
		defaultContainer(&spec.Containers[i])
	}
	for i := range spec.EphemeralContainers {
		c := corev1.Container(spec.EphemeralContainers[i].EphemeralContainerCommon)
		defaultContainer(&c)
		spec.EphemeralContainers[i].EphemeralContainerCommon = corev1.EphemeralContainerCommon(c)
	}
}

// DefaultPodSpec adds the defaults that a pod gets and a template does not.
func DefaultPodSpec(spec *corev1.PodSpec) {
	DefaultSpec(spec)
	setDefaultPtr(&spec.EnableServiceLinks, corev1.DefaultEnableServiceLinks)
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			defaultRequests(&containers[i].Resources)
			if spec.HostNetwork {
				defaultHostPorts(containers[i].Ports)
			}
		}
	}
}

// defaultRequests sets requests that are not set to the limits.
func defaultRequests(r *corev1.ResourceRequirements) {
	for name, limit := range r.Limits {
		if _, set := r.Requests[name]; set {
			continue
		}
		if r.Requests == nil {
			r.Requests = corev1.ResourceList{}
		}
		r.Requests[name] = limit.DeepCopy()
	}
}

// defaultHostPorts: on the host's network every port of a container is a port of the host.
func defaultHostPorts(ports []corev1.ContainerPort) {
	for i := range ports {
		setDefault(&ports[i].HostPort, ports[i].ContainerPort)
	}
}

func defaultContainer(c *corev1.Container) {
	setDefault(&c.ImagePullPolicy, PullPolicy(c.Image))
	setDefault(&c.TerminationMessagePath, corev1.TerminationMessagePathDefault)
	setDefault(&c.TerminationMessagePolicy, corev1.TerminationMessageReadFile)
	RoundUp(c.Resources.Limits)
	RoundUp(c.Resources.Requests)
	for i := range c.Ports {
		setDefault(&c.Ports[i].Protocol, corev1.ProtocolTCP)
	}
	for i := range c.Env {
		if from := c.Env[i].ValueFrom; from != nil {
			defaultFieldRef(from.FieldRef)
			if from.FileKeyRef != nil {
				setDefaultPtr(&from.FileKeyRef.Optional, false)
			}
		}
	}
	for _, probe := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		if probe != nil {
			defaultProbe(probe)
		}
	}
	if c.Lifecycle != nil {
		for _, h := range []*corev1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
			if h != nil {
				defaultHTTPGet(h.HTTPGet)
			}
		}
	}
}

func defaultProbe(p *corev1.Probe) {
	setDefault(&p.TimeoutSeconds, 1)
	setDefault(&p.PeriodSeconds, 10)
	setDefault(&p.SuccessThreshold, 1)
	setDefault(&p.FailureThreshold, 3)
	defaultHTTPGet(p.HTTPGet)
	if p.GRPC != nil {
		setDefaultPtr(&p.GRPC.Service, "")
	}
}

func defaultHTTPGet(get *corev1.HTTPGetAction) {
	if get == nil {
		return
	}
	setDefault(&get.Path, "/")
	setDefault(&get.Scheme, corev1.URISchemeHTTP)
}

func defaultFieldRef(ref *corev1.ObjectFieldSelector) {
	if ref != nil {
		setDefault(&ref.APIVersion, "v1")
	}
}

// PullPolicy is the default pull policy of an image. An image with the tag latest, or with neither
// tag nor digest, is always pulled. An invalid name gets IfNotPresent.
func PullPolicy(image string) corev1.PullPolicy {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return corev1.PullIfNotPresent
	}
	tagged, hasTag := named.(reference.Tagged)
	if hasTag && tagged.Tag() == "latest" || reference.IsNameOnly(named) {
		return corev1.PullAlways
	}
	return corev1.PullIfNotPresent
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func setDefaultPtr[T any](field **T, value T) {
	if *field == nil {
		*field = ptr.To(value)
	}
}
