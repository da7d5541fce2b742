package plugins

import (
	"math"

	v1 "k8s.io/api/core/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/barque/barque/scheduler/plugins/helper"
)

// scoring is a strategy that scores a node by how full its resources are.
type scoring struct {
	resources []configv1.ResourceSpec
	// of scores one resource in percent. used includes the pod; total is not zero.
	of func(used, total int64) int64
	// skipZero leaves resources that score nothing out of the mean.
	skipZero bool
}

func cpuAndMemory() []configv1.ResourceSpec {
	return []configv1.ResourceSpec{{Name: string(v1.ResourceCPU), Weight: 1},
		{Name: string(v1.ResourceMemory), Weight: 1}}
}

// newScoring builds a strategy from arguments that are valid.
func newScoring(s *configv1.ScoringStrategy) scoring {
	switch s.Type {
	case configv1.MostAllocated:
		return scoring{resources: s.Resources, of: helper.MostAllocated}
	case configv1.RequestedToCapacityRatio:
		return scoring{resources: s.Resources, of: helper.BrokenLine(s.RequestedToCapacityRatio.Shape), skipZero: true}
	default:
		return scoring{resources: s.Resources, of: leastAllocated}
	}
}

// score is the weighted mean over the resources that the node has. Extended resources count only
// for pods that ask for them.
func (s *scoring) score(r *request, node fwk.NodeInfo) int64 {
	var sum, weights int64
	for i := range s.resources {
		name := v1.ResourceName(s.resources[i].Name)
		// Pods that state nothing count with a guess, of CPU and memory alone.
		want, occupied := r.stated.Get(name), node.GetRequested()
		if name == v1.ResourceCPU || name == v1.ResourceMemory {
			want, occupied = r.nonZero.Get(name), node.GetNonZeroRequested()
		}
		total, used := amounts(node, occupied, name)
		if total == 0 || want == 0 && isScalar(name) {
			continue
		}
		score := s.of(used+want, total)
		if score == 0 && s.skipZero {
			continue
		}
		sum += score * s.resources[i].Weight
		weights += s.resources[i].Weight
	}
	switch {
	case weights == 0:
		return 0
	case s.skipZero:
		return int64(math.Round(float64(sum) / float64(weights)))
	default:
		return sum / weights
	}
}

// amounts returns how much of a resource the node has, and how much of it is in used.
func amounts(node fwk.NodeInfo, used fwk.Resource, name v1.ResourceName) (total, occupied int64) {
	return amount(node.GetAllocatable(), name), amount(used, name)
}

func amount(r fwk.Resource, name v1.ResourceName) int64 {
	switch name {
	case v1.ResourceCPU:
		return r.GetMilliCPU()
	case v1.ResourceMemory:
		return r.GetMemory()
	case v1.ResourceEphemeralStorage:
		return r.GetEphemeralStorage()
	default:
		return r.GetScalarResources()[name]
	}
}

// isScalar reports whether a resource is one that most pods do not use.
func isScalar(name v1.ResourceName) bool {
	return name != v1.ResourceCPU && name != v1.ResourceMemory && name != v1.ResourceEphemeralStorage
}

func leastAllocated(used, total int64) int64 {
	if used >= total {
		return 0
	}
	return helper.Percent(total-used, total)
}
