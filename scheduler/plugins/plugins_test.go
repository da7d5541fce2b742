package plugins

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/scheduler/plugins/names"
	"github.com/barque/barque/scheduler/plugins/plugintest"
)

// The makers of a world's objects.
var (
	aNode    = plugintest.Node
	labelled = plugintest.Labelled
	aPod     = plugintest.Pod
	on       = plugintest.On
	app      = plugintest.App
	asks     = plugintest.Asks
	argsFor  = plugintest.ArgsFor
)

func newWorld(t testing.TB, objects []any, plugins ...string) *plugintest.World {
	return plugintest.New(t, Registry(), objects, plugins...)
}

func hostPortOf(ip string, port int32) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.Containers[0].Ports = append(p.Spec.Containers[0].Ports, v1.ContainerPort{HostIP: ip, HostPort: port})
	}
}

func withPriority(n int32) func(*v1.Pod) { return func(p *v1.Pod) { p.Spec.Priority = &n } }

func affinity(a v1.Affinity) func(*v1.Pod) { return func(p *v1.Pod) { p.Spec.Affinity = &a } }

func podTerm(appName, key string) v1.PodAffinityTerm {
	return v1.PodAffinityTerm{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": appName}},
		TopologyKey: key}
}

func TestFilters(t *testing.T) {
	const (
		untoleratedTaint = "node(s) had untolerated taint {k: v}"
		cordoned         = "node(s) were unschedulable"
		noMatch          = "node(s) didn't match Pod's node affinity/selector"
		portTaken        = "node(s) didn't have free ports for the requested pod ports"
		skewed           = "node(s) didn't match pod topology spread constraints"
		skewLabel        = "node(s) didn't match pod topology spread constraints (missing required label)"
		notJoined        = "node(s) didn't match pod affinity rules"
		avoided          = "node(s) didn't match pod anti-affinity rules"
		repelled         = "node(s) didn't satisfy existing pods anti-affinity rules"
	)
	always := v1.ContainerRestartPolicyAlways
	tainted := func(effect v1.TaintEffect) func(*v1.Node) {
		return func(n *v1.Node) { n.Spec.Taints = []v1.Taint{{Key: "k", Value: "v", Effect: effect}} }
	}
	tolerates := func(tol v1.Toleration) func(*v1.Pod) {
		return func(p *v1.Pod) { p.Spec.Tolerations = []v1.Toleration{tol} }
	}
	spread := func(skew int32, change ...func(*v1.TopologySpreadConstraint)) func(*v1.Pod) {
		return func(p *v1.Pod) {
			c := v1.TopologySpreadConstraint{
				MaxSkew: skew, TopologyKey: "zone", WhenUnsatisfiable: v1.DoNotSchedule,
				LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			}
			for _, f := range change {
				f(&c)
			}
			p.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{c}
		}
	}
	anti := affinity(
		v1.Affinity{
			PodAntiAffinity: &v1.PodAntiAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{podTerm("web", "zone")}}})
	join := affinity(
		v1.Affinity{
			PodAffinity: &v1.PodAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{podTerm("web", "zone")}}})
	zones := []any{aNode("a", labelled("zone", "1")), aNode("b", labelled("zone", "2")), aNode("c")}
	with := func(more ...any) []any { return append(slices.Clone(zones), more...) }

	for name, c := range map[string]struct {
		plugin string
		world  []any
		pod    *v1.Pod
		want   map[string]string // by node
	}{
		"fits exactly": {names.NodeResourcesFit, []any{aNode("a"), aPod("x", on("a"), asks("cpu", "1"))},
			aPod("p", asks("cpu", "3", "memory", "8Gi")), map[string]string{"a": ""}},
		"lacks CPU": {names.NodeResourcesFit, []any{aNode("a"), aPod("x", on("a"), asks("cpu", "1"))},
			aPod("p", asks("cpu", "3001m")), map[string]string{"a": "Insufficient cpu"}},
		"lacks two": {names.NodeResourcesFit, []any{aNode("a")}, aPod("p", asks("cpu", "5", "memory", "9Gi")),
			map[string]string{"a": "Insufficient cpu, Insufficient memory"}},
		"lacks storage": {names.NodeResourcesFit, []any{aNode("a")}, aPod("p", asks("ephemeral-storage", "11Gi")),
			map[string]string{"a": "Insufficient ephemeral-storage"}},
		"lacks devices": {names.NodeResourcesFit,
			[]any{aNode("a"), aPod("x", on("a"), asks("example.com/gpu", "1"))},
			aPod("p", asks("example.com/gpu", "2")), map[string]string{"a": "Insufficient example.com/gpu"}},
		"unknown device": {names.NodeResourcesFit, []any{aNode("a")}, aPod("p", asks("example.com/tpu", "1")),
			map[string]string{"a": "Insufficient example.com/tpu"}},
		"asks for nothing": {names.NodeResourcesFit, []any{aNode("a"), aPod("x", on("a"), asks("cpu", "4"))}, aPod("p"),
			map[string]string{"a": ""}},
		"too many pods": {names.NodeResourcesFit,
			[]any{aNode("a", func(n *v1.Node) { n.Status.Allocatable["pods"] = resource.MustParse("1") }),
				aPod("x", on("a"))}, aPod("p"), map[string]string{"a": "Too many pods"}},
		"init container": {names.NodeResourcesFit, []any{aNode("a")}, aPod("p", asks("cpu", "1"), func(p *v1.Pod) {
			p.Spec.InitContainers = []v1.Container{
				{Resources: v1.ResourceRequirements{Requests: plugintest.List("cpu", "4")}}}
		}), map[string]string{"a": ""}},
		"sidecar adds up": {names.NodeResourcesFit, []any{aNode("a")}, aPod("p", asks("cpu", "1"), func(p *v1.Pod) {
			p.Spec.InitContainers = []v1.Container{
				{RestartPolicy: &always, Resources: v1.ResourceRequirements{Requests: plugintest.List("cpu", "4")}}}
		}), map[string]string{"a": "Insufficient cpu"}},
		"overhead": {names.NodeResourcesFit, []any{aNode("a")},
			aPod("p", asks("cpu", "4"), func(p *v1.Pod) { p.Spec.Overhead = plugintest.List("cpu", "1m") }),
			map[string]string{"a": "Insufficient cpu"}},
		"node name": {names.NodeName, []any{aNode("a"), aNode("b")}, aPod("p", on("a")),
			map[string]string{"a": "", "b": "node(s) didn't match the requested node name"}},
		"cordoned": {names.NodeUnschedulable,
			[]any{aNode("a", func(n *v1.Node) { n.Spec.Unschedulable = true })}, aPod("p"),
			map[string]string{"a": cordoned}},
		"cordoned, tolerated": {names.NodeUnschedulable,
			[]any{aNode("a", func(n *v1.Node) { n.Spec.Unschedulable = true })},
			aPod("p", tolerates(v1.Toleration{Key: v1.TaintNodeUnschedulable, Operator: v1.TolerationOpExists})),
			map[string]string{"a": ""}},
		"taint": {names.TaintToleration, []any{aNode("a", tainted(v1.TaintEffectNoSchedule))}, aPod("p"),
			map[string]string{"a": untoleratedTaint}},
		"taint NoExecute": {names.TaintToleration, []any{aNode("a", tainted(v1.TaintEffectNoExecute))}, aPod("p"),
			map[string]string{"a": untoleratedTaint}},
		"taint preferred": {names.TaintToleration, []any{aNode("a", tainted(v1.TaintEffectPreferNoSchedule))},
			aPod("p"), map[string]string{"a": ""}},
		"taint tolerated": {names.TaintToleration, []any{aNode("a", tainted(v1.TaintEffectNoSchedule))},
			aPod("p", tolerates(v1.Toleration{Key: "k", Value: "v"})), map[string]string{"a": ""}},
		"other toleration": {names.TaintToleration, []any{aNode("a", tainted(v1.TaintEffectNoSchedule))},
			aPod("p", tolerates(v1.Toleration{Key: "k", Value: "w"})), map[string]string{"a": untoleratedTaint}},
		"node selector": {names.NodeAffinity, zones,
			aPod("p", func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"zone": "1"} }),
			map[string]string{"a": "", "b": noMatch, "c": noMatch}},
		"node affinity": {names.NodeAffinity, zones,
			aPod("p",
				affinity(
					v1.Affinity{
						NodeAffinity: &v1.NodeAffinity{
							RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{
								NodeSelectorTerms: []v1.NodeSelectorTerm{
									{MatchExpressions: []v1.NodeSelectorRequirement{
										{Key: "zone", Operator: v1.NodeSelectorOpIn, Values: []string{"2"}}}},
									{MatchExpressions: []v1.NodeSelectorRequirement{
										{Key: "zone", Operator: v1.NodeSelectorOpDoesNotExist}}},
								}}}})), map[string]string{"a": noMatch, "b": "", "c": ""}},
		"node by field": {names.NodeAffinity, zones,
			aPod("p",
				affinity(
					v1.Affinity{
						NodeAffinity: &v1.NodeAffinity{
							RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{
								NodeSelectorTerms: []v1.NodeSelectorTerm{
									{MatchFields: []v1.NodeSelectorRequirement{
										{Key: "metadata.name", Operator: v1.NodeSelectorOpIn, Values: []string{"b"}}}},
								}}}})), map[string]string{"a": "narrowed", "b": "", "c": "narrowed"}},
		"port taken": {names.NodePorts, []any{aNode("a"), aNode("b"), aPod("x", on("a"), hostPortOf("", 80))},
			aPod("p", hostPortOf("", 80)), map[string]string{"a": portTaken, "b": ""}},
		"port on other IP": {names.NodePorts, []any{aNode("a"), aPod("x", on("a"), hostPortOf("10.0.0.1", 80))},
			aPod("p", hostPortOf("10.0.0.2", 80)), map[string]string{"a": ""}},
		"port on all IPs": {names.NodePorts, []any{aNode("a"), aPod("x", on("a"), hostPortOf("10.0.0.1", 80))},
			aPod("p", hostPortOf("", 80)), map[string]string{"a": portTaken}},
		"spread: even": {names.PodTopologySpread, zones, aPod("p", app("web"), spread(1)),
			map[string]string{"a": "", "b": "", "c": skewLabel}},
		"spread: skewed": {names.PodTopologySpread, with(aPod("x", on("a"), app("web"))),
			aPod("p", app("web"), spread(1)), map[string]string{"a": skewed, "b": "", "c": skewLabel}},
		"spread: tolerated": {names.PodTopologySpread, with(aPod("x", on("a"), app("web"))),
			aPod("p", app("web"), spread(2)),
			map[string]string{"a": "", "b": "", "c": skewLabel}},
		"spread: other namespace": {names.PodTopologySpread,
			with(aPod("x", on("a"), app("web"), func(p *v1.Pod) { p.Namespace = "other" })),
			aPod("p", app("web"), spread(1)),
			map[string]string{"a": "", "b": "", "c": skewLabel}},
		"spread: too few domains": {names.PodTopologySpread,
			with(aPod("x", on("a"), app("web")), aPod("y", on("b"), app("web"))),
			aPod("p", app("web"),
				spread(1, func(c *v1.TopologySpreadConstraint) { three := int32(3); c.MinDomains = &three })),
			map[string]string{"a": skewed, "b": skewed, "c": skewLabel}},
		"spread: only nodes of the selector count": {names.PodTopologySpread, with(aPod("x", on("a"), app("web"))),
			aPod("p", app("web"), spread(1), func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"zone": "1"} }),
			map[string]string{"a": "", "b": "", "c": skewLabel}},
		"spread: match label keys": {names.PodTopologySpread,
			with(aPod("x", on("a"), app("web"), func(p *v1.Pod) { p.Labels["rev"] = "1" })),
			aPod("p", app("web"), func(p *v1.Pod) { p.Labels["rev"] = "2" },
				spread(1, func(c *v1.TopologySpreadConstraint) { c.MatchLabelKeys = []string{"rev"} })),
			map[string]string{"a": "", "b": "", "c": skewLabel}},
		"anti-affinity": {names.InterPodAffinity, with(aPod("x", on("a"), app("web"))), aPod("p", anti),
			map[string]string{"a": avoided, "b": "", "c": ""}},
		"anti-affinity, reverse": {names.InterPodAffinity, with(aPod("x", on("a"), anti)), aPod("p", app("web")),
			map[string]string{"a": repelled, "b": "", "c": ""}},
		"affinity": {names.InterPodAffinity, with(aPod("x", on("b"), app("web"))), aPod("p", join),
			map[string]string{"a": notJoined, "b": "", "c": notJoined}},
		"affinity, nobody there": {names.InterPodAffinity, zones, aPod("p", join),
			map[string]string{"a": notJoined, "b": notJoined, "c": notJoined}},
		"affinity, first of all": {names.InterPodAffinity, zones, aPod("p", app("web"), join),
			map[string]string{"a": "", "b": "", "c": notJoined}},
		"affinity by namespace": {names.InterPodAffinity, with(
			&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other", Labels: map[string]string{"team": "x"}}},
			aPod("x", on("b"), app("web"), func(p *v1.Pod) { p.Namespace = "other" })),
			aPod("p",
				affinity(
					v1.Affinity{
						PodAffinity: &v1.PodAffinity{
							RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{
								func() v1.PodAffinityTerm {
									term := podTerm("web", "zone")
									term.NamespaceSelector = &metav1.LabelSelector{
										MatchLabels: map[string]string{"team": "x"}}
									return term
								}()}}})), map[string]string{"a": notJoined, "b": "", "c": notJoined}},
	} {
		t.Run(name, func(t *testing.T) {
			got, _, _ := newWorld(t, c.world, c.plugin).Filter(c.pod)
			for node, want := range c.want {
				if got[node] != want {
					t.Errorf("node %s: %q, want %q", node, got[node], want)
				}
			}
			if len(got) != len(c.want) {
				t.Errorf("%d nodes, want %d", len(got), len(c.want))
			}
		})
	}
}

func TestScores(t *testing.T) {
	owned := func(p *v1.Pod) {
		yes := true
		p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "rs", UID: "rs", Controller: &yes}}
	}
	image := func(size int64) func(*v1.Node) {
		return func(n *v1.Node) {
			n.Status.Images = []v1.ContainerImage{{Names: []string{"docker.io/library/nginx:latest"}, SizeBytes: size}}
		}
	}
	preferZone1 := affinity(
		v1.Affinity{
			NodeAffinity: &v1.NodeAffinity{
				PreferredDuringSchedulingIgnoredDuringExecution: []v1.PreferredSchedulingTerm{
					{Weight: 5,
						Preference: v1.NodeSelectorTerm{
							MatchExpressions: []v1.NodeSelectorRequirement{
								{Key: "zone", Operator: v1.NodeSelectorOpIn, Values: []string{"1"}}}}},
				}}})
	preferred := []v1.WeightedPodAffinityTerm{{Weight: 10, PodAffinityTerm: podTerm("web", "zone")}}
	ab := []any{aNode("a", labelled("zone", "1")), aNode("b", labelled("zone", "2"))}
	with := func(more ...any) []any { return append(slices.Clone(ab), more...) }
	soft := func(p *v1.Pod) {
		p.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: "zone", WhenUnsatisfiable: v1.ScheduleAnyway,
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		}}
	}

	for name, c := range map[string]struct {
		plugin string
		world  []any
		pod    *v1.Pod
		want   map[string]int64
	}{
		"least allocated": {names.NodeResourcesFit, with(aPod("x", on("a"), asks("cpu", "2", "memory", "4Gi"))),
			aPod("p", asks("cpu", "1", "memory", "2Gi")), map[string]int64{"a": 25, "b": 75}},
		"default requests count": {names.NodeResourcesFit, with(aPod("x", on("a")), aPod("y", on("a"))),
			aPod("p", asks("cpu", "0", "memory", "0")), map[string]int64{"a": 95, "b": 100}},
		"balanced": {names.NodeResourcesBalancedAllocation, with(aPod("x", on("a"), asks("cpu", "2"))),
			aPod("p", asks("cpu", "1", "memory", "2Gi")), map[string]int64{"a": 75, "b": 100}},
		"soft taints": {names.TaintToleration,
			[]any{
				aNode("a",
					func(
						n *v1.Node,
					) {
						n.Spec.Taints = []v1.Taint{{Key: "k", Effect: v1.TaintEffectPreferNoSchedule}}
					}), aNode("b")}, aPod("p"), map[string]int64{"a": 0, "b": 100}},
		"preferred node": {names.NodeAffinity, ab, aPod("p", preferZone1), map[string]int64{"a": 100, "b": 0}},
		"no preference":  {names.NodeAffinity, ab, aPod("p"), map[string]int64{"a": 0, "b": 0}},
		"image present": {names.ImageLocality, []any{aNode("a", image(1000<<20)), aNode("b")}, aPod("p"),
			map[string]int64{"a": 48, "b": 0}},
		"image too small": {names.ImageLocality, []any{aNode("a", image(10<<20)), aNode("b")}, aPod("p"),
			map[string]int64{"a": 0, "b": 0}},
		"spread a controller's": {names.PodTopologySpread, with(aPod("x", on("a"), owned), aPod("y", on("b"))),
			aPod("p", owned), map[string]int64{"a": 66, "b": 100}},
		"spread a service's": {names.PodTopologySpread, with(
			&v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "s"},
				Spec: v1.ServiceSpec{Selector: map[string]string{"app": "web"}}},
			aPod("x", on("a"), app("web")), aPod("y", on("b"), app("db"))), aPod("p", app("web")),
			map[string]int64{"a": 66, "b": 100}},
		"lone pod": {names.PodTopologySpread, with(aPod("x", on("a"))), aPod("p"),
			map[string]int64{"a": 0, "b": 0}},
		"soft constraint": {names.PodTopologySpread,
			with(aPod("x", on("a"), app("web")), aPod("y", on("a"), app("web")), aPod("z", on("b"), app("web")),
				aNode("c")), aPod("p", app("web"), soft), map[string]int64{"a": 33, "b": 100, "c": 0}},
		"a node without all labels of soft constraints": {names.PodTopologySpread, []any{
			aNode("a", labelled("zone", "1"), labelled("rack", "1")),
			aNode("b", labelled("zone", "2"), labelled("rack", "2")), aNode("c", labelled("zone", "2")),
			aPod("x", on("a"), app("web")), aPod("y", on("c"), app("web")), aPod("z", on("c"), app("web")),
		}, aPod("p", app("web"), soft, func(p *v1.Pod) {
			rack := p.Spec.TopologySpreadConstraints[0]
			rack.TopologyKey = "rack"
			p.Spec.TopologySpreadConstraints = append(p.Spec.TopologySpreadConstraints, rack)
		}), map[string]int64{"a": 0, "b": 100, "c": 0}},
		"preferred pods": {names.InterPodAffinity, with(aPod("x", on("a"), app("web"))),
			aPod("p",
				affinity(
					v1.Affinity{
						PodAffinity: &v1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: preferred}})),
			map[string]int64{"a": 100, "b": 0}},
		"avoided pods": {names.InterPodAffinity, with(aPod("x", on("a"), app("web"))),
			aPod("p",
				affinity(
					v1.Affinity{
						PodAntiAffinity: &v1.PodAntiAffinity{
							PreferredDuringSchedulingIgnoredDuringExecution: preferred}})),
			map[string]int64{"a": 0, "b": 100}},
		"preferred by the other": {names.InterPodAffinity,
			with(
				aPod("x", on("a"),
					affinity(
						v1.Affinity{
							PodAffinity: &v1.PodAffinity{
								PreferredDuringSchedulingIgnoredDuringExecution: preferred}}))), aPod("p", app("web")),
			map[string]int64{"a": 100, "b": 0}},
	} {
		t.Run(name, func(t *testing.T) {
			got := newWorld(t, c.world, c.plugin).Score(c.pod)
			for node, want := range c.want {
				if got[node] != want {
					t.Errorf("node %s: %d, want %d", node, got[node], want)
				}
			}
		})
	}
}

func TestPreemptionDoesTheLeastHarm(t *testing.T) {
	full := func(name, node string, p int32, change ...func(*v1.Pod)) *v1.Pod {
		return aPod(name, append(change, on(node), asks("cpu", "4"), withPriority(p))...)
	}
	half := func(name, node string, p int32, change ...func(*v1.Pod)) *v1.Pod {
		return aPod(name, append(change, on(node), asks("cpu", "2"), withPriority(p))...)
	}
	// budget allows some evictions of an app's pods, beyond the pods in counted.
	budget := func(app string, allowed int32, counted ...string) *policyv1.PodDisruptionBudget {
		b := &policyv1.PodDisruptionBudget{Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{}}}
		b.Namespace, b.Name = "default", "budget"
		if app != "" {
			b.Spec.Selector.MatchLabels = map[string]string{"app": app}
		}
		b.Status.DisruptionsAllowed, b.Status.DisruptedPods = allowed, map[string]metav1.Time{}
		for _, name := range counted {
			b.Status.DisruptedPods[name] = metav1.Time{}
		}
		return b
	}
	never := v1.PreemptNever
	for name, c := range map[string]struct {
		world []any
		pod   *v1.Pod
		node  string
		gone  []string
	}{
		"lowest priority": {[]any{aNode("a"), aNode("b"), full("x", "a", 5), full("y", "b", 3)},
			aPod("p", asks("cpu", "1"), withPriority(10)), "b", []string{"y"}},
		"spares whom it can": {[]any{aNode("a"), half("x", "a", 3), half("y", "a", 5)},
			aPod("p", asks("cpu", "1"), withPriority(10)), "a", []string{"x"}},
		"fewest pods": {[]any{aNode("a"), aNode("b"), half("x", "a", 1), half("y", "a", 1), full("z", "b", 1)},
			aPod("p", asks("cpu", "4"), withPriority(10)), "b", []string{"z"}},
		"equals stay": {[]any{aNode("a"), full("x", "a", 10)}, aPod("p", asks("cpu", "1"), withPriority(10)), "",
			nil},
		"would not help": {[]any{aNode("a"), half("x", "a", 1), half("y", "a", 20)},
			aPod("p", asks("cpu", "4"), withPriority(10)), "", nil},
		"pod does not want": {[]any{aNode("a"), full("x", "a", 1)},
			aPod("p", asks("cpu", "1"), withPriority(10), func(p *v1.Pod) { p.Spec.PreemptionPolicy = &never }), "",
			nil},
		"never on this node": {[]any{aNode("a"), full("x", "a", 1)}, aPod("p", asks("cpu", "5"), withPriority(10)), "",
			nil},
		"budget before priority": {
			[]any{aNode("a"), aNode("b"), full("x", "a", 1, app("web")), full("y", "b", 5), budget("web", 0)},
			aPod("p", asks("cpu", "1"), withPriority(10)), "b", []string{"y"}},
		"budget that allows it": {
			[]any{aNode("a"), aNode("b"), full("x", "a", 1, app("web")), full("y", "b", 5), budget("web", 1)},
			aPod("p", asks("cpu", "1"), withPriority(10)), "a", []string{"x"}},
		"budget on one node": {[]any{aNode("a"), half("x", "a", 1, app("web")), half("y", "a", 5), budget("web", 0)},
			aPod("p", asks("cpu", "2"), withPriority(10)), "a", []string{"y"}},
		"budget is no veto": {[]any{aNode("a"), full("x", "a", 1, app("web")), budget("web", 0)},
			aPod("p", asks("cpu", "1"), withPriority(10)), "a", []string{"x"}},
		"budget of nobody": {
			[]any{aNode("a"), aNode("b"), full("x", "a", 1, app("web")), full("y", "b", 5), budget("", 0)},
			aPod("p", asks("cpu", "1"), withPriority(10)), "a", []string{"x"}},
		"budget counts once": {
			[]any{aNode("a"), aNode("b"), full("x", "a", 1, app("web")), full("y", "b", 5), budget("web", 0, "x")},
			aPod("p", asks("cpu", "1"), withPriority(10)), "a", []string{"x"}},
		"port, not resources": {
			[]any{aNode("a"), aPod("x", on("a"), hostPortOf("", 80), withPriority(1)),
				aPod("y", on("a"), withPriority(0))}, aPod("p", hostPortOf("", 80), withPriority(10)), "a",
			[]string{"x"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, c.world, names.NodeResourcesFit, names.NodePorts, names.InterPodAffinity,
				names.PodTopologySpread, names.DefaultPreemption)
			_, state, fit := w.Filter(c.pod)
			nominated, _ := w.Profile.PostFilter(t.Context(), state, c.pod, fit)
			node := ""
			if nominated != nil {
				node = nominated.NominatedNodeName
			}
			slices.Sort(w.Evicted)
			if node != c.node || !slices.Equal(w.Evicted, c.gone) {
				t.Errorf("frees %q by evicting %v, want %q, %v", node, w.Evicted, c.node, c.gone)
			}
		})
	}
}

func TestFullImageName(t *testing.T) {
	for in, want := range map[string]string{
		"nginx":                         "docker.io/library/nginx:latest",
		"nginx:1.21.6":                  "docker.io/library/nginx:1.21.6",
		"grafana/loki":                  "docker.io/grafana/loki:latest",
		"localhost/x":                   "localhost/x:latest",
		"registry:5000/x":               "registry:5000/x:latest",
		"ghcr.io/a/b:v1":                "ghcr.io/a/b:v1",
		"ghcr.io/a/b@sha256:0123456789": "ghcr.io/a/b@sha256:0123456789",
	} {
		if got := fullImageName(in); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}
