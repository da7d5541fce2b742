package metrics

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/barque/barque/kubelet/pods"
)

// TestTerminations: a container that ends counts once, however often its status is written, also if
// its successor runs or waits by then.
func TestTerminations(t *testing.T) {
	m := New()
	writer := m.Status(discard{})
	ended := func(id string, code int32, reason string) v1.ContainerState {
		return v1.ContainerState{
			Terminated: &v1.ContainerStateTerminated{ContainerID: id, ExitCode: code, Reason: reason}}
	}
	of := func(states ...v1.ContainerStatus) v1.PodStatus {
		return v1.PodStatus{Phase: v1.PodRunning, ContainerStatuses: states}
	}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "1"}}
	// Before this kubelet there was a container that ended.
	pod.Status = of(v1.ContainerStatus{Name: "web", LastTerminationState: ended("w1", 137, "OOMKilled")})
	writer.Set(pod, pod.Status)
	crashed := of(
		v1.ContainerStatus{Name: "web", State: ended("w2", 139, "Error"),
			LastTerminationState: ended("w1", 137, "OOMKilled")})
	crashed.InitContainerStatuses = []v1.ContainerStatus{{Name: "init", State: ended("i1", 0, "Completed")}}
	writer.Set(pod, crashed)
	writer.Set(pod, crashed)
	waiting := of(v1.ContainerStatus{Name: "web", LastTerminationState: ended("w2", 139, "Error")})
	waiting.InitContainerStatuses = crashed.InitContainerStatuses
	writer.Set(pod, waiting)
	again := of(v1.ContainerStatus{Name: "web", LastTerminationState: ended("w3", 139, "Error")})
	again.InitContainerStatuses = crashed.InitContainerStatuses
	again.EphemeralContainerStatuses = []v1.ContainerStatus{
		{Name: "debug", State: ended("", 137, "ContainerStatusUnknown")}}
	writer.Set(pod, again)
	writer.Set(pod, again)
	const want = `
# HELP kubelet_terminated_containers_total Containers that ended, by kind, exit code and reason.
# TYPE kubelet_terminated_containers_total counter
kubelet_terminated_containers_total{container_type="container",exit_code="139",reason="Error"} 2
kubelet_terminated_containers_total{container_type="ephemeral_container",exit_code="137",reason="ContainerStatusUnknown"} 1
kubelet_terminated_containers_total{container_type="init_container",exit_code="0",reason="Completed"} 1
`
	expect(t, m, want, "kubelet_terminated_containers_total")
	writer.Forget(pod.UID)
	if len(m.terminations.ends) > 0 {
		t.Error("a pod that is gone is remembered")
	}
}

type discard struct{ pods.StatusWriter }

func (discard) Set(*v1.Pod, v1.PodStatus) {}
func (discard) Forget(types.UID)          {}
