package plugins

import (
	"context"
	"fmt"
	"math"
	"strings"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/barque/barque/scheduler/devices"
	"github.com/barque/barque/scheduler/framework"
	"github.com/barque/barque/scheduler/plugins/helper"
	"github.com/barque/barque/scheduler/plugins/names"
)

const requestKey fwk.StateKey = names.NodeResourcesFit

// Fit accepts nodes with enough free resources for the pod's requests. It prefers nodes by a
// scoring strategy, by default those with most left.
type Fit struct {
	scoring scoring
	// ignored are extended resources, and ignoredGroups domains of such resources, that extenders
	// manage.
	ignored, ignoredGroups sets.Set[string]
	devices                *devices.Devices
}

func newFit(h *framework.Handle) (fwk.Plugin, error) {
	args, err := framework.ArgsOf[*configv1.NodeResourcesFitArgs](h)
	if args == nil || err != nil {
		return &Fit{scoring: scoring{resources: cpuAndMemory(), of: leastAllocated}, devices: h.Devices}, err
	}
	return &Fit{
		scoring:       newScoring(args.ScoringStrategy),
		ignored:       sets.New(args.IgnoredResources...),
		ignoredGroups: sets.New(args.IgnoredResourceGroups...),
		devices:       h.Devices,
	}, nil
}

// request has the pod's requests.
type request struct {
	stated  *framework.Resource
	nonZero framework.Resource
}

// Clone returns the same: it does not change.
func (r *request) Clone() fwk.StateData { return r }

// requestOf returns the request that PreFilter stored, or computes it.
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
func (*Fit) Name() string { return names.NodeResourcesFit }

// PreFilter sums up the request.
func (*Fit) PreFilter(
	_ context.Context, state fwk.CycleState, pod *v1.Pod, _ []fwk.NodeInfo,
) (*fwk.PreFilterResult, *fwk.Status) {
	state.Write(requestKey, requestOf(state, pod))
	return nil, nil
}

// PreFilterExtensions is nil: Filter looks at the node it is given.
func (*Fit) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// Filter rejects a node without room, naming each resource that it lacks.
func (f *Fit) Filter(_ context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	lacks, never := f.lacking(requestOf(state, pod).stated, node)
	switch {
	case len(lacks) == 0:
		return nil
	case never:
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, lacks...)
	default:
		return fwk.NewStatus(fwk.Unschedulable, lacks...)
	}
}

// lacking returns the resources that the node lacks, and whether the request would exceed the empty
// node too.
func (f *Fit) lacking(r *framework.Resource, node fwk.NodeInfo) (lacks []string, never bool) {
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
		if f.ignores(name) || (total.GetScalarResources()[name] == 0 && f.byDevices(name)) {
			continue
		}
		check(name, want, total.GetScalarResources()[name], used.GetScalarResources()[name])
	}
	return lacks, never
}

// byDevices reports whether a DeviceClass stands for the resource. On a node without a device
// plugin for it, DynamicResources allocates the devices.
func (f *Fit) byDevices(name v1.ResourceName) bool {
	return f.devices != nil && framework.IsDeviceResource(name) && f.devices.ByResource.GetDeviceClass(name) != nil
}

func (f *Fit) ignores(name v1.ResourceName) bool {
	if len(f.ignored)+len(f.ignoredGroups) == 0 || !framework.IsExtendedResource(name) {
		return false
	}
	group, _, _ := strings.Cut(string(name), "/")
	return f.ignored.Has(string(name)) || f.ignoredGroups.Has(group)
}

// Score returns the strategy's score of the node with the pod counted in.
func (f *Fit) Score(_ context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) (int64, *fwk.Status) {
	return f.scoring.score(requestOf(state, pod), node), nil
}

// ScoreExtensions is nil: scores are percentages already.
func (*Fit) ScoreExtensions() fwk.ScoreExtensions { return nil }

// EventsToRegister names room that appears: on nodes, or because a pod ends, shrinks, or is made
// to ask for less.
func (f *Fit) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		helper.Hinted(fwk.Node, fwk.Add|fwk.UpdateNodeAllocatable,
			func(_ klog.Logger, pod *v1.Pod, _, n any) (fwk.QueueingHint, error) {
				node, ok := n.(*v1.Node)
				if !ok {
					return fwk.Queue, nil
				}
				empty := framework.NewNodeInfo()
				empty.SetNode(node)
				lacks, _ := f.lacking(newRequest(framework.PodResource(pod)).stated, empty)
				return helper.HintIf(len(lacks) == 0)
			}),
		helper.Event(fwk.AssignedPod, fwk.Delete|fwk.UpdatePodScaleDown),
		helper.Event(fwk.TargetPod, fwk.UpdatePodScaleDown),
		helper.Hinted(fwk.DeviceClass, fwk.Add|fwk.Update,
			func(_ klog.Logger, pod *v1.Pod, _, changed any) (fwk.QueueingHint, error) {
				class, ok := changed.(*resourcev1.DeviceClass)
				return helper.HintIf(!ok || standsFor(class, framework.PodResource(pod).Resource.GetScalarResources()))
			}),
	}, nil
}

// standsFor reports whether a class stands for one of the resources.
func standsFor(class *resourcev1.DeviceClass, resources map[v1.ResourceName]int64) bool {
	if resources[v1.ResourceName(resourcev1.ResourceDeviceClassPrefix+class.Name)] > 0 {
		return true
	}
	name := class.Spec.ExtendedResourceName
	return name != nil && resources[v1.ResourceName(*name)] > 0
}

// Balanced prefers nodes whose resources are used in the same proportion, so that none is left
// over without the others. CPU and memory count, unless its arguments name others.
type Balanced struct{ resources []configv1.ResourceSpec }

func newBalanced(h *framework.Handle) (fwk.Plugin, error) {
	args, err := framework.ArgsOf[*configv1.NodeResourcesBalancedAllocationArgs](h)
	if args == nil || err != nil {
		return &Balanced{cpuAndMemory()}, err
	}
	return &Balanced{args.Resources}, nil
}

// Name of the plugin.
func (*Balanced) Name() string { return names.NodeResourcesBalancedAllocation }

// PreScore skips pods that ask for none of the resources.
func (b *Balanced) PreScore(_ context.Context, state fwk.CycleState, pod *v1.Pod, _ []fwk.NodeInfo) *fwk.Status {
	r := requestOf(state, pod).stated
	for i := range b.resources {
		if r.Get(v1.ResourceName(b.resources[i].Name)) > 0 {
			return nil
		}
	}
	return fwk.NewStatus(fwk.Skip)
}

// Score is 100 less the standard deviation of the proportions, in percent.
func (b *Balanced) Score(_ context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) (int64, *fwk.Status) {
	r := requestOf(state, pod).stated
	var buffer [4]float64 // mostly enough to stay off the heap
	shares, sum := buffer[:0], 0.0
	for i := range b.resources {
		name := v1.ResourceName(b.resources[i].Name)
		want := r.Get(name)
		total, used := amounts(node, node.GetRequested(), name)
		if total == 0 || want == 0 && isScalar(name) {
			continue
		}
		share := min(float64(used+want)/float64(total), 1)
		shares, sum = append(shares, share), sum+share
	}
	return int64((1 - deviation(shares, sum)) * float64(fwk.MaxScore)), nil
}

// deviation is the standard deviation of shares, whose sum is given.
func deviation(shares []float64, sum float64) float64 {
	switch len(shares) {
	case 0, 1:
		return 0
	case 2:
		return math.Abs(shares[0]-shares[1]) / 2
	}
	mean, squares := sum/float64(len(shares)), 0.0
	for _, s := range shares {
		squares += (s - mean) * (s - mean)
	}
	return math.Sqrt(squares / float64(len(shares)))
}

// ScoreExtensions is nil: scores are percentages already.
func (*Balanced) ScoreExtensions() fwk.ScoreExtensions { return nil }
