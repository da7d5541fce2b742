package plugins

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/barque/barque/scheduler/framework"
)

// spreadConstraint is one topology spread constraint, parsed.
type spreadConstraint struct {
	key        string
	maxSkew    int
	minDomains int
	explicit   bool // the pod or the profile asks for it

	// Which pods count: those of namespace that selector matches or that owner controls.
	namespace string
	selector  labels.Selector
	owner     types.UID

	// Which nodes count; nil and false mean all.
	affinity *nodeaffinity.RequiredNodeAffinity
	taints   bool
}

// systemConstraints are the defaults of pods without constraints, when the arguments list none.
func systemConstraints() []v1.TopologySpreadConstraint {
	return []v1.TopologySpreadConstraint{
		{TopologyKey: v1.LabelHostname, WhenUnsatisfiable: v1.ScheduleAnyway, MaxSkew: 3},
		{TopologyKey: v1.LabelTopologyZone, WhenUnsatisfiable: v1.ScheduleAnyway, MaxSkew: 5},
	}
}

// constraintsOf returns the pod's constraints of one kind: its own, or the defaults if it has none.
func (p *TopologySpread) constraintsOf(
	pod *v1.Pod, action v1.UnsatisfiableConstraintAction,
) ([]spreadConstraint, error) {
	if len(pod.Spec.TopologySpreadConstraints) == 0 {
		return p.defaultConstraints(pod, action), nil
	}
	var out []spreadConstraint
	for i := range pod.Spec.TopologySpreadConstraints {
		c := &pod.Spec.TopologySpreadConstraints[i]
		if c.WhenUnsatisfiable != action {
			continue
		}
		selector, err := selectorOf(pod, c)
		if err != nil {
			return nil, fmt.Errorf("topology spread constraint %d: %w", i, err)
		}
		s := newConstraint(pod, c)
		s.selector = selector
		out = append(out, s)
	}
	return out, nil
}

// newConstraint parses all of a constraint but which pods count.
func newConstraint(pod *v1.Pod, c *v1.TopologySpreadConstraint) spreadConstraint {
	s := spreadConstraint{
		key: c.TopologyKey, maxSkew: int(c.MaxSkew), minDomains: 1, explicit: true,
		namespace: pod.Namespace,
		taints:    c.NodeTaintsPolicy != nil && *c.NodeTaintsPolicy == v1.NodeInclusionPolicyHonor,
	}
	if c.MinDomains != nil {
		s.minDomains = int(*c.MinDomains)
	}
	if c.NodeAffinityPolicy == nil || *c.NodeAffinityPolicy == v1.NodeInclusionPolicyHonor {
		required := nodeaffinity.GetRequiredNodeAffinity(pod)
		s.affinity = &required
	}
	return s
}

// selectorOf adds the pod's own values of matchLabelKeys to the selector.
func selectorOf(pod *v1.Pod, c *v1.TopologySpreadConstraint) (labels.Selector, error) {
	selector, err := metav1.LabelSelectorAsSelector(c.LabelSelector)
	if err != nil {
		return nil, err
	}
	for _, key := range c.MatchLabelKeys {
		value, ok := pod.Labels[key]
		if !ok {
			continue
		}
		r, err := labels.NewRequirement(key, selection.In, []string{value})
		if err != nil {
			return nil, err
		}
		selector = selector.Add(*r)
	}
	return selector, nil
}

// defaultConstraints spread the pods of one controller, or of the Services that select the pod
// when it has no controller.
func (p *TopologySpread) defaultConstraints(pod *v1.Pod, action v1.UnsatisfiableConstraintAction) []spreadConstraint {
	var out []spreadConstraint
	for i := range p.defaults {
		c := &p.defaults[i]
		if c.WhenUnsatisfiable != action {
			continue
		}
		s := spreadConstraint{key: c.TopologyKey, maxSkew: int(c.MaxSkew), namespace: pod.Namespace}
		if p.listed {
			s = newConstraint(pod, c)
		}
		out = append(out, s)
	}
	if len(out) == 0 {
		return nil
	}
	owner := metav1.GetControllerOfNoCopy(pod)
	var selector labels.Selector
	if owner == nil {
		if selector = p.serviceSelector(pod); selector == nil {
			return nil
		}
	}
	for i := range out {
		if owner != nil {
			out[i].owner = owner.UID
		} else {
			out[i].selector = selector
		}
	}
	return out
}

// serviceSelector joins the selectors of all Services that select the pod; nil when none does.
func (p *TopologySpread) serviceSelector(pod *v1.Pod) labels.Selector {
	services, err := p.services.Services(pod.Namespace).List(labels.Everything())
	if err != nil {
		return nil // a lister over a local cache does not fail
	}
	joined := labels.Set{}
	for _, s := range services {
		if len(s.Spec.Selector) > 0 && labels.SelectorFromSet(s.Spec.Selector).Matches(labels.Set(pod.Labels)) {
			joined = labels.Merge(joined, s.Spec.Selector)
		}
	}
	if len(joined) == 0 {
		return nil
	}
	return labels.SelectorFromSet(joined)
}

// matches reports whether a pod counts.
func (c *spreadConstraint) matches(pod *v1.Pod) bool {
	if pod.Namespace != c.namespace || pod.DeletionTimestamp != nil {
		return false
	}
	if c.owner != "" {
		owner := metav1.GetControllerOfNoCopy(pod)
		return owner != nil && owner.UID == c.owner
	}
	return c.selector.Matches(labels.Set(pod.Labels))
}

// count returns how many pods on the node count.
func (c *spreadConstraint) count(node fwk.NodeInfo) int {
	n := 0
	for _, p := range node.GetPods() {
		if own, ok := p.(*framework.PodInfo); ok && own.Owner() != c.owner && c.owner != "" {
			continue // the common case, without a read of the pod
		}
		if c.matches(p.GetPod()) {
			n++
		}
	}
	return n
}

// eligible reports whether the constraint counts the node for the pod.
func (c *spreadConstraint) eligible(pod *v1.Pod, node *v1.Node) bool {
	if c.affinity != nil {
		if match, err := c.affinity.Match(node); !match || err != nil {
			return false
		}
	}
	if c.taints {
		if _, found := untolerated(pod, node); found {
			return false
		}
	}
	return true
}
