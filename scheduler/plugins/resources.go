package plugins

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/barque/barque/scheduler/framework"
)

const requestKey fwk.StateKey = FitName

// Fit places a pod only where what it asks for is free, and prefers the node with most left.
type Fit struct{}

// request is what the pod asks for.
type request struct {
	stated  *framework.Resource
	nonZero framework.Resource
}

// Clone returns the same: it does not change.
func (r *request) Clone() fwk.StateData { return r }

// requestOf returns what PreFilter noted, or works it out.
func requestOf(state fwk.CycleState, pod *v1.Pod) *request {
	if r, ok := framework.ReadState[*request](state, requestKey); ok {
		return r
	}
	// A pod whose affinity does not parse still has its requests.
	info, _ := framework.PodInfoOf(state, pod)
	return newRequest(info.CalculateResource())
}

func newRequest(r fwk.PodResource) *request {
	return &request{
		stated:  r.Resource.(*framework.Resource),
		nonZero: framework.Resource{MilliCPU: r.Non0CPU, Memory: r.Non0Mem},
	}
}

// Name of the plugin.
func (Fit) Name() string { return FitName }

// PreFilter sums up the request.
func (Fit) PreFilter(_ context.Context, state fwk.CycleState, pod *v1.Pod, _ []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	state.Write(requestKey, requestOf(state, pod))
	return nil, nil
}

// PreFilterExtensions is nil: Filter looks at the node it is given.
func (Fit) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// Filter rejects a node without room, naming each resource that it lacks.
func (Fit) Filter(_ context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	lacks, never := lacking(requestOf(state, pod).stated, node)
	switch {
	case len(lacks) == 0:
		return nil
	case never:
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, lacks...)
	default:
		return fwk.NewStatus(fwk.Unschedulable, lacks...)
	}
}

// lacking returns what keeps the request from fitting, and whether it would not fit on the empty
// node either.
func lacking(r *framework.Resource, node fwk.NodeInfo) (lacks []string, never bool) {
	total, used := node.GetAllocatable(), node.GetRequested()
	check := func(name v1.ResourceName, want, total, used int64) {
		if want > 0 && want > total-used {
			lacks = append(lacks, fmt.Sprintf("Insufficient %s", name))
			never = never || want > total
		}
	}
	if len(node.GetPods())+1 > total.GetAllowedPodNumber() {
		lacks = append(lacks, "Too many pods")
		never = total.GetAllowedPodNumber() == 0
	}
	check(v1.ResourceCPU, r.MilliCPU, total.GetMilliCPU(), used.GetMilliCPU())
	check(v1.ResourceMemory, r.Memory, total.GetMemory(), used.GetMemory())
	check(v1.ResourceEphemeralStorage, r.EphemeralStorage, total.GetEphemeralStorage(), used.GetEphemeralStorage())
	for name, want := range r.ScalarResources {
		check(name, want, total.GetScalarResources()[name], used.GetScalarResources()[name])
	}
	return lacks, never
}

// Score is the share of CPU and memory that stays free, with the pod counted in, in percent.
func (Fit) Score(_ context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) (int64, *fwk.Status) {
	r := requestOf(state, pod).nonZero
	total, used := node.GetAllocatable(), node.GetNonZeroRequested()
	return (freeShare(total.GetMilliCPU(), used.GetMilliCPU()+r.MilliCPU) +
		freeShare(total.GetMemory(), used.GetMemory()+r.Memory)) / 2, nil
}

func freeShare(total, used int64) int64 {
	if total <= 0 || used >= total {
		return 0
	}
	// As a fraction of a float: the product with 100 could overflow for absurd amounts.
	return int64(float64(total-used) / float64(total) * float64(fwk.MaxScore))
}

// ScoreExtensions is nil: scores are percentages already.
func (Fit) ScoreExtensions() fwk.ScoreExtensions { return nil }

// EventsToRegister names room that appears: on nodes, or because a pod ends, shrinks, or is made
// to ask for less.
func (Fit) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		hinted(fwk.Node, fwk.Add|fwk.UpdateNodeAllocatable, func(_ klog.Logger, pod *v1.Pod, _, n any) (fwk.QueueingHint, error) {
			node, ok := n.(*v1.Node)
			if !ok {
				return fwk.Queue, nil
			}
			empty := framework.NewNodeInfo()
			empty.SetNode(node)
			lacks, _ := lacking(newRequest(framework.PodResource(pod)).stated, empty)
			return hintIf(len(lacks) == 0)
		}),
		event(fwk.AssignedPod, fwk.Delete|fwk.UpdatePodScaleDown),
		event(fwk.TargetPod, fwk.UpdatePodScaleDown),
	}, nil
}

// Balanced prefers nodes whose CPU and memory are used in the same proportion, so that neither is
// left over without the other.
type Balanced struct{}

// Name of the plugin.
func (Balanced) Name() string { return BalancedName }

// PreScore skips pods that ask for neither.
func (Balanced) PreScore(_ context.Context, state fwk.CycleState, pod *v1.Pod, _ []fwk.NodeInfo) *fwk.Status {
	if r := requestOf(state, pod).stated; r.MilliCPU == 0 && r.Memory == 0 {
		return fwk.NewStatus(fwk.Skip)
	}
	return nil
}

// Score is 100 less the percentage by which the two proportions differ from their mean.
func (Balanced) Score(_ context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) (int64, *fwk.Status) {
	r := requestOf(state, pod).stated
	total, used := node.GetAllocatable(), node.GetRequested()
	cpu := usedShare(total.GetMilliCPU(), used.GetMilliCPU()+r.MilliCPU)
	memory := usedShare(total.GetMemory(), used.GetMemory()+r.Memory)
	deviation := max(cpu-memory, memory-cpu) / 2
	return int64((1 - deviation) * float64(fwk.MaxScore)), nil
}

func usedShare(total, used int64) float64 {
	if total <= 0 {
		return 0
	}
	return min(float64(used)/float64(total), 1)
}

// ScoreExtensions is nil: scores are percentages already.
func (Balanced) ScoreExtensions() fwk.ScoreExtensions { return nil }
