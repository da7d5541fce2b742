package admission

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestMirrorUses: a pod that claims to mirror a static manifest gives no access to secrets.
func TestMirrorUses(t *testing.T) {
	key := &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{Key: "k"}}
	containers := func(c corev1.Container) corev1.PodSpec { return corev1.PodSpec{Containers: []corev1.Container{c}} }
	volume := func(v corev1.VolumeSource) corev1.PodSpec {
		return corev1.PodSpec{Volumes: []corev1.Volume{{Name: "v", VolumeSource: v}}}
	}
	projected := func(p corev1.VolumeProjection) corev1.PodSpec {
		return volume(
			corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{p}}})
	}
	for name, c := range map[string]struct {
		spec corev1.PodSpec
		want string
	}{
		"nothing":         {corev1.PodSpec{}, ""},
		"a config map":    {volume(corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}), ""},
		"an account":      {corev1.PodSpec{ServiceAccountName: "a"}, "service accounts"},
		"a secret":        {volume(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}}), "secrets"},
		"in a projection": {projected(corev1.VolumeProjection{Secret: &corev1.SecretProjection{}}), "secrets"},
		"a token": {
			projected(corev1.VolumeProjection{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{}}), "tokens"},
		"to pull with": {corev1.PodSpec{ImagePullSecrets: []corev1.LocalObjectReference{{Name: "s"}}}, "secrets"},
		"a variable": {containers(corev1.Container{Env: []corev1.EnvVar{{Name: "E", ValueFrom: key}}}),
			"secrets"},
		"all variables": {
			containers(corev1.Container{EnvFrom: []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{}}}}),
			"secrets"},
		"at initialization": {
			corev1.PodSpec{InitContainers: []corev1.Container{{Env: []corev1.EnvVar{{Name: "E", ValueFrom: key}}}}},
			"secrets"},
	} {
		err := mirrorUses(&corev1.Pod{Spec: c.spec})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
