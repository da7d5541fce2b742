package plugins

import (
	"context"
	"maps"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/barque/barque/scheduler/framework"
	"github.com/barque/barque/scheduler/plugins/helper"
	"github.com/barque/barque/scheduler/plugins/names"
)

const interPodKey fwk.StateKey = names.InterPodAffinity

// InterPodAffinity honours spec.affinity.podAffinity and podAntiAffinity, of the pod and of the
// pods that run already.
type InterPodAffinity struct {
	nodes      fwk.NodeInfoLister
	namespaces corelisters.NamespaceLister
	// hardWeight is the weight of a running pod's required affinity to the incoming pod. The
	// requirement binds only its owner; for the incoming pod it is a preference.
	hardWeight int64
	// ignoreTheirs ignores the preferences of running pods when the incoming pod has none.
	ignoreTheirs bool
}

func newInterPodAffinity(h *framework.Handle) (fwk.Plugin, error) {
	p := &InterPodAffinity{nodes: h.NodeInfos, namespaces: h.Informers.Core().V1().Namespaces().Lister(), hardWeight: 1}
	args, err := framework.ArgsOf[*configv1.InterPodAffinityArgs](h)
	if args != nil {
		p.hardWeight, p.ignoreTheirs = int64(*args.HardPodAffinityWeight), args.IgnorePreferredTermsOfExistingPods
	}
	return p, err
}

// domain is one place in a topology: all nodes whose label key has the value.
type domain struct{ key, value string }

// interPodState counts pods by domain.
type interPodState struct {
	incoming *framework.PodInfo
	// repelling: pods whose required anti-affinity keeps the incoming pod out of the domain.
	repelling map[domain]int
	// wanted: pods that match all required affinity terms of the incoming pod.
	wanted map[domain]int
	// avoided: pods that match a required anti-affinity term of the incoming pod.
	avoided map[domain]int
}

// Clone copies the counts.
func (s *interPodState) Clone() fwk.StateData {
	return &interPodState{s.incoming, maps.Clone(s.repelling), maps.Clone(s.wanted), maps.Clone(s.avoided)}
}

// Name of the plugin.
func (*InterPodAffinity) Name() string { return names.InterPodAffinity }

// PreFilter counts the pods that matter to the incoming pod, over all nodes.
func (p *InterPodAffinity) PreFilter(
	_ context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo,
) (*fwk.PreFilterResult, *fwk.Status) {
	info, err := framework.PodInfoOf(state, pod)
	if err != nil {
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, err.Error())
	}
	repellers, err := p.nodes.HavePodsWithRequiredAntiAffinityList()
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	own := len(info.GetRequiredAffinityTerms())+len(info.GetRequiredAntiAffinityTerms()) > 0
	if !own && len(repellers) == 0 {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	s := &interPodState{incoming: info, repelling: map[domain]int{}, wanted: map[domain]int{},
		avoided: map[domain]int{}}
	namespace := p.labelsOf(pod.Namespace)
	for _, n := range repellers {
		for _, other := range n.GetPodsWithRequiredAntiAffinity() {
			s.countRepelling(other, namespace, n.Node(), 1)
		}
	}
	if own {
		for _, n := range nodes {
			for _, other := range n.GetPods() {
				s.countMatching(other.GetPod(), p.labelsOf(other.GetPod().Namespace), n.Node(), 1)
			}
		}
	}
	state.Write(interPodKey, s)
	return nil, nil
}

func (s *interPodState) countRepelling(other fwk.PodInfo, incomingNamespace labels.Set, node *v1.Node, by int) {
	for _, term := range other.GetRequiredAntiAffinityTerms() {
		if value, ok := node.Labels[term.TopologyKey]; ok && term.Matches(s.incoming.GetPod(), incomingNamespace) {
			bump(s.repelling, domain{term.TopologyKey, value}, by)
		}
	}
}

func (s *interPodState) countMatching(other *v1.Pod, otherNamespace labels.Set, node *v1.Node, by int) {
	if terms := s.incoming.GetRequiredAffinityTerms(); len(terms) > 0 && matchesAll(terms, other, otherNamespace) {
		for _, term := range terms {
			if value, ok := node.Labels[term.TopologyKey]; ok {
				bump(s.wanted, domain{term.TopologyKey, value}, by)
			}
		}
	}
	for _, term := range s.incoming.GetRequiredAntiAffinityTerms() {
		if value, ok := node.Labels[term.TopologyKey]; ok && term.Matches(other, otherNamespace) {
			bump(s.avoided, domain{term.TopologyKey, value}, by)
		}
	}
}

func matchesAll(terms []fwk.AffinityTerm, pod *v1.Pod, namespace labels.Set) bool {
	for i := range terms {
		if !terms[i].Matches(pod, namespace) {
			return false
		}
	}
	return true
}

func bump(counts map[domain]int, d domain, by int) {
	if counts[d] += by; counts[d] == 0 {
		delete(counts, d)
	}
}

// PreFilterExtensions keep the counts right while preemption simulates removals.
func (p *InterPodAffinity) PreFilterExtensions() fwk.PreFilterExtensions { return p }

// AddPod counts a pod in.
func (p *InterPodAffinity) AddPod(
	_ context.Context, state fwk.CycleState, _ *v1.Pod, add fwk.PodInfo, node fwk.NodeInfo,
) *fwk.Status {
	return p.shift(state, add, node.Node(), 1)
}

// RemovePod counts a pod out.
func (p *InterPodAffinity) RemovePod(
	_ context.Context, state fwk.CycleState, _ *v1.Pod, remove fwk.PodInfo, node fwk.NodeInfo,
) *fwk.Status {
	return p.shift(state, remove, node.Node(), -1)
}

func (p *InterPodAffinity) shift(state fwk.CycleState, other fwk.PodInfo, node *v1.Node, by int) *fwk.Status {
	if s, ok := framework.ReadState[*interPodState](state, interPodKey); ok {
		s.countRepelling(other, p.labelsOf(s.incoming.GetPod().Namespace), node, by)
		s.countMatching(other.GetPod(), p.labelsOf(other.GetPod().Namespace), node, by)
	}
	return nil
}

// Filter rejects nodes that the pod must not share, or where those it must join are not.
func (p *InterPodAffinity) Filter(_ context.Context, state fwk.CycleState, _ *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	s, ok := framework.ReadState[*interPodState](state, interPodKey)
	if !ok {
		return nil
	}
	labels := node.Node().Labels
	switch {
	case !p.joins(s, labels):
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "node(s) didn't match pod affinity rules")
	case s.avoids(labels):
		return fwk.NewStatus(fwk.Unschedulable, "node(s) didn't match pod anti-affinity rules")
	case s.repelled(labels):
		return fwk.NewStatus(fwk.Unschedulable, "node(s) didn't satisfy existing pods anti-affinity rules")
	}
	return nil
}

func (p *InterPodAffinity) joins(s *interPodState, labels map[string]string) bool {
	terms := s.incoming.GetRequiredAffinityTerms()
	found := true
	for _, term := range terms {
		value, ok := labels[term.TopologyKey]
		if !ok {
			return false
		}
		found = found && s.wanted[domain{term.TopologyKey, value}] > 0
	}
	// The first pod of a group with affinity to itself has no pod to join yet.
	return found || len(s.wanted) == 0 &&
		matchesAll(terms, s.incoming.GetPod(), p.labelsOf(s.incoming.GetPod().Namespace))
}

func (s *interPodState) avoids(labels map[string]string) bool {
	for _, term := range s.incoming.GetRequiredAntiAffinityTerms() {
		if value, ok := labels[term.TopologyKey]; ok && s.avoided[domain{term.TopologyKey, value}] > 0 {
			return true
		}
	}
	return false
}

func (s *interPodState) repelled(labels map[string]string) bool {
	if len(s.repelling) == 0 {
		return false
	}
	for key, value := range labels {
		if s.repelling[domain{key, value}] > 0 {
			return true
		}
	}
	return false
}

// labelsOf returns the labels of a namespace, none when it is not known.
func (p *InterPodAffinity) labelsOf(namespace string) labels.Set {
	ns, err := p.namespaces.Get(namespace)
	if err != nil {
		return nil
	}
	return ns.Labels
}

// EventsToRegister returns the events that change the counts or the domains.
func (*InterPodAffinity) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		helper.Event(fwk.AssignedPod, fwk.Add|fwk.Delete|fwk.UpdatePodLabel),
		helper.Event(fwk.Node, fwk.Add|fwk.UpdateNodeLabel),
		helper.Event(fwk.TargetPod, fwk.UpdatePodLabel),
	}, nil
}
