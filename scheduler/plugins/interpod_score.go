package plugins

import (
	"context"
	"math"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/barque/barque/scheduler/framework"
	"github.com/barque/barque/scheduler/plugins/names"
)

const interPodScoreKey fwk.StateKey = names.InterPodAffinity + "/score"

// domainWeights sums, by domain, how much the preferences of all pods speak for it.
type domainWeights map[domain]int64

// Clone returns the same: it does not change.
func (w domainWeights) Clone() fwk.StateData { return w }

// PreScore sums the preferences: of the pod about those running, and of those about the pod.
func (p *InterPodAffinity) PreScore(
	_ context.Context, state fwk.CycleState, pod *v1.Pod, _ []fwk.NodeInfo,
) *fwk.Status {
	info, err := framework.PodInfoOf(state, pod)
	if err != nil {
		return fwk.AsStatus(err)
	}
	own := len(info.GetPreferredAffinityTerms())+len(info.GetPreferredAntiAffinityTerms()) > 0
	if p.ignoreTheirs && !own {
		return fwk.NewStatus(fwk.Skip)
	}
	nodes, err := p.nodes.HavePodsWithAffinityList()
	if own {
		nodes, err = p.nodes.List()
	}
	if err != nil {
		return fwk.AsStatus(err)
	}
	w := domainWeights{}
	namespace := p.labelsOf(pod.Namespace)
	for _, n := range nodes {
		others := n.GetPodsWithAffinity()
		if own {
			others = n.GetPods()
		}
		for _, other := range others {
			if own {
				p.addOwn(w, info, other.GetPod(), n.Node())
			}
			p.addTheirs(w, other, pod, namespace, n.Node())
		}
	}
	if len(w) == 0 {
		return fwk.NewStatus(fwk.Skip)
	}
	state.Write(interPodScoreKey, w)
	return nil
}

func (p *InterPodAffinity) addOwn(w domainWeights, info *framework.PodInfo, other *v1.Pod, node *v1.Node) {
	namespace := p.labelsOf(other.Namespace)
	w.addWeighted(info.GetPreferredAffinityTerms(), other, namespace, node, 1)
	w.addWeighted(info.GetPreferredAntiAffinityTerms(), other, namespace, node, -1)
}

func (p *InterPodAffinity) addTheirs(
	w domainWeights, other fwk.PodInfo, pod *v1.Pod, namespace labels.Set, node *v1.Node,
) {
	if p.hardWeight > 0 {
		for _, term := range other.GetRequiredAffinityTerms() {
			w.add(&term, pod, namespace, node, p.hardWeight)
		}
	}
	w.addWeighted(other.GetPreferredAffinityTerms(), pod, namespace, node, 1)
	w.addWeighted(other.GetPreferredAntiAffinityTerms(), pod, namespace, node, -1)
}

func (w domainWeights) addWeighted(
	terms []fwk.WeightedAffinityTerm, pod *v1.Pod, namespace labels.Set, node *v1.Node, sign int64,
) {
	for i := range terms {
		w.add(&terms[i].AffinityTerm, pod, namespace, node, sign*int64(terms[i].Weight))
	}
}

func (w domainWeights) add(term *fwk.AffinityTerm, pod *v1.Pod, namespace labels.Set, node *v1.Node, weight int64) {
	if value, ok := node.Labels[term.TopologyKey]; ok && term.Matches(pod, namespace) {
		w[domain{term.TopologyKey, value}] += weight
	}
}

// Score sums the weights of the node's domains.
func (*InterPodAffinity) Score(
	_ context.Context, state fwk.CycleState, _ *v1.Pod, node fwk.NodeInfo,
) (int64, *fwk.Status) {
	w, _ := framework.ReadState[domainWeights](state, interPodScoreKey)
	var sum int64
	for key, value := range node.Node().Labels {
		sum += w[domain{key, value}]
	}
	return sum, nil
}

// ScoreExtensions stretches the sums.
func (p *InterPodAffinity) ScoreExtensions() fwk.ScoreExtensions { return p }

// NormalizeScore maps the range of sums, which may be negative, to that of scores.
func (*InterPodAffinity) NormalizeScore(
	_ context.Context, _ fwk.CycleState, _ *v1.Pod, scores fwk.NodeScoreList,
) *fwk.Status {
	least, most := int64(math.MaxInt64), int64(math.MinInt64)
	for _, s := range scores {
		least, most = min(least, s.Score), max(most, s.Score)
	}
	for i := range scores {
		if most == least {
			scores[i].Score = fwk.MinScore
			continue
		}
		scores[i].Score = fwk.MaxScore * (scores[i].Score - least) / (most - least)
	}
	return nil
}
