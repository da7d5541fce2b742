package framework

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
)

// FitError is returned when a pod fits on no node. Users read its text in the pod's condition and
// events.
type FitError struct {
	// AllNodes is how many nodes there are.
	AllNodes int
	// Rejected holds the reason of each node that a filter has rejected.
	Rejected map[string]*fwk.Status
	// Narrowed is the reason of all nodes that PreFilter excluded; nil when it excluded none.
	Narrowed *fwk.Status
	// PreFilter is set when PreFilter rejected the pod before any node was looked at.
	PreFilter *fwk.Status
	// Plugins rejected the pod: only events that they wait for can help it.
	Plugins sets.Set[string]
	// Preemption is the outcome of preemption; "" when there was no attempt.
	Preemption string
}

var _ fwk.NodeToStatusReader = (*FitError)(nil)

// Error counts the reasons: "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) …".
func (e *FitError) Error() string {
	if e.AllNodes == 0 {
		return "no nodes available to schedule pods"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "0/%d nodes are available: ", e.AllNodes)
	if e.PreFilter != nil {
		b.WriteString(e.PreFilter.Message())
	} else {
		b.WriteString(strings.Join(e.reasons(), ", "))
	}
	b.WriteString(".")
	if e.Preemption != "" {
		b.WriteString(" " + e.Preemption)
	}
	return b.String()
}

func (e *FitError) reasons() []string {
	count := map[string]int{}
	for _, s := range e.Rejected {
		for _, r := range s.Reasons() {
			count[r]++
		}
	}
	if e.Narrowed != nil {
		for _, r := range e.Narrowed.Reasons() {
			count[r] += e.AllNodes - len(e.Rejected)
		}
	}
	var out []string
	for r, n := range count {
		if n > 0 {
			out = append(out, fmt.Sprintf("%d %s", n, r))
		}
	}
	slices.Sort(out)
	return out
}

// Get returns why the node was rejected.
func (e *FitError) Get(node string) *fwk.Status {
	if s, ok := e.Rejected[node]; ok {
		return s
	}
	if e.PreFilter != nil {
		return e.PreFilter
	}
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable)
}

// NodesForStatusCode returns the nodes that were rejected with code.
func (e *FitError) NodesForStatusCode(nodes fwk.NodeInfoLister, code fwk.Code) ([]fwk.NodeInfo, error) {
	all, err := nodes.List()
	if err != nil {
		return nil, err
	}
	var out []fwk.NodeInfo
	for _, n := range all {
		if e.Get(n.Node().Name).Code() == code {
			out = append(out, n)
		}
	}
	return out, nil
}
