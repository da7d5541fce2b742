package scheduler

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/barque/barque/scheduler/framework"
)

// In random clusters, for random pods: a chosen node passes every filter and has the highest score.
// A rejected pod has a reason for every node, and a filter rejects each. No node is ever
// over-committed.
func TestDecisionsHoldTheirPromises(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			checkDecisions(t, rand.New(rand.NewPCG(seed, 7)), seed+1)
		})
	}
}

func checkDecisions(t *testing.T, rng *rand.Rand, seed uint64) {
	client := fake.NewClientset()
	s, err := New(
		Config{Informers: informers.NewSharedInformerFactory(client, 0), Seed: seed, PercentageOfNodesToScore: 100})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	term, err := newTerm(ctx, &s.cfg, s.meters, client)
	if err != nil {
		t.Fatal(err)
	}
	nodes := 1 + rng.IntN(130)
	for i := range nodes {
		term.cache.SetNode(randomNode(rng, i))
	}
	profile := term.profiles[v1.DefaultSchedulerName]
	placed := 0
	for i := range 150 {
		info, err := framework.NewPodInfo(randomPod(rng, i))
		if err != nil {
			t.Fatal(err)
		}
		pod := info.GetPod()
		term.cache.Update(term.snapshot)
		state := framework.NewCycleStateFor(info)
		chosen, err := term.decide(ctx, profile, state, pod)
		passing := term.passing(t, profile, info)
		var fit *framework.FitError
		switch {
		case errors.As(err, &fit):
			if len(passing) > 0 {
				t.Fatalf("%s was rejected (%v), but %d nodes pass", pod.Name, err, len(passing))
			}
			if len(fit.Rejected) != nodes {
				t.Fatalf("%s: %d of %d nodes have a reason", pod.Name, len(fit.Rejected), nodes)
			}
			continue
		case err != nil:
			t.Fatal(err)
		case !term.isBest(t, profile, info, passing, chosen):
			t.Fatalf("%s: %s is not among the best of %d nodes that pass", pod.Name, chosen, len(passing))
		}
		placed++
		if err := term.cache.Assume(info.OnNode(chosen)); err != nil {
			t.Fatal(err)
		}
		term.checkNoOvercommit(t)
	}
	if placed == 0 && nodes > 20 {
		t.Error("no pod was placed at all")
	}
}

// passing returns the nodes that every filter lets pass, asked one by one.
func (t *term) passing(tb testing.TB, profile *framework.Profile, info *framework.PodInfo) []fwk.NodeInfo {
	state := framework.NewCycleStateFor(info)
	all, _ := t.snapshot.List()
	if _, _, s := profile.PreFilter(tb.Context(), state, info.GetPod(), all); !s.IsSuccess() {
		tb.Fatal(s)
	}
	var out []fwk.NodeInfo
	for _, n := range all {
		if profile.Filter(tb.Context(), state, info.GetPod(), n).IsSuccess() {
			out = append(out, n)
		}
	}
	return out
}

func (t *term) isBest(
	tb testing.TB, profile *framework.Profile, info *framework.PodInfo, passing []fwk.NodeInfo, chosen string,
) bool {
	state := framework.NewCycleStateFor(info)
	scores, s := profile.Score(tb.Context(), state, info.GetPod(), passing)
	if !s.IsSuccess() {
		tb.Fatal(s)
	}
	var most, got int64 = -1, -2
	for i, n := range passing {
		most = max(most, scores[i])
		if n.Node().Name == chosen {
			got = scores[i]
		}
	}
	return got == most
}

func (t *term) checkNoOvercommit(tb testing.TB) {
	t.cache.Update(t.snapshot)
	all, _ := t.snapshot.List()
	for _, n := range all {
		total, used, ports := n.GetAllocatable(), framework.Resource{}, map[int32]string{}
		for _, p := range n.GetPods() {
			for _, c := range p.GetPod().Spec.Containers {
				used.MilliCPU += c.Resources.Requests.Cpu().MilliValue()
				used.Memory += c.Resources.Requests.Memory().Value()
				for _, port := range c.Ports {
					if other, taken := ports[port.HostPort]; taken && port.HostPort > 0 {
						tb.Fatalf("%s: port %d belongs to %s and %s", n, port.HostPort, other, p.GetPod().Name)
					}
					ports[port.HostPort] = p.GetPod().Name
				}
			}
		}
		if used.MilliCPU > total.GetMilliCPU() || used.Memory > total.GetMemory() ||
			len(n.GetPods()) > total.GetAllowedPodNumber() {
			tb.Fatalf("%s is over-committed: %d of %d mCPU, %d of %d bytes", n, used.MilliCPU, total.GetMilliCPU(),
				used.Memory, total.GetMemory())
		}
	}
}

func randomNode(rng *rand.Rand, i int) *v1.Node {
	name := fmt.Sprintf("n%d", i)
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelHostname: name}}}
	if rng.IntN(4) > 0 {
		n.Labels[v1.LabelTopologyZone] = fmt.Sprint(rng.IntN(3))
	}
	if rng.IntN(3) == 0 {
		n.Labels["disk"] = "ssd"
	}
	if rng.IntN(8) == 0 {
		n.Spec.Taints = []v1.Taint{{Key: "k", Value: "v", Effect: v1.TaintEffectNoSchedule}}
	}
	n.Spec.Unschedulable = rng.IntN(20) == 0
	n.Status.Allocatable = v1.ResourceList{
		v1.ResourceCPU:    *resource.NewMilliQuantity(int64(rng.IntN(4000)), resource.DecimalSI),
		v1.ResourceMemory: *resource.NewQuantity(int64(rng.IntN(8<<30)), resource.BinarySI),
		v1.ResourcePods:   *resource.NewQuantity(int64(rng.IntN(8)), resource.DecimalSI),
	}
	return n
}

func randomPod(rng *rand.Rand, i int) *v1.Pod {
	app := fmt.Sprint(rng.IntN(4))
	yes := true
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: fmt.Sprintf("p%d", i), UID: types.UID(fmt.Sprint(i)),
			Labels: map[string]string{"app": app},
			OwnerReferences: []metav1.OwnerReference{
				{Kind: "ReplicaSet", Name: app, UID: types.UID(app), Controller: &yes}},
		},
		Spec: v1.PodSpec{SchedulerName: v1.DefaultSchedulerName, Containers: []v1.Container{{
			Image: "nginx",
			Resources: v1.ResourceRequirements{Requests: v1.ResourceList{
				v1.ResourceCPU:    *resource.NewMilliQuantity(int64(rng.IntN(1500)), resource.DecimalSI),
				v1.ResourceMemory: *resource.NewQuantity(int64(rng.IntN(2<<30)), resource.BinarySI),
			}},
		}}},
	}
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
	switch rng.IntN(8) {
	case 0:
		p.Spec.NodeSelector = map[string]string{"disk": "ssd"}
	case 1:
		p.Spec.Tolerations = []v1.Toleration{{Operator: v1.TolerationOpExists}}
	case 2:
		p.Spec.Containers[0].Ports = []v1.ContainerPort{{HostPort: int32(8000 + rng.IntN(2))}}
	case 3:
		p.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: v1.LabelTopologyZone, WhenUnsatisfiable: v1.DoNotSchedule, LabelSelector: selector,
		}}
	case 4:
		p.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{
				{LabelSelector: selector, TopologyKey: v1.LabelHostname}},
		}}
	case 5:
		p.Spec.Affinity = &v1.Affinity{PodAffinity: &v1.PodAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{
				{LabelSelector: selector, TopologyKey: v1.LabelTopologyZone}},
		}}
	}
	return p
}
