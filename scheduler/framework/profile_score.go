package framework

import (
	"context"
	"fmt"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
)

// Score returns the weighted sum of all plugins' normalised scores for each of nodes.
func (p *Profile) Score(
	ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo,
) ([]int64, *fwk.Status) {
	skip := sets.New[string]()
	for _, pl := range p.preScore {
		s := pl.PreScore(ctx, state, pod, nodes)
		if s.IsSkip() {
			skip.Insert(pl.Name())
		} else if !s.IsSuccess() {
			return nil, fwk.AsStatus(fmt.Errorf("pre-score plugin %q: %w", pl.Name(), s.AsError()))
		}
	}
	state.SetSkipScorePlugins(skip)

	total := make([]int64, len(nodes))
	list := make(fwk.NodeScoreList, len(nodes))
	for _, pl := range p.score {
		if skip.Has(pl.Name()) {
			continue
		}
		if s := p.scoreOne(ctx, state, pod, nodes, pl, list); !s.IsSuccess() {
			return nil, fwk.AsStatus(fmt.Errorf("score plugin %q: %w", pl.Name(), s.AsError()))
		}
		for i := range list {
			if list[i].Score < fwk.MinScore || list[i].Score > fwk.MaxScore {
				return nil, fwk.AsStatus(fmt.Errorf("score plugin %q gave node %q %d, which is not within %d to %d",
					pl.Name(), list[i].Name, list[i].Score, fwk.MinScore, fwk.MaxScore))
			}
			total[i] += list[i].Score * pl.weight
		}
	}
	return total, nil
}

func (p *Profile) scoreOne(
	ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo, pl weighted, list fwk.NodeScoreList,
) *fwk.Status {
	var mu sync.Mutex
	var failed *fwk.Status
	p.parallel.Each(len(nodes), func(i int) {
		score, s := pl.Score(ctx, state, pod, nodes[i])
		if !s.IsSuccess() {
			mu.Lock()
			failed = s
			mu.Unlock()
			return
		}
		list[i] = fwk.NodeScore{Name: nodes[i].Node().Name, Score: score}
	})
	if failed != nil {
		return failed
	}
	if x := pl.ScoreExtensions(); x != nil {
		return x.NormalizeScore(ctx, state, pod, list)
	}
	return nil
}

// Reserve runs the plugins' Reserve. When one refuses, the ones before it are undone.
func (p *Profile) Reserve(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	for _, pl := range p.reserve {
		if s := pl.Reserve(ctx, state, pod, node); !s.IsSuccess() {
			p.Unreserve(ctx, state, pod, node)
			return s.WithPlugin(pl.Name())
		}
	}
	return nil
}

// Unreserve undoes Reserve, last plugin first.
func (p *Profile) Unreserve(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) {
	for i := len(p.reserve) - 1; i >= 0; i-- {
		p.reserve[i].Unreserve(ctx, state, pod, node)
	}
}

// PreBind prepares the node for the pod. It may take as long as the plugins allow.
func (p *Profile) PreBind(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	for _, pl := range p.preBind {
		_, s := pl.PreBindPreFlight(ctx, state, pod, node)
		if s.IsSkip() {
			continue
		}
		if s.IsSuccess() {
			s = pl.PreBind(ctx, state, pod, node)
		}
		if !s.IsSuccess() {
			return fwk.AsStatus(fmt.Errorf("running PreBind plugin %q: %w", pl.Name(), s.AsError())).WithPlugin(
				pl.Name())
		}
	}
	return nil
}

// Bind runs the binding extender, or else the first Bind plugin that accepts the pod, and PostBind.
func (p *Profile) Bind(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	if s := p.write(ctx, state, pod, node); !s.IsSuccess() {
		return s
	}
	for _, post := range p.postBind {
		post.PostBind(ctx, state, pod, node)
	}
	return nil
}

// write has the binding written.
func (p *Profile) write(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	if p.extenders != nil {
		if took, err := p.extenders.Bind(ctx, pod); err != nil {
			return fwk.AsStatus(err).WithPlugin(ExtenderName)
		} else if took {
			return nil
		}
	}
	for _, pl := range p.bind {
		switch s := pl.Bind(ctx, state, pod, node); {
		case s.IsSkip():
		case s.IsSuccess():
			return nil
		default:
			return s.WithPlugin(pl.Name())
		}
	}
	return fwk.AsStatus(fmt.Errorf("scheduler profile %q: no bind plugin took the pod", p.name))
}
