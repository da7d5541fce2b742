package replicaset

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/barque/barque/controllers/pods"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func set(replicas, minReady int32) *appsv1.ReplicaSet {
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: "rs", Namespace: "d", UID: "rs", Generation: 7},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: &replicas, MinReadySeconds: minReady,
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "x", "v": "1"}}},
		},
	}
}

func pod(name string, edits ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{"app": "x"},
			CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))},
		Spec:   corev1.PodSpec{NodeName: "n1"},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	readySince(time.Hour)(p)
	for _, e := range edits {
		e(p)
	}
	return p
}

func readySince(d time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{
			{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-d))}}
	}
}

func notReady(p *corev1.Pod) { p.Status.Conditions = nil }
func pending(p *corev1.Pod)  { p.Status.Phase = corev1.PodPending; notReady(p) }
func unbound(p *corev1.Pod)  { p.Spec.NodeName = ""; pending(p) }
func failed(p *corev1.Pod)   { p.Status.Phase = corev1.PodFailed }
func going(p *corev1.Pod)    { t := metav1.NewTime(now); p.DeletionTimestamp = &t }
func labelled(p *corev1.Pod) { p.Labels["v"] = "1" }
func onNode2(p *corev1.Pod)  { p.Spec.NodeName = "n2" }
func cheap(p *corev1.Pod)    { p.Annotations = map[string]string{pods.DeletionCost: "-5"} }
func restarted(p *corev1.Pod) {
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{RestartCount: 3}}
}
func young(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(now.Add(-time.Second)) }

func TestDecide(t *testing.T) {
	for _, c := range []struct {
		name   string
		set    *appsv1.ReplicaSet
		mine   []*corev1.Pod
		create int
		delete []string
		again  time.Duration
	}{
		{"nothing there", set(3, 0), nil, 3, nil, 0},
		{"one is missing", set(2, 0), []*corev1.Pod{pod("a")}, 1, nil, 0},
		{"failed and terminating pods do not count", set(1, 0), []*corev1.Pod{pod("a", failed), pod("b", going)}, 1,
			nil, 0},
		{"enough", set(1, 0), []*corev1.Pod{pod("a")}, 0, nil, 0},
		{"bounded burst", set(2000, 0), nil, burst, nil, 0},
		{"unbound goes first", set(1, 0), []*corev1.Pod{pod("a"), pod("b", unbound)}, 0, []string{"b"}, 0},
		{"pending before unready before ready", set(0, 0),
			[]*corev1.Pod{pod("a"), pod("b", notReady), pod("c", pending)}, 0, []string{"c", "b", "a"}, 0},
		{"cheap before dear", set(1, 0), []*corev1.Pod{pod("a"), pod("b", cheap)}, 0, []string{"b"}, 0},
		{"from the fuller node", set(2, 0), []*corev1.Pod{pod("a", onNode2), pod("b"), pod("c", young)}, 0,
			[]string{"c"}, 0},
		{"ready for less long", set(1, 0), []*corev1.Pod{pod("a"), pod("b", readySince(time.Second))}, 0, []string{"b"},
			0},
		{"restarting often", set(1, 0), []*corev1.Pod{pod("a"), pod("b", restarted)}, 0, []string{"b"}, 0},
		{"not yet available", set(2, 30), []*corev1.Pod{pod("a"), pod("b", readySince(10*time.Second))}, 0, nil,
			20 * time.Second},
		{"being deleted itself",
			func() *appsv1.ReplicaSet { s := set(5, 0); s.DeletionTimestamp = &metav1.Time{Time: now}; return s }(),
			nil, 0, nil, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := decide(c.set, c.mine, c.mine, now)
			var names []string
			for _, d := range p.delete {
				names = append(names, d.Name)
			}
			if p.create != c.create || !slices.Equal(names, c.delete) || p.again != c.again {
				t.Errorf("create %d, delete %v, again %v; want %d, %v, %v", p.create, names, p.again, c.create,
					c.delete, c.again)
			}
		})
	}
}

// After a plan there are as many active pods as wanted, and no pod was deleted while a pod that
// ranks below it stayed.
func TestDecideProperties(t *testing.T) {
	edits := []func(*corev1.Pod){notReady, pending, unbound, failed, going, onNode2, cheap, restarted, young}
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 1))
		var mine []*corev1.Pod
		active := 0
		for i := range r.IntN(12) {
			p := pod(fmt.Sprint("p", i))
			for _, e := range edits {
				if r.IntN(4) == 0 {
					e(p)
				}
			}
			if pods.Active(p) {
				active++
			}
			mine = append(mine, p)
		}
		want := r.IntN(12)
		plan := decide(set(int32(want), 0), mine, mine, now)
		if active+plan.create-len(plan.delete) != want || (plan.create > 0 && len(plan.delete) > 0) {
			t.Fatalf("seed %d: %d active, want %d: create %d, delete %d", seed, active, want, plan.create,
				len(plan.delete))
		}
		gone := map[types.UID]bool{}
		for _, p := range plan.delete {
			if !pods.Active(p) || gone[p.UID] {
				t.Fatalf("seed %d: deletes %s, which is not active or twice", seed, p.Name)
			}
			gone[p.UID] = true
		}
		for _, p := range mine {
			if pods.Active(p) && !gone[p.UID] && p.Spec.NodeName == "" {
				for _, d := range plan.delete {
					if d.Spec.NodeName != "" {
						t.Fatalf("seed %d: gave up a bound pod and kept an unbound one", seed)
					}
				}
			}
		}
	}
}

func TestStatus(t *testing.T) {
	s := set(3, 30)
	mine := []*corev1.Pod{pod("a", labelled), pod("b", readySince(time.Second)), pod("c", notReady), pod("d", failed),
		pod("e", going)}
	status := statusOf(s, mine, nil, now)
	if status.Replicas != 3 || status.ReadyReplicas != 2 || status.AvailableReplicas != 1 ||
		status.FullyLabeledReplicas != 1 ||
		*status.TerminatingReplicas != 1 || status.ObservedGeneration != 7 {
		t.Errorf("status %+v", status)
	}
	f := failureOf(plan{create: 1}, errors.New("quota"))
	s.Status = statusOf(s, mine, f, now)
	if c := s.Status.Conditions; len(c) != 1 || c[0].Reason != "FailedCreate" || c[0].Message != "quota" {
		t.Fatalf("conditions %+v", c)
	}
	if again := statusOf(s, mine, f, now.Add(time.Second)); !sameStatus(s.Status, again) {
		t.Error("the same failure again changes the status")
	}
	// Messages name the pod, which has another name each time. Written anew, the status would cause
	// the next look at once.
	other := failureOf(plan{create: 1}, errors.New("another quota"))
	if again := statusOf(s, mine, other, now.Add(time.Second)); !sameStatus(s.Status, again) {
		t.Error("another message of the same failure changes the status")
	}
	other.reason = "FailedDelete"
	if c := statusOf(s, mine, other, now.Add(time.Second)).Conditions; len(c) != 1 || c[0].Reason != "FailedDelete" ||
		c[0].Message != "another quota" {
		t.Errorf("after another failure: %+v", c)
	}
	if c := statusOf(s, mine, nil, now).Conditions; len(c) != 0 {
		t.Errorf("the failure stays: %+v", c)
	}
}
