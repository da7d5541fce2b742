package runtimeconfig

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"
)

// TestSeccompDefault: the default is for containers without a profile, but not for privileged ones.
func TestSeccompDefault(t *testing.T) {
	unconfined := &v1.SeccompProfile{Type: v1.SeccompProfileTypeUnconfined}
	for name, try := range map[string]struct {
		on         bool
		pod, own   *v1.SeccompProfile
		privileged bool
		want       runtimeapi.SecurityProfile_ProfileType
	}{
		"off":                 {want: runtimeapi.SecurityProfile_Unconfined},
		"on":                  {on: true, want: runtimeapi.SecurityProfile_RuntimeDefault},
		"on, the pod's wish":  {on: true, pod: unconfined, want: runtimeapi.SecurityProfile_Unconfined},
		"on, the container's": {on: true, own: unconfined, want: runtimeapi.SecurityProfile_Unconfined},
		"on, privileged":      {on: true, privileged: true, want: runtimeapi.SecurityProfile_Unconfined},
		"off, the runtime's": {pod: &v1.SeccompProfile{Type: v1.SeccompProfileTypeRuntimeDefault},
			want: runtimeapi.SecurityProfile_RuntimeDefault},
		"privileged, runtime's": {pod: &v1.SeccompProfile{Type: v1.SeccompProfileTypeRuntimeDefault}, privileged: true,
			want: runtimeapi.SecurityProfile_Unconfined},
	} {
		t.Run(name, func(t *testing.T) {
			pod := podWith(v1.RestartPolicyAlways, "c")
			pod.Spec.SecurityContext = &v1.PodSecurityContext{SeccompProfile: try.pod}
			c := &pod.Spec.Containers[0]
			c.SecurityContext = &v1.SecurityContext{SeccompProfile: try.own, Privileged: ptr.To(try.privileged)}
			sc, err := containerSecurity(pod, c, "", (&Builder{SeccompDefault: try.on}).seccomp())
			if err != nil || sc.Seccomp.ProfileType != try.want {
				t.Errorf("%v %v, want %v", sc.Seccomp, err, try.want)
			}
		})
	}
}
