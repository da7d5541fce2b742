package plugins

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"time"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	policylisters "k8s.io/client-go/listers/policy/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/barque/barque/scheduler/framework"
	"github.com/barque/barque/scheduler/plugins/helper"
	"github.com/barque/barque/scheduler/plugins/names"
)

// Preemption evicts pods of lower priority for a pod that fits nowhere, on the node where that does
// the least harm. It nominates the node: the pod is tried again when the victims are gone. Victims
// are deleted outside the loop, and the pod is held in the queue meanwhile.
type Preemption struct {
	h         *framework.Handle
	budgets   policylisters.PodDisruptionBudgetLister
	evictions *evictions
	// The number of nodes with victims that are compared: a share of all nodes, and at least an
	// absolute number.
	minPercentage, minAbsolute int
}

func newPreemption(h *framework.Handle) (fwk.Plugin, error) {
	p := &Preemption{
		h: h, minPercentage: 10, minAbsolute: 100,
		budgets:   h.Informers.Policy().V1().PodDisruptionBudgets().Lister(),
		evictions: newEvictions(h),
	}
	args, err := framework.ArgsOf[*configv1.DefaultPreemptionArgs](h)
	if args != nil {
		p.minPercentage, p.minAbsolute = int(*args.MinCandidateNodesPercentage), int(*args.MinCandidateNodesAbsolute)
	}
	return p, err
}

// Name of the plugin.
func (*Preemption) Name() string { return names.DefaultPreemption }

// PreEnqueue holds the pod back while its victims are being deleted. Before the scheduler sees
// their end, another attempt would choose other victims.
func (p *Preemption) PreEnqueue(_ context.Context, pod *v1.Pod) *fwk.Status {
	if p.evictions.running(pod.UID) {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "waiting for the preemption for this pod to be finished")
	}
	return nil
}

// victims is the price of one node.
type victims struct {
	node string
	pods []*v1.Pod // the most important first
	// violations is how many of them a PodDisruptionBudget protects.
	violations int64
}

// PostFilter evicts pods from the cheapest node, if there is one. Without a result the pod's
// nomination stays as it is.
func (p *Preemption) PostFilter(
	ctx context.Context, state fwk.CycleState, pod *v1.Pod, why fwk.NodeToStatusReader,
) (*fwk.PostFilterResult, *fwk.Status) {
	if pod.Spec.PreemptionPolicy != nil && *pod.Spec.PreemptionPolicy == v1.PreemptNever {
		return nil, rejected("not eligible due to preemptionPolicy=Never.")
	}
	if node := p.h.Nominator.Node(pod.UID); node != "" && why.Get(node).Code() != fwk.UnschedulableAndUnresolvable &&
		p.stillLeaving(node, pod) {
		return nil, rejected("not eligible due to a terminating pod on the nominated node.")
	}
	nodes, err := why.NodesForStatusCode(p.h.NodeInfos, fwk.Unschedulable)
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	found, notFound, err := p.search(ctx, state, pod, nodes)
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	if len(found) == 0 {
		all, err := p.h.NodeInfos.List()
		if err != nil {
			return nil, fwk.AsStatus(err)
		}
		fit := &framework.FitError{AllNodes: len(all), Rejected: notFound,
			Narrowed: fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "Preemption is not helpful for scheduling")}
		return nominate(""), rejected(fit.Error())
	}
	if found, err = p.askExtenders(ctx, pod, found); err != nil {
		return nil, fwk.AsStatus(err)
	}
	if len(found) == 0 {
		return nil, rejected("no candidate node for preemption")
	}
	best := slices.MinFunc(found, compareVictims)
	if p.h.Victims != nil {
		p.h.Victims.Observe(float64(len(best.pods)))
	}
	p.evictions.start(pod, best)
	return nominate(best.node), fwk.NewStatus(fwk.Success, fmt.Sprintf(
		"preemption: found a potential placement for pod on node %s, preempting %d victims", best.node, len(best.pods)))
}

func rejected(message string) *fwk.Status {
	return fwk.NewStatus(fwk.Unschedulable, "preemption: "+message)
}

// search returns up to want nodes with victims, and the reasons of the searched nodes without. The
// start of the search depends on the pod, so that pods search different nodes. The result does not
// depend on the speed of goroutines.
func (p *Preemption) search(
	ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo,
) (found []*victims, notFound map[string]*fwk.Status, _ error) {
	notFound = map[string]*fwk.Status{}
	if len(nodes) == 0 {
		return nil, notFound, nil
	}
	budgets, err := p.budgets.List(labels.Everything())
	if err != nil {
		return nil, nil, fmt.Errorf("list PodDisruptionBudgets for preemption: %w", err)
	}
	want := min(max(len(nodes)*p.minPercentage/100, p.minAbsolute), len(nodes))
	h := fnv.New32a()
	h.Write([]byte(pod.UID))
	start := int(h.Sum32())
	for looked := 0; looked < len(nodes) && len(found) < want; {
		block := make([]*victims, min(max(want-len(found), minNodesPerSearch), len(nodes)-looked))
		reasons := make([]*fwk.Status, len(block))
		at := func(i int) fwk.NodeInfo { return nodes[(start+looked+i)%len(nodes)] }
		p.h.Parallel.Each(len(block), func(i int) {
			block[i], reasons[i] = p.victimsOn(ctx, state.Clone(), pod, at(i).(*framework.NodeInfo).Clone(), budgets)
		})
		for i, v := range block {
			switch {
			case v == nil:
				notFound[at(i).Node().Name] = reasons[i]
			case len(found) < want:
				found = append(found, v)
			}
		}
		looked += len(block)
	}
	return found, notFound, nil
}

// askExtenders returns the nodes and victims that the extenders accept.
func (p *Preemption) askExtenders(ctx context.Context, pod *v1.Pod, found []*victims) ([]*victims, error) {
	if p.h.Extenders == nil {
		return found, nil
	}
	asked := make(map[string]*extenderv1.Victims, len(found))
	for _, v := range found {
		asked[v.node] = &extenderv1.Victims{Pods: v.pods, NumPDBViolations: v.violations}
	}
	agreed, err := p.h.Extenders.Preempt(ctx, pod, asked)
	if err != nil {
		return nil, err
	}
	var out []*victims
	for _, node := range slices.Sorted(maps.Keys(agreed)) {
		pods := slices.Clone(agreed[node].Pods)
		slices.SortFunc(pods, moreImportantPod)
		out = append(out, &victims{node: node, pods: pods, violations: agreed[node].NumPDBViolations})
	}
	return out, nil
}

// minNodesPerSearch is the least number of nodes that are searched together.
const minNodesPerSearch = 64

func nominate(node string) *fwk.PostFilterResult {
	return &fwk.PostFilterResult{
		NominatingInfo: &fwk.NominatingInfo{NominatedNodeName: node, NominatingMode: fwk.ModeOverride}}
}

// stillLeaving reports whether victims of an earlier round are terminating on the node. More
// evictions before their end would be waste.
func (p *Preemption) stillLeaving(node string, pod *v1.Pod) bool {
	n, err := p.h.NodeInfos.Get(node)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(n.GetPods(), func(o fwk.PodInfo) bool {
		return preempted(o.GetPod()) && priority(o.GetPod()) < priority(pod)
	})
}

// preempted reports whether a scheduler's preemption is ending the pod.
func preempted(pod *v1.Pod) bool {
	return pod.DeletionTimestamp != nil && slices.ContainsFunc(pod.Status.Conditions, func(c v1.PodCondition) bool {
		return c.Type == v1.DisruptionTarget && c.Status == v1.ConditionTrue &&
			c.Reason == v1.PodReasonPreemptionByScheduler
	})
}

// victimsOn returns the fewest and least important pods whose end lets the pod run on the node, or
// why there are none. It changes its copies of state and node.
func (p *Preemption) victimsOn(
	ctx context.Context, state fwk.CycleState, pod *v1.Pod, node *framework.NodeInfo,
	budgets []*policyv1.PodDisruptionBudget,
) (*victims, *fwk.Status) {
	var lesser []fwk.PodInfo
	for _, o := range node.GetPods() {
		if priority(o.GetPod()) < priority(pod) {
			lesser = append(lesser, o)
		}
	}
	if len(lesser) == 0 {
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "No preemption victims found for incoming pod")
	}
	for _, o := range lesser {
		if s := p.remove(ctx, state, pod, o, node); !s.IsSuccess() {
			return nil, s
		}
	}
	if s := p.h.FilterWithNominated(ctx, state, pod, node); !s.IsSuccess() {
		return nil, s
	}
	slices.SortFunc(lesser, moreImportant)
	protected, others := byBudget(lesser, budgets)
	v := &victims{node: node.Node().Name}
	for i, o := range slices.Concat(protected, others) { // spare pods where possible, in this order
		node.AddPodInfo(o)
		if s := p.h.AddPod(ctx, state, pod, o, node); !s.IsSuccess() {
			return nil, s
		}
		if p.h.FilterWithNominated(ctx, state, pod, node).IsSuccess() {
			continue
		}
		if s := p.remove(ctx, state, pod, o, node); !s.IsSuccess() {
			return nil, s
		}
		v.pods = append(v.pods, o.GetPod())
		if i < len(protected) {
			v.violations++
		}
	}
	if len(v.pods) == 0 {
		return nil, fwk.AsStatus(fmt.Errorf("expected at least one victim pod on node %q", v.node))
	}
	slices.SortFunc(v.pods, moreImportantPod)
	return v, nil
}

// byBudget divides pods, the most important first, by whether a PodDisruptionBudget still allows
// their eviction.
func byBudget(pods []fwk.PodInfo, budgets []*policyv1.PodDisruptionBudget) (protected, others []fwk.PodInfo) {
	allowed := make([]int32, len(budgets))
	for i, b := range budgets {
		allowed[i] = b.Status.DisruptionsAllowed
	}
	for _, o := range pods {
		if violates(o.GetPod(), budgets, allowed) {
			protected = append(protected, o)
		} else {
			others = append(others, o)
		}
	}
	return protected, others
}

// violates subtracts the pod's eviction from its budgets, and reports whether one is exceeded.
func violates(pod *v1.Pod, budgets []*policyv1.PodDisruptionBudget, allowed []int32) bool {
	if len(pod.Labels) == 0 {
		return false
	}
	for i, b := range budgets {
		if b.Namespace != pod.Namespace {
			continue
		}
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil || selector.Empty() || !selector.Matches(labels.Set(pod.Labels)) {
			continue // to a preemption, an empty selector means no pod
		}
		if _, counted := b.Status.DisruptedPods[pod.Name]; counted {
			continue
		}
		if allowed[i]--; allowed[i] < 0 {
			return true
		}
	}
	return false
}

func (p *Preemption) remove(
	ctx context.Context, state fwk.CycleState, pod *v1.Pod, o fwk.PodInfo, node *framework.NodeInfo,
) *fwk.Status {
	if err := node.RemovePod(logr.Discard(), o.GetPod()); err != nil {
		return fwk.AsStatus(err)
	}
	return p.h.RemovePod(ctx, state, pod, o, node)
}

// compareVictims puts the lesser harm first: fewer violated budgets, the lower highest priority,
// the lower sum of priorities, fewer pods, younger pods; then the name, to be the same every time.
func compareVictims(a, b *victims) int {
	return cmp.Or(
		cmp.Compare(a.violations, b.violations),
		cmp.Compare(priority(a.pods[0]), priority(b.pods[0])),
		cmp.Compare(sumOfPriorities(a.pods), sumOfPriorities(b.pods)),
		cmp.Compare(len(a.pods), len(b.pods)),
		begin(b.pods[0]).Compare(begin(a.pods[0])),
		cmp.Compare(a.node, b.node),
	)
}

// begin is since when the pod runs, or since when it exists.
func begin(pod *v1.Pod) time.Time {
	if pod.Status.StartTime != nil {
		return pod.Status.StartTime.Time
	}
	return pod.CreationTimestamp.Time
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
		begin(a).Compare(begin(b)),
		cmp.Compare(a.Name, b.Name),
	)
}

func priority(pod *v1.Pod) int32 { return corev1helpers.PodPriority(pod) }

// EventsToRegister names the end of a victim, for pods that PreEnqueue holds back.
func (*Preemption) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{helper.Event(fwk.AssignedPod, fwk.Delete)}, nil
}
