package plugins

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/barque/barque/scheduler/framework"
)

// Preemption makes room for a pod that fits nowhere, by evicting pods of lower priority from the
// node where that does the least harm. It nominates the node: the pod is tried again as others
// vanish. Disruption budgets are not looked at.
type Preemption struct {
	h *framework.Handle
	// How many nodes with victims are found before the best of them is taken: a share of all nodes,
	// and at least an absolute number.
	minPercentage, minAbsolute int
}

func newPreemption(h *framework.Handle) (fwk.Plugin, error) {
	p := &Preemption{h: h, minPercentage: 10, minAbsolute: 100}
	args, err := framework.ArgsOf[*configv1.DefaultPreemptionArgs](h)
	if args != nil {
		p.minPercentage, p.minAbsolute = int(*args.MinCandidateNodesPercentage), int(*args.MinCandidateNodesAbsolute)
	}
	return p, err
}

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
	found := p.search(ctx, state, pod, nodes)
	if len(found) == 0 {
		return nil, fwk.NewStatus(fwk.Unschedulable,
			fmt.Sprintf("preemption: no victims on %d node(s) would make room for the pod.", len(nodes)))
	}
	if found, err = p.askExtenders(ctx, pod, found); err != nil {
		return nil, fwk.AsStatus(err)
	}
	if len(found) == 0 {
		return nil, fwk.NewStatus(fwk.Unschedulable, "preemption: no node that an extender lets be freed.")
	}
	best := slices.MinFunc(found, compareVictims)
	for _, v := range best.pods {
		if v.DeletionTimestamp == nil {
			p.h.Evict(v, pod)
		}
	}
	return nominate(best.node), nil
}

// search returns as many nodes with victims as are wanted, of those that there are. Where it begins
// depends on the pod, so that not all pods look at the same nodes; which nodes it finds does not
// depend on which goroutine is faster.
func (p *Preemption) search(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) []*victims {
	want := min(max(len(nodes)*p.minPercentage/100, p.minAbsolute), len(nodes))
	h := fnv.New32a()
	h.Write([]byte(pod.UID))
	start := int(h.Sum32())
	var found []*victims
	for looked := 0; looked < len(nodes) && len(found) < want; {
		block := make([]*victims, min(max(want-len(found), minNodesPerSearch), len(nodes)-looked))
		p.h.Parallel.Each(len(block), func(i int) {
			n := nodes[(start+looked+i)%len(nodes)]
			block[i] = p.victimsOn(ctx, state.Clone(), pod, n.(*framework.NodeInfo).Clone())
		})
		looked += len(block)
		for _, v := range block {
			if v != nil && len(found) < want {
				found = append(found, v)
			}
		}
	}
	return found
}

// askExtenders leaves what the extenders agree to.
func (p *Preemption) askExtenders(ctx context.Context, pod *v1.Pod, found []*victims) ([]*victims, error) {
	if p.h.Extenders == nil {
		return found, nil
	}
	// A node that needs no victims was refused by an extender, which it would be again.
	found = slices.DeleteFunc(slices.Clone(found), func(v *victims) bool { return len(v.pods) == 0 })
	if len(found) == 0 {
		return nil, nil
	}
	asked := make(map[string]*extenderv1.Victims, len(found))
	for _, v := range found {
		asked[v.node] = &extenderv1.Victims{Pods: v.pods}
	}
	agreed, err := p.h.Extenders.Preempt(ctx, pod, asked)
	if err != nil {
		return nil, err
	}
	var out []*victims
	for _, node := range slices.Sorted(maps.Keys(agreed)) {
		pods := slices.Clone(agreed[node].Pods)
		slices.SortFunc(pods, moreImportantPod)
		out = append(out, &victims{node: node, pods: pods})
	}
	return out, nil
}

// minNodesPerSearch is how many nodes are looked at together, at least.
const minNodesPerSearch = 64

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
func moreImportant(a, b fwk.PodInfo) int { return moreImportantPod(a.GetPod(), b.GetPod()) }

func moreImportantPod(a, b *v1.Pod) int {
	return cmp.Or(
		cmp.Compare(priority(b), priority(a)),
		a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
		cmp.Compare(a.Name, b.Name),
	)
}

func priority(pod *v1.Pod) int32 { return corev1helpers.PodPriority(pod) }

// EventsToRegister is empty of its own: the filters that rejected the pod know what helps.
func (*Preemption) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{event(fwk.AssignedPod, fwk.Delete)}, nil
}
