package daemonset

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/barque/barque/controllers/pods"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func set(unavailable, surge int, edits ...func(*appsv1.DaemonSet)) *appsv1.DaemonSet {
	u, s := intstr.FromInt32(int32(unavailable)), intstr.FromInt32(int32(surge))
	d := &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "ds", UID: "ds", Generation: 4},
		Spec: appsv1.DaemonSetSpec{UpdateStrategy: appsv1.DaemonSetUpdateStrategy{
			Type:          appsv1.RollingUpdateDaemonSetStrategyType,
			RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxUnavailable: &u, MaxSurge: &s}}},
	}
	for _, edit := range edits {
		edit(d)
	}
	return d
}

func node(name string, taints ...corev1.Taint) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"name": name}},
		Spec: corev1.NodeSpec{Taints: taints}}
}

func nodes(names ...string) []*corev1.Node {
	var out []*corev1.Node
	for _, n := range names {
		out = append(out, node(n))
	}
	return out
}

// pod is an available pod of the newest template.
func pod(name, node string, edits ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: name, UID: types.UID(name),
			Labels:            map[string]string{appsv1.DefaultDaemonSetUniqueLabelKey: "new"},
			CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))},
		Spec: corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
			{Type: corev1.PodReady, Status: corev1.ConditionTrue,
				LastTransitionTime: metav1.NewTime(now.Add(-10 * time.Second))}}},
	}
	for _, e := range edits {
		e(p)
	}
	return p
}

func outdated(p *corev1.Pod) { p.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] = "old" }
func unready(p *corev1.Pod)  { p.Status.Conditions = nil }
func failed(p *corev1.Pod)   { p.Status.Phase = corev1.PodFailed; unready(p) }
func ended(p *corev1.Pod)    { p.Status.Phase = corev1.PodSucceeded; unready(p) }
func going(p *corev1.Pod)    { p.DeletionTimestamp = &metav1.Time{Time: now} }
func young(p *corev1.Pod)    { p.CreationTimestamp = metav1.NewTime(now) }
func unbound(p *corev1.Pod) {
	bindTo(&p.Spec, p.Spec.NodeName)
	p.Spec.NodeName = ""
	p.Status = corev1.PodStatus{Phase: corev1.PodPending}
}

func TestDecide(t *testing.T) {
	noSchedule, noExecute := corev1.Taint{Key: "k", Effect: corev1.TaintEffectNoSchedule},
		corev1.Taint{Key: "k", Effect: corev1.TaintEffectNoExecute}
	for _, c := range []struct {
		name    string
		set     *appsv1.DaemonSet
		nodes   []*corev1.Node
		pods    []*corev1.Pod
		waiting time.Duration
		create  []string
		delete  []string
		again   time.Duration
	}{
		{name: "every node gets one", set: set(1, 0), nodes: nodes("b", "a"), create: []string{"a", "b"}},
		{name: "nothing to do", set: set(1, 0), nodes: nodes("a"), pods: []*corev1.Pod{pod("p", "a")}},
		{name: "on its way to its node", set: set(1, 0), nodes: nodes("a"),
			pods: []*corev1.Pod{pod("p", "a", unbound)}},
		{name: "what goes is waited for", set: set(1, 0), nodes: nodes("a"), pods: []*corev1.Pod{pod("p", "a", going)}},
		{name: "what goes and has ended is not", set: set(1, 0), nodes: nodes("a"),
			pods: []*corev1.Pod{pod("p", "a", going, failed)}, create: []string{"a"}},
		{name: "a barred node", set: set(1, 0), nodes: []*corev1.Node{node("a", noSchedule), node("b", noExecute)}},
		{name: "pods on barred nodes", set: set(1, 0),
			nodes: []*corev1.Node{node("a", noSchedule), node("b", noExecute)},
			pods:  []*corev1.Pod{pod("p", "a"), pod("q", "b")}, delete: []string{"q"}},
		{name: "ill nodes", set: set(1, 0),
			nodes: []*corev1.Node{
				node("a", corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule},
					corev1.Taint{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute}),
				node("b", corev1.Taint{Key: corev1.TaintNodeNetworkUnavailable, Effect: corev1.TaintEffectNoSchedule})},
			create: []string{"a"}},
		{name: "no network needed",
			set: set(1, 0, func(d *appsv1.DaemonSet) { d.Spec.Template.Spec.HostNetwork = true }),
			nodes: []*corev1.Node{
				node("a", corev1.Taint{Key: corev1.TaintNodeNetworkUnavailable, Effect: corev1.TaintEffectNoSchedule})},
			create: []string{"a"}},
		{name: "selected nodes",
			set: set(1, 0,
				func(d *appsv1.DaemonSet) { d.Spec.Template.Spec.NodeSelector = map[string]string{"name": "a"} }),
			nodes: nodes("a", "b", "c"), pods: []*corev1.Pod{pod("p", "b")}, create: []string{"a"},
			delete: []string{"p"}},
		{name: "a named node", set: set(1, 0, func(d *appsv1.DaemonSet) { d.Spec.Template.Spec.NodeName = "b" }),
			nodes: nodes("a", "b"), create: []string{"b"}},
		{name: "a node that is gone", set: set(1, 0), nodes: nodes("a"),
			pods: []*corev1.Pod{pod("o", "a"), pod("p", "gone", unbound), pod("q", "gone")}, delete: []string{"p"}},
		{name: "two on a node: the elder stays", set: set(1, 0), nodes: nodes("a"),
			pods: []*corev1.Pod{pod("p", "a", young), pod("q", "a")}, delete: []string{"p"}},
		{name: "failed", set: set(1, 0), nodes: nodes("a"), pods: []*corev1.Pod{pod("p", "a", failed)},
			delete: []string{"p"}},
		{name: "failed often", set: set(1, 0), nodes: nodes("a"), pods: []*corev1.Pod{pod("p", "a", failed)},
			waiting: time.Minute, again: time.Minute},
		{name: "ended well", set: set(1, 0), nodes: nodes("a"), pods: []*corev1.Pod{pod("p", "a", ended)},
			delete: []string{"p"}},
		{name: "one at a time", set: set(1, 0), nodes: nodes("a", "b", "c"),
			pods:   []*corev1.Pod{pod("p", "a", outdated), pod("q", "b", outdated), pod("r", "c")},
			delete: []string{"p"}},
		{name: "not while the new one starts", set: set(1, 0), nodes: nodes("a", "b"),
			pods: []*corev1.Pod{pod("p", "a", outdated), pod("q", "b", unready)}},
		{name: "what does not serve goes at once", set: set(1, 0), nodes: nodes("a", "b", "c"),
			pods: []*corev1.Pod{pod("p", "a", outdated, unready), pod("q", "b", outdated, unready),
				pod("r", "c", outdated)}, delete: []string{"p", "q"}},
		{name: "when the user deletes them",
			set: set(1, 0,
				func(d *appsv1.DaemonSet) { d.Spec.UpdateStrategy.Type = appsv1.OnDeleteDaemonSetStrategyType }),
			nodes: nodes("a"), pods: []*corev1.Pod{pod("p", "a", outdated)}},
		{name: "first what is missing", set: set(2, 0), nodes: nodes("a", "b"),
			pods: []*corev1.Pod{pod("p", "a", outdated)}, create: []string{"b"}},
		{name: "ready for too short a time", set: set(1, 0, func(d *appsv1.DaemonSet) { d.Spec.MinReadySeconds = 30 }),
			nodes: nodes("a", "b"),
			pods: []*corev1.Pod{pod("p", "a"),
				pod("q", "b",
					func(
						p *corev1.Pod,
					) {
						outdated(p)
						p.Status.Conditions[0].LastTransitionTime.Time = now.Add(-time.Hour)
					})}, again: 20 * time.Second},
		{name: "surge", set: set(0, 1), nodes: nodes("a", "b"),
			pods: []*corev1.Pod{pod("p", "a", outdated), pod("q", "b", outdated)}, create: []string{"a"}},
		{name: "surge has come", set: set(0, 1), nodes: nodes("a", "b"),
			pods: []*corev1.Pod{pod("n", "a", unready, young), pod("p", "a", outdated), pod("q", "b", outdated)}},
		{name: "surge is ready", set: set(0, 1), nodes: nodes("a", "b"),
			pods:   []*corev1.Pod{pod("n", "a", young), pod("p", "a", outdated), pod("q", "b", outdated)},
			delete: []string{"p"}},
		{name: "surge where nothing serves", set: set(0, 1), nodes: nodes("a", "b"),
			pods:   []*corev1.Pod{pod("p", "a", outdated, unready), pod("q", "b", outdated, unready)},
			create: []string{"a", "b"}},
		{name: "surge does not wait for what goes", set: set(0, 1), nodes: nodes("a"),
			pods: []*corev1.Pod{pod("p", "a", going)}, create: []string{"a"}},
		{name: "surge keeps one of each", set: set(0, 1), nodes: nodes("a"),
			pods: []*corev1.Pod{pod("n", "a", unready), pod("m", "a", young), pod("p", "a", outdated),
				pod("q", "a", outdated, young)}, delete: []string{"m", "q"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := decide(
				observed{set: c.set, nodes: c.nodes, pods: c.pods, hash: "new",
					wait: func(string) time.Duration { return c.waiting }}, now)
			if err != nil {
				t.Fatal(err)
			}
			var deleted []string
			for _, d := range p.delete {
				deleted = append(deleted, d.Name)
			}
			slices.Sort(deleted)
			if !slices.Equal(p.create, c.create) || !slices.Equal(deleted, c.delete) || p.again != c.again {
				t.Errorf("create %v, delete %v, again %v; want %v, %v, %v", p.create, deleted, p.again, c.create,
					c.delete, c.again)
			}
		})
	}
}

func TestStatus(t *testing.T) {
	d := set(1, 0)
	d.Status.CollisionCount = new(int32)
	p, err := decide(observed{set: d, hash: "new", wait: func(string) time.Duration { return 0 },
		nodes: append(nodes("a", "b", "c"), node("x", corev1.Taint{Key: "k", Effect: corev1.TaintEffectNoSchedule})),
		pods:  []*corev1.Pod{pod("p", "a"), pod("q", "b", outdated, unready), pod("r", "x")}}, now)
	if err != nil {
		t.Fatal(err)
	}
	want := appsv1.DaemonSetStatus{CurrentNumberScheduled: 2, NumberMisscheduled: 1, DesiredNumberScheduled: 3,
		NumberReady:        1,
		ObservedGeneration: 4, UpdatedNumberScheduled: 1, NumberAvailable: 1, NumberUnavailable: 2,
		CollisionCount: d.Status.CollisionCount}
	if !equality.Semantic.DeepEqual(p.status, want) {
		t.Errorf("status %+v, want %+v", p.status, want)
	}
}

func TestPodsAreMadeForTheirNode(t *testing.T) {
	d := set(1, 0)
	limited := int64(5)
	d.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Key: "mine", Operator: corev1.TolerationOpExists},
		{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute,
			TolerationSeconds: &limited}}
	d.Spec.Template.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{},
		NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{
				{MatchExpressions: []corev1.NodeSelectorRequirement{
					{Key: "name", Operator: corev1.NodeSelectorOpExists}}}}}}}
	p := podFor(d, "a", "h")
	if targetOf(p) != "a" || p.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] != "h" || !metav1.IsControlledBy(p, d) ||
		p.Spec.Affinity.PodAffinity == nil {
		t.Errorf("pod %+v", p)
	}
	if len(p.Spec.Tolerations) != 7 ||
		slices.ContainsFunc(p.Spec.Tolerations, func(o corev1.Toleration) bool { return o.TolerationSeconds != nil }) {
		t.Errorf("tolerations %v", p.Spec.Tolerations)
	}
	if len(d.Spec.Template.Spec.Tolerations) != 2 || d.Spec.Template.Spec.Tolerations[1].TolerationSeconds == nil ||
		targetOf(&corev1.Pod{Spec: d.Spec.Template.Spec}) != "" {
		t.Error("the template itself was changed")
	}
}

func TestStays(t *testing.T) {
	s := stays{known: map[place]stay{}}
	p := place{set: "s", generation: 1, node: "n"}
	at := now
	for i, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second} {
		s.failed(p, at)
		if left := s.left(p, at); left != want {
			t.Fatalf("failure %d: %v, want %v", i, left, want)
		}
		at = at.Add(want)
	}
	for range 20 {
		s.failed(p, at)
	}
	if left := s.left(p, at); left != maxStay {
		t.Errorf("after many: %v", left)
	}
	if left := s.left(place{set: "s", generation: 2, node: "n"}, at); left != 0 {
		t.Errorf("another generation: %v", left)
	}
	s.failed(p, at.Add(time.Hour))
	if left := s.left(p, at.Add(time.Hour)); left != minStay {
		t.Errorf("long after: %v", left)
	}
	if s.forget("s"); len(s.known) != 0 {
		t.Error("it remembers what is gone")
	}
}

// A rollout ends with one new pod on every node, and then does nothing more. It never has more pods
// down or up than allowed.
func TestRolloutProperties(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 3))
		n := 1 + r.IntN(6)
		unavailable, surge := 1+r.IntN(3), 0
		if r.IntN(2) == 0 {
			unavailable, surge = 0, 1+r.IntN(3)
		}
		d := set(unavailable, surge)
		var all []*corev1.Node
		var here []*corev1.Pod
		for i := range n {
			name := fmt.Sprint("n", i)
			all = append(all, node(name))
			here = append(here, pod("old-"+name, name, outdated))
		}
		made := 0
		at := now
		look := func() plan {
			p, err := decide(
				observed{set: d, nodes: all, pods: here, hash: "new", wait: func(string) time.Duration { return 0 }},
				at)
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		done := false
		for range 1000 {
			at = at.Add(time.Second)
			p := look()
			d.Status = p.status
			if done = len(p.create)+len(p.delete) == 0 && int(p.status.UpdatedNumberScheduled) == n &&
				int(p.status.NumberAvailable) == n; done {
				break
			}
			for _, name := range p.create {
				made++
				here = append(here,
					pod(fmt.Sprint("new-", made), name, unbound,
						func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(at) }))
			}
			for _, gone := range p.delete {
				gone.DeletionTimestamp = &metav1.Time{Time: at}
			}
			serving, alive := map[string]bool{}, 0
			for _, p := range here {
				if pods.Active(p) {
					alive++
					if pods.Ready(p) {
						serving[targetOf(p)] = true
					}
				}
			}
			if down := n - len(serving); down > unavailable || alive > n+surge {
				t.Fatalf("seed %d: %d of %d nodes without pod, %d may be; %d pods, %d may be", seed, down, n,
					unavailable, alive, n+surge)
			}
			here = slices.DeleteFunc(here,
				func(p *corev1.Pod) bool { return p.DeletionTimestamp != nil && r.IntN(2) == 0 })
			for _, p := range here {
				switch {
				case r.IntN(2) == 0:
				case p.Spec.NodeName == "":
					p.Spec.NodeName = targetOf(p)
				default:
					p.Status.Phase = corev1.PodRunning
					p.Status.Conditions = []corev1.PodCondition{
						{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(at)}}
				}
			}
		}
		if again := look(); !done || len(again.create)+len(again.delete) > 0 ||
			!equality.Semantic.DeepEqual(again.status, d.Status) {
			t.Fatalf("seed %d: done %v, then %+v", seed, done, again)
		}
	}
}
