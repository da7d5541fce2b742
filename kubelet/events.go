package kubelet

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
)

// podEvents records events of pods and of their containers.
type podEvents struct {
	recorder record.EventRecorder
}

// Event implements what packages pods and images declare.
func (e podEvents) Event(pod *v1.Pod, container *v1.Container, kind, reason, message string) {
	ref := &v1.ObjectReference{
		Kind: "Pod", APIVersion: "v1", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
		ResourceVersion: pod.ResourceVersion,
	}
	if container != nil {
		ref.FieldPath = fmt.Sprintf("spec.%s{%s}", listOf(pod, container.Name), container.Name)
	}
	e.recorder.Event(ref, kind, reason, message)
}

// listOf names the list of the pod's spec that a container is in.
func listOf(pod *v1.Pod, name string) string {
	for i := range pod.Spec.InitContainers {
		if pod.Spec.InitContainers[i].Name == name {
			return "initContainers"
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if pod.Spec.EphemeralContainers[i].Name == name {
			return "ephemeralContainers"
		}
	}
	return "containers"
}
