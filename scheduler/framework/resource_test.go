package framework

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// A pod-level request counts as the maximum of the spec, the allocated and the actual resources.
func TestResourceOfAPodAsAWhole(t *testing.T) {
	list := func(cpu string) v1.ResourceList { return v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)} }
	for _, c := range []struct {
		name              string
		wants, given, has string
		pending           string
		milli             int64
	}{
		{"at rest", "2", "2", "2", "", 2000},
		{"it shrinks", "1", "1", "3", "", 3000},
		{"it grows", "4", "2", "2", v1.PodReasonDeferred, 4000},
		{"it cannot grow", "40", "2", "2", v1.PodReasonInfeasible, 2000},
	} {
		pod := &v1.Pod{
			Spec: v1.PodSpec{Resources: &v1.ResourceRequirements{Requests: list(c.wants)},
				Containers: []v1.Container{{Name: "c"}}},
			Status: v1.PodStatus{AllocatedResources: list(c.given),
				Resources: &v1.ResourceRequirements{Requests: list(c.has)}}}
		if c.pending != "" {
			pod.Status.Conditions = []v1.PodCondition{
				{Type: v1.PodResizePending, Status: v1.ConditionTrue, Reason: c.pending}}
		}
		got := PodResource(pod)
		if got.Resource.GetMilliCPU() != c.milli || got.Non0CPU != c.milli {
			t.Errorf("%s: %d and %d, want %d", c.name, got.Resource.GetMilliCPU(), got.Non0CPU, c.milli)
		}
	}
}

// The overhead of a pod counts once, beside the allocated and the actual resources of its status.
func TestResourceWithOverhead(t *testing.T) {
	list := func(cpu string) v1.ResourceList { return v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)} }
	pod := &v1.Pod{
		Spec: v1.PodSpec{Overhead: list("250m"),
			Containers: []v1.Container{{Name: "c", Resources: v1.ResourceRequirements{Requests: list("1")}}}},
		Status: v1.PodStatus{AllocatedResources: list("1"), Resources: &v1.ResourceRequirements{Requests: list("3")}},
	}
	for _, want := range []int64{3250, 3250} {
		if got := PodResource(pod); got.Resource.GetMilliCPU() != want || got.Non0CPU != want {
			t.Errorf("%d and %d, want %d", got.Resource.GetMilliCPU(), got.Non0CPU, want)
		}
		pod.Spec.Resources = &v1.ResourceRequirements{Requests: list("2")}
	}
}
