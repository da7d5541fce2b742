package kubelet_test

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// TestRestartRules runs a pod, one container of which makes all start again, and one of which has a
// variable from a file that the first one has written.
func TestRestartRules(t *testing.T) {
	if !inNamespaces(t) {
		return
	}
	f := newFixture(t)
	f.start()
	pod := script("all", v1.RestartPolicyNever, []string{"echo init"},
		`[ -e /w/done ] && exec sleep 1000; echo "KEY='v'" > /w/env; touch /w/done; sleep 1; exit 42`,
		`echo E=$E; exec sleep 1000`)
	pod.Spec.Volumes = append(pod.Spec.Volumes,
		v1.Volume{Name: "w", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}})
	source := &pod.Spec.Containers[0]
	source.VolumeMounts = append(source.VolumeMounts, v1.VolumeMount{Name: "w", MountPath: "/w"})
	source.RestartPolicy = ptr.To(v1.ContainerRestartPolicyNever)
	source.RestartPolicyRules = []v1.ContainerRestartRule{{
		Action: v1.ContainerRestartRuleActionRestartAllContainers,
		ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: v1.ContainerRestartRuleOnExitCodesOpIn,
			Values: []int32{42}},
	}}
	pod.Spec.Containers[1].Env = []v1.EnvVar{{Name: "E", ValueFrom: &v1.EnvVarSource{
		FileKeyRef: &v1.FileKeySelector{VolumeName: "w", Path: "env", Key: "KEY", Optional: ptr.To(true)}}}}
	made := f.create(pod)
	f.eventually("all", "all containers run a second time", func(p *v1.Pod) bool {
		if p == nil || p.Status.Phase == v1.PodFailed {
			t.Fatalf("the pod has ended: %+v", p)
		}
		for _, s := range append(p.Status.ContainerStatuses, p.Status.InitContainerStatuses...) {
			if s.RestartCount != 1 || s.LastTerminationState.Terminated == nil || s.State.Waiting != nil {
				return false
			}
		}
		return p.Status.Phase == v1.PodRunning
	})
	if first, second := f.log(made, "c1", 0),
		f.log(made, "c1", 1); !strings.Contains(first, "E=\n") && !strings.Contains(first, "E=v") ||
		!strings.Contains(second, "E=v\n") {
		t.Errorf("the container with the variable said %q and then %q", first, second)
	}
}
