package framework

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	fwk "k8s.io/kube-scheduler/framework"
)

// Profile is a set of plugins, built for one term, sorted by the extension points they serve.
type Profile struct {
	name     string
	parallel Parallel
	nominees *Nominator
	// extenders is nil when there are none.
	extenders Extenders
	// percentage of nodes to score; nil where that of the scheduler counts.
	percentage *int32

	queueSort  fwk.QueueSortPlugin
	preEnqueue []fwk.PreEnqueuePlugin
	preFilter  []fwk.PreFilterPlugin
	filter     []fwk.FilterPlugin
	postFilter []fwk.PostFilterPlugin
	preScore   []fwk.PreScorePlugin
	score      []weighted
	reserve    []fwk.ReservePlugin
	preBind    []fwk.PreBindPlugin
	bind       []fwk.BindPlugin
	postBind   []fwk.PostBindPlugin
	events     map[string][]fwk.ClusterEventWithHint
}

type weighted struct {
	fwk.ScorePlugin
	weight int64
}

// NewProfile builds the plugins that spec names. It fails when a profile could not work: without
// exactly one plugin that sorts the queue, or without one that binds.
func NewProfile(ctx context.Context, spec Spec, registry Registry, world World) (*Profile, error) {
	if err := spec.Validate(registry); err != nil {
		return nil, err
	}
	p := &Profile{
		name: spec.SchedulerName, parallel: world.Parallel, nominees: world.Nominator,
		percentage: spec.PercentageOfNodesToScore,
		extenders:  world.Extenders,
		events:     map[string][]fwk.ClusterEventWithHint{ExtenderName: anything()},
	}
	built := map[string]fwk.Plugin{}
	for _, name := range spec.names() {
		pl, err := registry[name](&Handle{World: world, Args: spec.Args[name], profile: p})
		if err != nil {
			return nil, fmt.Errorf("scheduler profile %q: build plugin %q: %w", p.name, name, err)
		}
		built[name] = pl
		if err := p.registerEvents(ctx, pl); err != nil {
			return nil, fmt.Errorf("scheduler profile %q: plugin %q: %w", p.name, name, err)
		}
	}
	if err := p.enable(spec, built); err != nil {
		return nil, fmt.Errorf("scheduler profile %q: %w", p.name, err)
	}
	return p, nil
}

// enable puts the plugins where they run.
func (p *Profile) enable(spec Spec, built map[string]fwk.Plugin) error {
	sorts, err := pluginsAt[fwk.QueueSortPlugin](spec, QueueSort, built)
	if err != nil {
		return err
	}
	if len(sorts) != 1 {
		return fmt.Errorf("%d plugins sort the queue: want one, such as PrioritySort", len(sorts))
	}
	p.queueSort = sorts[0]
	scores, err := pluginsAt[fwk.ScorePlugin](spec, Score, built)
	if err != nil {
		return err
	}
	for _, x := range scores {
		p.score = append(p.score, weighted{x, spec.weight(x.Name())})
	}
	if err := errors.Join(
		place(&p.preEnqueue, spec, PreEnqueue, built),
		place(&p.preFilter, spec, PreFilter, built),
		place(&p.filter, spec, Filter, built),
		place(&p.postFilter, spec, PostFilter, built),
		place(&p.preScore, spec, PreScore, built),
		place(&p.reserve, spec, Reserve, built),
		place(&p.preBind, spec, PreBind, built),
		place(&p.bind, spec, Bind, built),
		place(&p.postBind, spec, PostBind, built),
	); err != nil {
		return err
	}
	if len(p.bind) == 0 {
		return errors.New("no plugin binds: want one, such as DefaultBinder")
	}
	return nil
}

func place[T fwk.Plugin](to *[]T, spec Spec, point Point, built map[string]fwk.Plugin) (err error) {
	*to, err = pluginsAt[T](spec, point, built)
	return err
}

func (p *Profile) registerEvents(ctx context.Context, pl fwk.Plugin) error {
	x, ok := pl.(fwk.EnqueueExtensions)
	if !ok {
		// The plugin registers no events, so any event may help.
		p.events[pl.Name()] = anything()
		return nil
	}
	events, err := x.EventsToRegister(ctx)
	if err != nil {
		return fmt.Errorf("events to register: %w", err)
	}
	p.events[pl.Name()] = events
	return nil
}

func anything() []fwk.ClusterEventWithHint {
	return []fwk.ClusterEventWithHint{{Event: fwk.ClusterEvent{Resource: fwk.WildCard, ActionType: fwk.All}}}
}

// Name returns the scheduler name that the profile answers to.
func (p *Profile) Name() string { return p.name }

// PercentageOfNodesToScore returns the profile's own, or orElse when it has none.
func (p *Profile) PercentageOfNodesToScore(orElse int) int {
	if p.percentage != nil {
		return int(*p.percentage)
	}
	return orElse
}

// Scores reports whether any plugin scores nodes.
func (p *Profile) Scores() bool { return len(p.score) > 0 }

// Events returns, by plugin, the events that may help a pod it rejected.
func (p *Profile) Events() map[string][]fwk.ClusterEventWithHint { return p.events }

// Less orders the queue.
func (p *Profile) Less(a, b fwk.QueuedEntityInfo) bool { return p.queueSort.Less(a, b) }

// PreEnqueue returns why the pod must not be tried yet, nil if it may.
func (p *Profile) PreEnqueue(ctx context.Context, pod *v1.Pod) *fwk.Status {
	for _, pl := range p.preEnqueue {
		if s := pl.PreEnqueue(ctx, pod); !s.IsSuccess() {
			return s.WithPlugin(pl.Name())
		}
	}
	return nil
}

// PreFilter prepares the cycle and may narrow the nodes. narrowedBy names the plugins that
// did.
func (p *Profile) PreFilter(
	ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo,
) (res *fwk.PreFilterResult, narrowedBy sets.Set[string], _ *fwk.Status) {
	skip, narrowedBy := sets.New[string](), sets.New[string]()
	for _, pl := range p.preFilter {
		r, s := pl.PreFilter(ctx, state, pod, nodes)
		if s.IsSkip() {
			skip.Insert(pl.Name())
			continue
		}
		if !s.IsSuccess() {
			return nil, narrowedBy, s.WithPlugin(pl.Name())
		}
		if !r.AllNodes() {
			narrowedBy.Insert(pl.Name())
			res = res.Merge(r)
		}
	}
	state.SetSkipFilterPlugins(skip)
	return res, narrowedBy, nil
}

// Filter returns why the pod cannot run on the node, nil if it can.
func (p *Profile) Filter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	skip := state.GetSkipFilterPlugins()
	for _, pl := range p.filter {
		if skip.Has(pl.Name()) {
			continue
		}
		if s := pl.Filter(ctx, state, pod, node); !s.IsSuccess() {
			return s.WithPlugin(pl.Name())
		}
	}
	return nil
}

// FilterWithNominated is Filter with room kept for pods that wait for the node and are at least as
// important. These may never come, so the pod must fit with and without them.
func (p *Profile) FilterWithNominated(
	ctx context.Context, state fwk.CycleState, pod *v1.Pod, node *NodeInfo,
) *fwk.Status {
	waiting := p.nominees.On(node.Node().Name)
	if len(waiting) > 0 {
		with, added := node.Clone(), false
		withState := state.Clone()
		for _, w := range waiting {
			if w.GetPod().UID == pod.UID || corev1helpers.PodPriority(w.GetPod()) < corev1helpers.PodPriority(pod) {
				continue
			}
			added = true
			with.AddPodInfo(w)
			s := p.simulate(withState, func(x fwk.PreFilterExtensions) *fwk.Status {
				return x.AddPod(ctx, withState, pod, w, with)
			})
			if !s.IsSuccess() {
				return s
			}
		}
		if added {
			if s := p.Filter(ctx, withState, pod, with); !s.IsSuccess() {
				return s
			}
		}
	}
	return p.Filter(ctx, state, pod, node)
}

func (p *Profile) simulate(state fwk.CycleState, do func(fwk.PreFilterExtensions) *fwk.Status) *fwk.Status {
	skip := state.GetSkipFilterPlugins()
	for _, pl := range p.preFilter {
		x := pl.PreFilterExtensions()
		if x == nil || skip.Has(pl.Name()) {
			continue
		}
		if s := do(x); !s.IsSuccess() {
			return s.WithPlugin(pl.Name())
		}
	}
	return nil
}

// PostFilter lets plugins make room for a pod that fits nowhere, until one succeeds. It returns the
// node to nominate and the plugins' messages. Without a node the nomination stays as it is.
func (p *Profile) PostFilter(
	ctx context.Context, state fwk.CycleState, pod *v1.Pod, why fwk.NodeToStatusReader,
) (*fwk.NominatingInfo, *fwk.Status) {
	var nominated *fwk.NominatingInfo
	var reasons []string
	for _, pl := range p.postFilter {
		r, s := pl.PostFilter(ctx, state, pod, why)
		if r != nil && r.NominatingInfo != nil && r.NominatingMode != fwk.ModeNoop {
			nominated = r.NominatingInfo
		}
		switch {
		case s == nil:
			return nominated, nil
		case s.IsSuccess(), s.Code() == fwk.UnschedulableAndUnresolvable:
			return nominated, s.WithPlugin(pl.Name())
		case !s.IsRejected():
			return nil, s.WithPlugin(pl.Name())
		}
		reasons = append(reasons, s.Reasons()...)
	}
	return nominated, fwk.NewStatus(fwk.Unschedulable, reasons...)
}
