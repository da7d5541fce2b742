package evidence

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/clusterstatus/cis"
)

// probes are the pods of a dry run. The plain one meets the standard restricted; each other one
// breaks it in one way.
func probes() map[string]*corev1.Pod {
	out := map[string]*corev1.Pod{cis.ProbePlain: plainPod()}
	for name, change := range map[string]func(*corev1.PodSpec, *corev1.SecurityContext){
		cis.ProbePrivileged: func(_ *corev1.PodSpec, c *corev1.SecurityContext) {
			c.Privileged, c.AllowPrivilegeEscalation = ptr.To(true), nil
		},
		cis.ProbeHostPID:     func(p *corev1.PodSpec, _ *corev1.SecurityContext) { p.HostPID = true },
		cis.ProbeHostIPC:     func(p *corev1.PodSpec, _ *corev1.SecurityContext) { p.HostIPC = true },
		cis.ProbeHostNetwork: func(p *corev1.PodSpec, _ *corev1.SecurityContext) { p.HostNetwork = true },
		cis.ProbeEscalation:  func(_ *corev1.PodSpec, c *corev1.SecurityContext) { c.AllowPrivilegeEscalation = nil },
		cis.ProbeRoot: func(
			_ *corev1.PodSpec, c *corev1.SecurityContext,
		) {
			c.RunAsNonRoot, c.RunAsUser = nil, nil
		},
		cis.ProbeNetRaw: func(_ *corev1.PodSpec, c *corev1.SecurityContext) { c.Capabilities = nil },
		cis.ProbeCapabilities: func(_ *corev1.PodSpec, c *corev1.SecurityContext) {
			c.Capabilities.Drop = []corev1.Capability{"NET_RAW"}
		},
		cis.ProbeHostPath: func(p *corev1.PodSpec, _ *corev1.SecurityContext) {
			p.Volumes = []corev1.Volume{
				{Name: "host",
					VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/var/lib"}}}}
		},
		cis.ProbeHostPort: func(p *corev1.PodSpec, _ *corev1.SecurityContext) {
			p.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 8080, HostPort: 8080}}
		},
		cis.ProbeHostProcess: func(p *corev1.PodSpec, c *corev1.SecurityContext) {
			p.OS, p.HostNetwork = &corev1.PodOS{Name: corev1.Windows}, true
			*c = corev1.SecurityContext{RunAsNonRoot: ptr.To(true),
				WindowsOptions: &corev1.WindowsSecurityContextOptions{HostProcess: ptr.To(true)}}
		},
	} {
		pod := plainPod()
		change(&pod.Spec, pod.Spec.Containers[0].SecurityContext)
		out[name] = pod
	}
	return out
}

func plainPod() *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "barque-check-"}, Spec: corev1.PodSpec{
		AutomountServiceAccountToken: ptr.To(false),
		Containers: []corev1.Container{
			{Name: "c", Image: "barque.local/hello:1", SecurityContext: &corev1.SecurityContext{
				RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](65534), AllowPrivilegeEscalation: ptr.To(false),
				Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			}}},
	}}
}
