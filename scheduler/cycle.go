package scheduler

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/barque/barque/scheduler/framework"
)

const (
	// A cluster up to this size is searched completely.
	minNodesToFind = 100
	// The adaptive share of feasible nodes starts at 50 %. It falls by one for each 125 nodes, to
	// no less than 5 %.
	maxPercentage     = 50
	minPercentage     = 5
	nodesPerPercent   = 125
	fullPercentage    = 100
	minNodesPerSearch = 64
)

// decide chooses a node for the pod from the snapshot. It changes only the cycle's state, the
// random source and the start of the next search. For a pod that fits nowhere the error is a
// *FitError.
func (t *term) decide(
	ctx context.Context, profile *framework.Profile, state fwk.CycleState, pod *v1.Pod,
) (string, error) {
	all, _ := t.snapshot.List() // the error is of the interface; a snapshot has none
	if len(all) == 0 {
		return "", &framework.FitError{Plugins: sets.New[string]()}
	}
	narrowed, narrowedBy, status := profile.PreFilter(ctx, state, pod, all)
	if status.IsRejected() {
		return "", &framework.FitError{AllNodes: len(all), PreFilter: status, Plugins: sets.New(status.Plugin())}
	}
	if !status.IsSuccess() {
		return "", fmt.Errorf("prefilter plugin %q: %w", status.Plugin(), status.AsError())
	}
	candidates := t.candidates(narrowed, all)
	fit := &framework.FitError{AllNodes: len(all), Rejected: map[string]*fwk.Status{}, Plugins: narrowedBy}
	if len(candidates) < len(all) {
		fit.Narrowed = fwk.NewStatus(fwk.UnschedulableAndUnresolvable,
			"node(s) didn't satisfy plugin(s) "+fmt.Sprint(sets.List(narrowedBy)))
	}
	feasible, err := t.feasible(ctx, profile, state, pod, candidates, fit)
	switch {
	case err != nil:
		return "", err
	case len(feasible) == 0:
		return "", fit
	case len(feasible) == 1:
		return feasible[0].Node().Name, nil
	}
	scores, status := profile.Score(ctx, state, pod, feasible)
	if !status.IsSuccess() {
		return "", status.AsError()
	}
	t.extenders.Score(ctx, pod, feasible, scores)
	return feasible[t.best(scores)].Node().Name, nil
}

func (t *term) candidates(narrowed *fwk.PreFilterResult, all []fwk.NodeInfo) []fwk.NodeInfo {
	if narrowed.AllNodes() {
		return all
	}
	var out []fwk.NodeInfo
	for _, name := range sets.List(narrowed.NodeNames) {
		if n, err := t.snapshot.Get(name); err == nil {
			out = append(out, n)
		}
	}
	return out
}

// feasible returns nodes on which the pod can run. It is the nominated node, if the pod fits there
// now, or as many nodes as are worth scoring. It adds the reasons of the others to fit.
func (t *term) feasible(
	ctx context.Context, profile *framework.Profile, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo,
	fit *framework.FitError,
) ([]fwk.NodeInfo, error) {
	if name := t.nominees.Node(pod.UID); name != "" {
		if n, err := t.snapshot.Get(name); err == nil &&
			profile.FilterWithNominated(ctx, state, pod, n.(*framework.NodeInfo)).IsSuccess() {
			if taken, err := t.extenders.Filter(ctx, pod, []fwk.NodeInfo{n}, fit); len(taken) > 0 || err != nil {
				return taken, err
			}
		}
	}
	want := t.nodesToFind(profile, len(nodes))
	found := make([]fwk.NodeInfo, 0, want)
	statuses := make([]*fwk.Status, len(nodes))
	looked := 0
	for looked < len(nodes) && len(found) < want {
		// A block is filtered in parallel and taken in order, so that the outcome does not depend
		// on the speed of goroutines.
		block := min(max(want-len(found), minNodesPerSearch), len(nodes)-looked)
		at := func(i int) fwk.NodeInfo { return nodes[(t.start+looked+i)%len(nodes)] }
		framework.Parallel(t.cfg.Parallelism).Each(block, func(i int) {
			statuses[i] = profile.FilterWithNominated(ctx, state, pod, at(i).(*framework.NodeInfo))
		})
		for i := 0; i < block && len(found) < want; i++ {
			switch s, node := statuses[i], at(i); {
			case s.IsSuccess():
				found = append(found, node)
			case s.IsRejected():
				fit.Rejected[node.Node().Name] = s
				fit.Plugins.Insert(s.Plugin())
			default:
				return nil, fmt.Errorf("filter plugin %q on node %q: %w", s.Plugin(), node.Node().Name, s.AsError())
			}
		}
		looked += block
	}
	if len(nodes) > 0 {
		t.start = (t.start + looked) % len(nodes)
	}
	return t.extenders.Filter(ctx, pod, found, fit)
}

func (t *term) nodesToFind(profile *framework.Profile, nodes int) int {
	if !profile.Scores() && !t.extenders.Chooses() {
		return min(nodes, 1) // without scores all feasible nodes are equal
	}
	percentage := profile.PercentageOfNodesToScore(t.cfg.PercentageOfNodesToScore)
	if nodes <= minNodesToFind || percentage == fullPercentage {
		return nodes
	}
	if percentage == 0 {
		percentage = max(maxPercentage-nodes/nodesPerPercent, minPercentage)
	}
	return max(nodes*percentage/fullPercentage, minNodesToFind)
}

// best returns the index of the highest score, drawn evenly among equals.
func (t *term) best(scores []int64) int {
	best, equals := 0, 1
	for i := 1; i < len(scores); i++ {
		switch {
		case scores[i] > scores[best]:
			best, equals = i, 1
		case scores[i] == scores[best]:
			if equals++; t.rng.IntN(equals) == 0 {
				best = i
			}
		}
	}
	return best
}
