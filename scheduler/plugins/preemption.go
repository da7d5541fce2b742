package plugins

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/barque/barque/scheduler/framework"
)

// Preemption makes room for a pod that fits nowhere, by evicting pods of lower priority from the
// node where that does the least harm. It nominates the node: the pod is tried again as others
// vanish. Disruption budgets are not looked at.
type Preemption struct{ h *framework.Handle }

func newPreemption(h *framework.Handle) (fwk.Plugin, error) { return &Preemption{h}, nil }

// Name of the plugin.
func (*Preemption) Name() string { return PreemptionName }

// victims is the price of one node.
type victims struct {
	node string
	pods []*v1.Pod // the most important first
}

// PostFilter evicts pods from the cheapest node, if there is one.
func (p *Preemption) PostFilter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, why fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	if pod.Spec.PreemptionPolicy != nil && *pod.Spec.PreemptionPolicy == v1.PreemptNever {
		return nil, fwk.NewStatus(fwk.Unschedulable, "preemption: not eligible due to preemptionPolicy=Never.")
	}
	if node := p.h.Nominator.Node(pod.UID); node != "" && p.stillLeaving(node, pod) {
		return nominate(node), nil
	}
	nodes, err := why.NodesForStatusCode(p.h.NodeInfos, fwk.Unschedulable)
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	found := make([]*victims, len(nodes))
	p.h.Parallel.Each(len(nodes), func(i int) {
		found[i] = p.victimsOn(ctx, state.Clone(), pod, nodes[i].(*framework.NodeInfo).Clone())
	})
	found = slices.DeleteFunc(found, func(v *victims) bool { return v == nil })
	if len(found) == 0 {
		return nil, fwk.NewStatus(fwk.Unschedulable,
			fmt.Sprintf("preemption: no victims on %d node(s) would make room for the pod.", len(nodes)))
	}
	best := slices.MinFunc(found, compareVictims)
	for _, v := range best.pods {
		if v.DeletionTimestamp == nil {
			p.h.Evict(v, pod)
		}
	}
	return nominate(best.node), nil
}

func nominate(node string) *fwk.PostFilterResult {
	return &fwk.PostFilterResult{NominatingInfo: &fwk.NominatingInfo{NominatedNodeName: node, NominatingMode: fwk.ModeOverride}}
}

// stillLeaving tells whether victims of an earlier round are on their way out of the node; to
// evict more before they are gone would be waste.
func (p *Preemption) stillLeaving(node string, pod *v1.Pod) bool {
	n, err := p.h.NodeInfos.Get(node)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(n.GetPods(), func(o fwk.PodInfo) bool {
		return o.GetPod().DeletionTimestamp != nil && priority(o.GetPod()) < priority(pod)
	})
}

// victimsOn returns the fewest and least important pods whose end lets the pod run on the node,
// nil when not even the end of all lesser pods does. It changes state and node, which are copies.
func (p *Preemption) victimsOn(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node *framework.NodeInfo) *victims {
	var lesser []fwk.PodInfo
	for _, o := range node.GetPods() {
		if priority(o.GetPod()) < priority(pod) {
			lesser = append(lesser, o)
		}
	}
	if len(lesser) == 0 {
		return nil
	}
	slices.SortFunc(lesser, moreImportant)
	for _, o := range lesser {
		if !p.remove(ctx, state, pod, o, node) {
			return nil
		}
	}
	if !p.h.FilterWithNominated(ctx, state, pod, node).IsSuccess() {
		return nil
	}
	v := &victims{node: node.Node().Name}
	for _, o := range lesser { // spare whom we can, the most important first
		node.AddPodInfo(o)
		if p.h.AddPod(ctx, state, pod, o, node).IsSuccess() && p.h.FilterWithNominated(ctx, state, pod, node).IsSuccess() {
			continue
		}
		if !p.remove(ctx, state, pod, o, node) {
			return nil
		}
		v.pods = append(v.pods, o.GetPod())
	}
	return v
}

func (p *Preemption) remove(ctx context.Context, state fwk.CycleState, pod *v1.Pod, o fwk.PodInfo, node *framework.NodeInfo) bool {
	return node.RemovePod(logr.Discard(), o.GetPod()) == nil && p.h.RemovePod(ctx, state, pod, o, node).IsSuccess()
}

// compareVictims puts the lesser harm first: the lower highest priority, the lower sum of
// priorities, fewer pods, younger pods; then the name, to be the same every time.
func compareVictims(a, b *victims) int {
	if len(a.pods) == 0 || len(b.pods) == 0 {
		return cmp.Or(cmp.Compare(len(a.pods), len(b.pods)), cmp.Compare(a.node, b.node))
	}
	return cmp.Or(
		cmp.Compare(priority(a.pods[0]), priority(b.pods[0])),
		cmp.Compare(sumOfPriorities(a.pods), sumOfPriorities(b.pods)),
		cmp.Compare(len(a.pods), len(b.pods)),
		b.pods[0].CreationTimestamp.Compare(a.pods[0].CreationTimestamp.Time),
		cmp.Compare(a.node, b.node),
	)
}

func sumOfPriorities(pods []*v1.Pod) (sum int64) {
	for _, p := range pods {
		sum += int64(priority(p)) + 1<<31 // so that more pods never make it smaller
	}
	return sum
}

// moreImportant orders pods by priority, then by age.
func moreImportant(a, b fwk.PodInfo) int {
	return cmp.Or(
		cmp.Compare(priority(b.GetPod()), priority(a.GetPod())),
		a.GetPod().CreationTimestamp.Compare(b.GetPod().CreationTimestamp.Time),
		cmp.Compare(a.GetPod().Name, b.GetPod().Name),
	)
}

func priority(pod *v1.Pod) int32 { return corev1helpers.PodPriority(pod) }

// EventsToRegister is empty of its own: the filters that rejected the pod know what helps.
func (*Preemption) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{event(fwk.AssignedPod, fwk.Delete)}, nil
}
