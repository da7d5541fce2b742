package pods

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/barque/barque/kubelet/pods/lifecycle"
)

// TestGraceOfProbes: the grace period of a probe counts when that probe ends the container, and for
// no other reason.
func TestGraceOfProbes(t *testing.T) {
	seconds := func(n int64) *int64 { return &n }
	pod := &v1.Pod{Spec: v1.PodSpec{TerminationGracePeriodSeconds: seconds(30), Containers: []v1.Container{{
		Name:          "c",
		LivenessProbe: &v1.Probe{TerminationGracePeriodSeconds: seconds(600)},
		StartupProbe:  &v1.Probe{TerminationGracePeriodSeconds: seconds(60)},
	}}}}
	w := &worker{phase: phaseSyncing}
	for trouble, want := range map[string]time.Duration{
		"": 30 * time.Second, "liveness": 10 * time.Minute, "startup": time.Minute,
		lifecycle.PostStartHook: 30 * time.Second,
	} {
		if got := w.graceFor(pod, lifecycle.Kill{Name: "c", Trouble: trouble}); got != want {
			t.Errorf("ended by %q: %v, want %v", trouble, got, want)
		}
	}
}
