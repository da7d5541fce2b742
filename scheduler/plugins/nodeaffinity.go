package plugins

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/barque/barque/scheduler/framework"
	"github.com/barque/barque/scheduler/plugins/helper"
	"github.com/barque/barque/scheduler/plugins/names"
)

const (
	affinityFilterKey fwk.StateKey = names.NodeAffinity + "/filter"
	affinityScoreKey  fwk.StateKey = names.NodeAffinity + "/score"
)

// NodeAffinity honours spec.nodeSelector and spec.affinity.nodeAffinity, and an affinity that its
// arguments add to that of every pod of the profile.
type NodeAffinity struct {
	addedRequired  *nodeaffinity.NodeSelector             // nil when nothing is added
	addedPreferred *nodeaffinity.PreferredSchedulingTerms // nil when nothing is added
}

func newNodeAffinity(h *framework.Handle) (fwk.Plugin, error) {
	args, err := framework.ArgsOf[*configv1.NodeAffinityArgs](h)
	p := &NodeAffinity{}
	if args == nil || args.AddedAffinity == nil || err != nil {
		return p, err
	}
	if required := args.AddedAffinity.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
		if p.addedRequired, err = nodeaffinity.NewNodeSelector(required); err != nil {
			return nil, fmt.Errorf("added required affinity: %w", err)
		}
	}
	if preferred := args.AddedAffinity.PreferredDuringSchedulingIgnoredDuringExecution; len(preferred) > 0 {
		if p.addedPreferred, err = nodeaffinity.NewPreferredSchedulingTerms(preferred); err != nil {
			return nil, fmt.Errorf("added preferred affinity: %w", err)
		}
	}
	return p, nil
}

type requiredAffinity struct {
	nodeaffinity.RequiredNodeAffinity
}

// Clone returns the same: it does not change.
func (r requiredAffinity) Clone() fwk.StateData { return r }

type preferredAffinity struct {
	*nodeaffinity.PreferredSchedulingTerms
}

// Clone returns the same: it does not change.
func (p preferredAffinity) Clone() fwk.StateData { return p }

// Name of the plugin.
func (*NodeAffinity) Name() string { return names.NodeAffinity }

// PreFilter parses the requirements. Where they name nodes by field, as a DaemonSet's pods do, only
// those nodes are looked at.
func (p *NodeAffinity) PreFilter(
	_ context.Context, state fwk.CycleState, pod *v1.Pod, _ []fwk.NodeInfo,
) (*fwk.PreFilterResult, *fwk.Status) {
	required := requiredTerms(pod)
	if len(pod.Spec.NodeSelector) == 0 && required == nil && p.addedRequired == nil {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	state.Write(affinityFilterKey, requiredAffinity{nodeaffinity.GetRequiredNodeAffinity(pod)})
	if required == nil {
		return nil, nil
	}
	names := sets.New[string]()
	for _, term := range required.NodeSelectorTerms {
		n := namedNodes(term)
		if n == nil {
			return nil, nil // this term is open to any node
		}
		names = names.Union(n)
	}
	return &fwk.PreFilterResult{NodeNames: names}, nil
}

// namedNodes returns the nodes that a term names by metadata.name, nil when it does not.
func namedNodes(term v1.NodeSelectorTerm) sets.Set[string] {
	var names sets.Set[string]
	for _, r := range term.MatchFields {
		if r.Key != metav1.ObjectNameField || r.Operator != v1.NodeSelectorOpIn {
			continue
		}
		if these := sets.New(r.Values...); names == nil {
			names = these
		} else {
			names = names.Intersection(these)
		}
	}
	return names
}

// PreFilterExtensions is nil: other pods do not matter.
func (*NodeAffinity) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// Filter rejects a node that does not match.
func (p *NodeAffinity) Filter(_ context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	if p.addedRequired != nil && !p.addedRequired.Match(node.Node()) {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "node(s) didn't match scheduler-enforced node affinity")
	}
	r, ok := framework.ReadState[requiredAffinity](state, affinityFilterKey)
	if !ok {
		r = requiredAffinity{nodeaffinity.GetRequiredNodeAffinity(pod)}
	}
	if match, err := r.Match(node.Node()); match && err == nil {
		return nil
	}
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "node(s) didn't match Pod's node affinity/selector")
}

// PreScore parses the preferences.
func (p *NodeAffinity) PreScore(_ context.Context, state fwk.CycleState, pod *v1.Pod, _ []fwk.NodeInfo) *fwk.Status {
	terms, err := preferredTerms(pod)
	if err != nil {
		return fwk.AsStatus(err)
	}
	if terms == nil && p.addedPreferred == nil {
		return fwk.NewStatus(fwk.Skip)
	}
	state.Write(affinityScoreKey, preferredAffinity{terms})
	return nil
}

// preferredTerms parses the preferences of a pod, nil when it has none.
func preferredTerms(pod *v1.Pod) (*nodeaffinity.PreferredSchedulingTerms, error) {
	a := pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || len(a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution) == 0 {
		return nil, nil
	}
	return nodeaffinity.NewPreferredSchedulingTerms(a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
}

// Score sums the weights of the preferences that the node matches.
func (p *NodeAffinity) Score(
	_ context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo,
) (int64, *fwk.Status) {
	own, ok := framework.ReadState[preferredAffinity](state, affinityScoreKey)
	if !ok { // PreScore of this plugin is disabled
		terms, err := preferredTerms(pod)
		if err != nil {
			return 0, fwk.AsStatus(err)
		}
		own = preferredAffinity{terms}
	}
	var sum int64
	if own.PreferredSchedulingTerms != nil {
		sum += own.PreferredSchedulingTerms.Score(node.Node())
	}
	if p.addedPreferred != nil {
		sum += p.addedPreferred.Score(node.Node())
	}
	return sum, nil
}

// ScoreExtensions makes more weight better.
func (*NodeAffinity) ScoreExtensions() fwk.ScoreExtensions { return helper.Ascending{} }

// EventsToRegister names nodes that match now.
func (p *NodeAffinity) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		helper.Hinted(fwk.Node, fwk.Add|fwk.UpdateNodeLabel,
			func(_ klog.Logger, pod *v1.Pod, _, n any) (fwk.QueueingHint, error) {
				node, ok := n.(*v1.Node)
				if !ok {
					return fwk.Queue, nil
				}
				if p.addedRequired != nil && !p.addedRequired.Match(node) {
					return fwk.QueueSkip, nil
				}
				match, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node)
				return helper.HintIf(match && err == nil)
			}),
	}, nil
}

func requiredTerms(pod *v1.Pod) *v1.NodeSelector {
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		return a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	return nil
}
