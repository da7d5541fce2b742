package podinfo

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// A limit that a container does not set is its pod's, or else the node's allocatable amount.
func TestResourceLimits(t *testing.T) {
	list := func(cpu, memory, storage string) v1.ResourceList {
		out := v1.ResourceList{}
		for name, amount := range map[v1.ResourceName]string{v1.ResourceCPU: cpu, v1.ResourceMemory: memory,
			v1.ResourceEphemeralStorage: storage} {
			if amount != "" {
				out[name] = resource.MustParse(amount)
			}
		}
		return out
	}
	node := list("8", "16", "32")
	for _, c := range []struct {
		own, pod              v1.ResourceList
		cpu, memory, storages string
	}{
		{nil, nil, "8", "16", "32"},
		{nil, list("4", "", ""), "4", "16", "32"},
		{list("2", "", ""), list("4", "5", "6"), "2", "5", "32"}, // a pod as a whole limits no storage
		{list("0", "1", "1"), list("4", "5", ""), "4", "1", "1"},
	} {
		pod := &v1.Pod{
			Spec: v1.PodSpec{
				Containers: []v1.Container{{Name: "c", Resources: v1.ResourceRequirements{Limits: c.own}}}}}
		if c.pod != nil {
			pod.Spec.Resources = &v1.ResourceRequirements{Limits: c.pod}
		}
		for name, want := range map[string]string{"cpu": c.cpu, "memory": c.memory, "ephemeral-storage": c.storages} {
			got, err := Resource(pod, &v1.ResourceFieldSelector{Resource: "limits." + name}, "c", node)
			if err != nil || got != want {
				t.Errorf("limits %v in a pod with %v: %s %s, %v, want %s", c.own, c.pod, name, got, err, want)
			}
		}
	}
}
