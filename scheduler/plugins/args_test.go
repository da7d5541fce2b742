package plugins

import (
	"fmt"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/barque/barque/scheduler/framework"
	"github.com/barque/barque/scheduler/plugins/names"
	"github.com/barque/barque/scheduler/plugins/plugintest"
)

// byCPU are arguments of NodeResourcesFit that score by CPU alone.
func byCPU(kind configv1.ScoringStrategyType, shape ...configv1.UtilizationShapePoint) runtime.Object {
	s := &configv1.ScoringStrategy{Type: kind, Resources: []configv1.ResourceSpec{{Name: "cpu", Weight: 1}}}
	if shape != nil {
		s.RequestedToCapacityRatio = &configv1.RequestedToCapacityRatioParam{Shape: shape}
	}
	return &configv1.NodeResourcesFitArgs{ScoringStrategy: s}
}

// TestScoringArguments: node a has 1 of 4 CPUs in use, b none; the pod asks for another.
func TestScoringArguments(t *testing.T) {
	ssd := v1.NodeSelectorTerm{
		MatchExpressions: []v1.NodeSelectorRequirement{
			{Key: "disk", Operator: v1.NodeSelectorOpIn, Values: []string{"ssd"}}}}
	type point = configv1.UtilizationShapePoint
	weighted := &configv1.NodeResourcesFitArgs{ScoringStrategy: &configv1.ScoringStrategy{Type: configv1.MostAllocated,
		Resources: []configv1.ResourceSpec{{Name: "cpu", Weight: 3}, {Name: "memory", Weight: 1},
			{Name: "example.com/gpu", Weight: 100}}}}
	for name, c := range map[string]struct {
		plugin string
		args   runtime.Object
		a, b   int64
	}{
		"least":   {names.NodeResourcesFit, byCPU(configv1.LeastAllocated), 50, 75},
		"most":    {names.NodeResourcesFit, byCPU(configv1.MostAllocated), 50, 25},
		"weights": {names.NodeResourcesFit, weighted, (3*50 + 50) / 4, (3*25 + 25) / 4},
		"rising ratio": {names.NodeResourcesFit,
			byCPU(configv1.RequestedToCapacityRatio, point{}, point{Utilization: 100, Score: 10}), 50, 25},
		"bent ratio": {names.NodeResourcesFit,
			byCPU(configv1.RequestedToCapacityRatio, point{Utilization: 25, Score: 2},
				point{Utilization: 75, Score: 6}), 40, 20},
		"level ratio": {names.NodeResourcesFit,
			byCPU(configv1.RequestedToCapacityRatio, point{Utilization: 10, Score: 3}), 30, 30},
		"unused resources do not count": {names.NodeResourcesBalancedAllocation,
			&configv1.NodeResourcesBalancedAllocationArgs{
				Resources: []configv1.ResourceSpec{{Name: "cpu", Weight: 1}, {Name: "example.com/gpu", Weight: 1}}},
			100,
			100},
		"three resources": {names.NodeResourcesBalancedAllocation, &configv1.NodeResourcesBalancedAllocationArgs{
			Resources: []configv1.ResourceSpec{{Name: "cpu", Weight: 1}, {Name: "memory", Weight: 1},
				{Name: "ephemeral-storage", Weight: 1}}}, 76, 88},
		"added preference": {names.NodeAffinity, &configv1.NodeAffinityArgs{AddedAffinity: &v1.NodeAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []v1.PreferredSchedulingTerm{
				{Weight: 7, Preference: ssd}}}}, 0, 100},
	} {
		t.Run(name, func(t *testing.T) {
			got := newWorld(t, []any{
				aNode("a"), aNode("b", labelled("disk", "ssd")), aPod("x", on("a"), asks("cpu", "1", "memory", "2Gi")),
				argsFor(c.plugin, c.args),
			}, c.plugin).Score(aPod("p", asks("cpu", "1", "memory", "2Gi")))
			if got["a"] != c.a || got["b"] != c.b {
				t.Errorf("scores are %v, want %d for a and %d for b", got, c.a, c.b)
			}
		})
	}
}

func TestFilterArguments(t *testing.T) {
	ssd := v1.NodeSelectorTerm{
		MatchExpressions: []v1.NodeSelectorRequirement{
			{Key: "disk", Operator: v1.NodeSelectorOpIn, Values: []string{"ssd"}}}}
	none := &configv1.ScoringStrategy{Type: configv1.LeastAllocated, Resources: cpuAndMemory()}
	spread := &configv1.PodTopologySpreadArgs{DefaultingType: configv1.ListDefaulting,
		DefaultConstraints: []v1.TopologySpreadConstraint{
			{MaxSkew: 1, TopologyKey: v1.LabelHostname, WhenUnsatisfiable: v1.DoNotSchedule},
		}}
	service := &v1.Service{Spec: v1.ServiceSpec{Selector: map[string]string{"app": "web"}}}
	service.Namespace, service.Name = "default", "web"
	for name, c := range map[string]struct {
		args plugintest.Arguments
		pod  *v1.Pod
		a, b string
	}{
		"too many devices": {
			argsFor(names.NodeResourcesFit, &configv1.NodeResourcesFitArgs{ScoringStrategy: none}),
			aPod("p", asks("example.com/gpu", "9")), "Insufficient example.com/gpu", "Insufficient example.com/gpu"},
		"device of somebody else": {
			argsFor(names.NodeResourcesFit,
				&configv1.NodeResourcesFitArgs{ScoringStrategy: none, IgnoredResources: []string{"example.com/gpu"}}),
			aPod("p", asks("example.com/gpu", "9")), "", ""},
		"group of somebody else": {
			argsFor(names.NodeResourcesFit,
				&configv1.NodeResourcesFitArgs{ScoringStrategy: none, IgnoredResourceGroups: []string{"example.com"}}),
			aPod("p", asks("example.com/gpu", "9")), "", ""},
		"CPU is not ignored": {
			argsFor(names.NodeResourcesFit,
				&configv1.NodeResourcesFitArgs{ScoringStrategy: none, IgnoredResources: []string{"cpu"}}),
			aPod("p", asks("cpu", "9")), "Insufficient cpu", "Insufficient cpu"},
		"added requirement": {argsFor(names.NodeAffinity, &configv1.NodeAffinityArgs{AddedAffinity: &v1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{
				NodeSelectorTerms: []v1.NodeSelectorTerm{ssd}}}}),
			aPod("p"), "node(s) didn't match scheduler-enforced node affinity", ""},
		"listed constraint": {argsFor(names.PodTopologySpread, spread), aPod("p", app("web")),
			"node(s) didn't match pod topology spread constraints", ""},
		"listed constraint, no company": {argsFor(names.PodTopologySpread, spread), aPod("p", app("db")), "", ""},
		"system constraints are only wishes": {
			argsFor(names.PodTopologySpread,
				&configv1.PodTopologySpreadArgs{DefaultingType: configv1.SystemDefaulting}), aPod("p", app("web")), "",
			""},
	} {
		t.Run(name, func(t *testing.T) {
			got, _, _ := newWorld(t, []any{
				aNode("a"), aNode("b", labelled("disk", "ssd")), aPod("x", on("a"), app("web")), service, c.args,
			}, names.NodeResourcesFit, names.NodeAffinity, names.PodTopologySpread).Filter(c.pod)
			if got["a"] != c.a || got["b"] != c.b {
				t.Errorf("a: %q, b: %q; want %q, %q", got["a"], got["b"], c.a, c.b)
			}
		})
	}
}

// TestInterPodArguments: the pod on a requires affinity to web pods, the pod on b only prefers it.
func TestInterPodArguments(t *testing.T) {
	wishes := []v1.WeightedPodAffinityTerm{{Weight: 10, PodAffinityTerm: podTerm("web", v1.LabelHostname)}}
	world := []any{
		aNode("a"), aNode("b"),
		aPod("x", on("a"),
			affinity(
				v1.Affinity{
					PodAffinity: &v1.PodAffinity{
						RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{
							podTerm("web", v1.LabelHostname)}}})),
		aPod("y", on("b"),
			affinity(
				v1.Affinity{PodAffinity: &v1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: wishes}})),
	}
	for _, c := range []struct {
		weight int32
		ignore bool
		a, b   int64
	}{{1, false, 0, 100}, {50, false, 100, 0}, {0, false, 0, 100}, {50, true, 0, 0}} {
		args := argsFor(names.InterPodAffinity,
			&configv1.InterPodAffinityArgs{HardPodAffinityWeight: &c.weight,
				IgnorePreferredTermsOfExistingPods: c.ignore})
		got := newWorld(t, append(slices.Clone(world), args), names.InterPodAffinity).Score(aPod("p", app("web")))
		if got["a"] != c.a || got["b"] != c.b {
			t.Errorf("weight %d, ignore %t: scores are %v, want %d for a and %d for b", c.weight, c.ignore, got, c.a,
				c.b)
		}
	}
}

// TestPreemptionCandidates: the arguments set how many nodes with victims are compared.
func TestPreemptionCandidates(t *testing.T) {
	const nodes = 300
	var world []any
	for i := range nodes {
		name := fmt.Sprintf("n%03d", i)
		world = append(world, aNode(name), aPod("on-"+name, on(name), asks("cpu", "4"), withPriority(1)))
	}
	for _, c := range []struct{ percentage, absolute int32 }{{10, 100}, {50, 1}, {0, 7}, {100, 0}, {100, 1000}} {
		var built *Preemption
		w := newWorld(t, world, names.NodeResourcesFit)
		args := &configv1.DefaultPreemptionArgs{MinCandidateNodesPercentage: &c.percentage,
			MinCandidateNodesAbsolute: &c.absolute}
		registry := Registry()
		registry["spy"] = func(h *framework.Handle) (fwk.Plugin, error) {
			p, err := newPreemption(h)
			built = p.(*Preemption)
			return p, err
		}
		spec := framework.Spec{SchedulerName: "test", Args: map[string]runtime.Object{"spy": args},
			Plugins: []framework.Enabled{{Name: names.PrioritySort}, {Name: names.DefaultBinder},
				{Name: names.NodeResourcesFit}, {Name: "spy"}}}
		if _, err := framework.NewProfile(t.Context(), spec, registry,
			framework.World{Informers: w.Informers, NodeInfos: w.Snapshot, Nominator: framework.NewNominator(),
				Parallel: 4}); err != nil {
			t.Fatal(err)
		}
		pod := aPod("p", asks("cpu", "4"), withPriority(10))
		_, state, _ := w.Filter(pod)
		all, _ := w.Snapshot.List()
		found, _, err := built.search(t.Context(), state, pod, all)
		if err != nil {
			t.Fatal(err)
		}
		if want := min(max(nodes*int(c.percentage)/100, int(c.absolute)), nodes); len(found) != want {
			t.Errorf("%d %%, at least %d: %d nodes found, want %d", c.percentage, c.absolute, len(found), want)
		}
	}
}
