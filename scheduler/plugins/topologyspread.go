package plugins

import (
	"context"
	"math"

	v1 "k8s.io/api/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/barque/barque/scheduler/framework"
	"github.com/barque/barque/scheduler/plugins/helper"
	"github.com/barque/barque/scheduler/plugins/names"
)

const (
	spreadFilterKey fwk.StateKey = names.PodTopologySpread + "/filter"
	spreadScoreKey  fwk.StateKey = names.PodTopologySpread + "/score"
)

// TopologySpread honours spec.topologySpreadConstraints. Pods that have none, and that belong to a
// controller or a Service, get default constraints: they are spread softly over nodes and zones,
// unless the arguments list others.
type TopologySpread struct {
	nodes    fwk.NodeInfoLister
	services corelisters.ServiceLister
	defaults []v1.TopologySpreadConstraint
	listed   bool // the arguments list the defaults
}

func newTopologySpread(h *framework.Handle) (fwk.Plugin, error) {
	p := &TopologySpread{nodes: h.NodeInfos, services: h.Informers.Core().V1().Services().Lister(),
		defaults: systemConstraints()}
	args, err := framework.ArgsOf[*configv1.PodTopologySpreadArgs](h)
	if args != nil && args.DefaultingType == configv1.ListDefaulting {
		p.defaults, p.listed = args.DefaultConstraints, true
	}
	return p, err
}

// Name of the plugin.
func (*TopologySpread) Name() string { return names.PodTopologySpread }

// domainCount counts, for one hard constraint, the matching pods in each domain.
type domainCount struct {
	spreadConstraint
	pods map[string]int
	// least is the global minimum that skew is measured against.
	least int
}

func (d *domainCount) setLeast() {
	d.least = 0
	if len(d.pods) < d.minDomains || len(d.pods) == 0 {
		return
	}
	d.least = math.MaxInt
	for _, n := range d.pods {
		d.least = min(d.least, n)
	}
}

// spreadState is what the filter of one cycle works on.
type spreadState []*domainCount

// Clone copies the counts.
func (s spreadState) Clone() fwk.StateData {
	c := make(spreadState, len(s))
	for i, d := range s {
		e := *d
		e.pods = make(map[string]int, len(d.pods))
		for k, v := range d.pods {
			e.pods[k] = v
		}
		c[i] = &e
	}
	return c
}

// PreFilter counts matching pods in all domains of the hard constraints.
func (p *TopologySpread) PreFilter(
	_ context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo,
) (*fwk.PreFilterResult, *fwk.Status) {
	constraints, err := p.constraintsOf(pod, v1.DoNotSchedule)
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	if len(constraints) == 0 {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	s := make(spreadState, len(constraints))
	for i, c := range constraints {
		s[i] = &domainCount{spreadConstraint: c, pods: map[string]int{}}
	}
	for _, n := range nodes {
		if !hasAllKeys(n.Node(), constraints) {
			continue
		}
		for _, d := range s {
			if d.eligible(pod, n.Node()) {
				d.pods[n.Node().Labels[d.key]] += d.count(n)
			}
		}
	}
	for _, d := range s {
		d.setLeast()
	}
	state.Write(spreadFilterKey, s)
	return nil, nil
}

// PreFilterExtensions keep the counts right while preemption tries out what-ifs.
func (p *TopologySpread) PreFilterExtensions() fwk.PreFilterExtensions { return p }

// AddPod counts a pod in.
func (p *TopologySpread) AddPod(
	_ context.Context, state fwk.CycleState, pod *v1.Pod, add fwk.PodInfo, node fwk.NodeInfo,
) *fwk.Status {
	return p.shift(state, pod, add.GetPod(), node.Node(), 1)
}

// RemovePod counts a pod out.
func (p *TopologySpread) RemovePod(
	_ context.Context, state fwk.CycleState, pod *v1.Pod, remove fwk.PodInfo, node fwk.NodeInfo,
) *fwk.Status {
	return p.shift(state, pod, remove.GetPod(), node.Node(), -1)
}

func (*TopologySpread) shift(state fwk.CycleState, pod, other *v1.Pod, node *v1.Node, by int) *fwk.Status {
	s, _ := framework.ReadState[spreadState](state, spreadFilterKey)
	for _, d := range s {
		value, ok := node.Labels[d.key]
		if ok && d.matches(other) && d.eligible(pod, node) {
			d.pods[value] += by
			d.setLeast()
		}
	}
	return nil
}

// Filter rejects a node where the pod would raise a domain above the least one by more than the
// constraint allows.
func (*TopologySpread) Filter(_ context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	s, _ := framework.ReadState[spreadState](state, spreadFilterKey)
	for _, d := range s {
		value, ok := node.Node().Labels[d.key]
		if !ok {
			return fwk.NewStatus(fwk.UnschedulableAndUnresolvable,
				"node(s) didn't match pod topology spread constraints (missing required label)")
		}
		self := 0
		if d.matches(pod) {
			self = 1
		}
		if d.pods[value]+self-d.least > d.maxSkew {
			return fwk.NewStatus(fwk.Unschedulable, "node(s) didn't match pod topology spread constraints")
		}
	}
	return nil
}

// softCount counts, for one soft constraint, the matching pods in each domain of the candidates.
type softCount struct {
	spreadConstraint
	// pods by domain; nil when each node is a domain, which Score counts by itself.
	pods   map[string]int
	weight float64
}

type softState []softCount

// Clone returns the same: it does not change.
func (s softState) Clone() fwk.StateData { return s }

// PreScore counts matching pods in the domains that the candidates are in.
func (p *TopologySpread) PreScore(
	_ context.Context, state fwk.CycleState, pod *v1.Pod, candidates []fwk.NodeInfo,
) *fwk.Status {
	constraints, err := p.constraintsOf(pod, v1.ScheduleAnyway)
	if err != nil {
		return fwk.AsStatus(err)
	}
	all, err := p.nodes.List()
	if err != nil {
		return fwk.AsStatus(err)
	}
	var s softState
	for i := range constraints {
		if soft, ok := countSoft(constraints, i, pod, candidates, all); ok {
			s = append(s, soft)
		}
	}
	if len(s) == 0 {
		return fwk.NewStatus(fwk.Skip)
	}
	state.Write(spreadScoreKey, s)
	return nil
}

// countSoft prepares one of the soft constraints; false when no candidate is in any domain of it.
// A node that lacks a label of any explicit constraint is in no domain.
func countSoft(constraints []spreadConstraint, i int, pod *v1.Pod, candidates, all []fwk.NodeInfo) (softCount, bool) {
	c := constraints[i]
	soft := softCount{spreadConstraint: c}
	if c.key != v1.LabelHostname {
		soft.pods = map[string]int{}
	}
	nodes, unnamed := 0, 0
	for _, n := range candidates {
		if c.explicit && !hasAllKeys(n.Node(), constraints) {
			continue
		}
		nodes++
		if value, ok := n.Node().Labels[c.key]; !ok {
			unnamed = 1 // nodes without a zone are one domain together; their pods do not count
		} else if soft.pods != nil {
			soft.pods[value] = 0
		}
	}
	domains := nodes
	if soft.pods != nil {
		if len(soft.pods) == 0 {
			return soft, false
		}
		domains = len(soft.pods) + unnamed
	}
	if domains == 0 {
		return soft, false
	}
	// The more domains there are, the fewer pods each has, and the more one pod matters.
	soft.weight = math.Log(float64(domains + 2))
	if soft.pods == nil {
		return soft, true
	}
	for _, n := range all {
		value := n.Node().Labels[c.key]
		_, wanted := soft.pods[value]
		if wanted && c.eligible(pod, n.Node()) && (!c.explicit || hasAllKeys(n.Node(), constraints)) {
			soft.pods[value] += c.count(n)
		}
	}
	return soft, true
}

// Score is how crowded the node's domains are with matching pods; less is better. The formula is
// kube-scheduler's, with its rounding: both prefer the same nodes. The tolerated skew is added: the
// same difference is a smaller part of larger scores. A node outside of every domain of an explicit
// constraint gets the worst.
func (*TopologySpread) Score(
	_ context.Context, state fwk.CycleState, _ *v1.Pod, node fwk.NodeInfo,
) (int64, *fwk.Status) {
	s, _ := framework.ReadState[softState](state, spreadScoreKey)
	crowd := 0.0
	for _, c := range s {
		value, ok := node.Node().Labels[c.key]
		switch {
		case ok && c.pods == nil:
			crowd += float64(c.count(node))*c.weight + float64(c.maxSkew-1)
		case ok:
			crowd += float64(c.pods[value])*c.weight + float64(c.maxSkew-1)
		case c.explicit:
			return outside, nil
		}
	}
	return int64(math.Round(crowd)), nil
}

// outside marks a node without a label that an explicit constraint wants.
const outside int64 = -1

// ScoreExtensions makes less crowded nodes better.
func (p *TopologySpread) ScoreExtensions() fwk.ScoreExtensions { return p }

// NormalizeScore gives the least crowded nodes the most, others in proportion.
func (*TopologySpread) NormalizeScore(
	_ context.Context, _ fwk.CycleState, _ *v1.Pod, scores fwk.NodeScoreList,
) *fwk.Status {
	least, most := int64(math.MaxInt64), int64(0)
	for _, s := range scores {
		if s.Score != outside {
			least, most = min(least, s.Score), max(most, s.Score)
		}
	}
	for i := range scores {
		switch s := &scores[i].Score; {
		case *s == outside:
			*s = fwk.MinScore
		case most == 0:
			*s = fwk.MaxScore
		default:
			*s = fwk.MaxScore * (most + least - *s) / most
		}
	}
	return nil
}

// EventsToRegister names what changes the counts or the domains.
func (*TopologySpread) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		helper.Event(fwk.AssignedPod, fwk.Add|fwk.Delete|fwk.UpdatePodLabel),
		helper.Event(fwk.Node, fwk.Add|fwk.Delete|fwk.UpdateNodeLabel|fwk.UpdateNodeTaint),
		helper.Event(fwk.TargetPod, fwk.UpdatePodLabel),
	}, nil
}

func hasAllKeys(node *v1.Node, constraints []spreadConstraint) bool {
	for _, c := range constraints {
		if _, ok := node.Labels[c.key]; !ok {
			return false
		}
	}
	return true
}
