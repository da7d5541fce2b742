package scheduler_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/barque/barque/scheduler"
	"github.com/barque/barque/scheduler/framework"
)

func TestSpreadsReplicasOverNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t, node("a", "4", "8Gi"), node("b", "4", "8Gi"), node("c", "4", "8Gi"))
		// Another load makes a the least free node: spreading must outweigh that.
		s.seed(pod("load", "1", "1Gi", func(p *v1.Pod) { p.Spec.NodeName = "a" }))
		s.lead(s.start(scheduler.Config{}))
		for i := range 3 {
			s.put(pod(fmt.Sprintf("r%d", i), "100m", "64Mi", ownedBy("rs")))
		}
		s.eventually("all bound", s.bound("r0", "r1", "r2"))
		nodes := sets.New[string]()
		for i := range 3 {
			nodes.Insert(s.get("default", fmt.Sprintf("r%d", i)).Spec.NodeName)
		}
		if len(nodes) != 3 {
			t.Errorf("three replicas are on %v", sets.List(nodes))
		}
		s.eventuallyEvent("r0", "Scheduled", "Successfully assigned default/r0 to ")
	})
}

func TestTellsWhyAndTriesAgainWhenItHelps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t, node("a", "1", "8Gi"), node("b", "1", "8Gi"), node("c", "8", "8Gi", func(n *v1.Node) {
			n.Spec.Taints = []v1.Taint{{Key: "dedicated", Value: "db", Effect: v1.TaintEffectNoSchedule}}
		}))
		s.lead(s.start(scheduler.Config{}))
		s.put(pod("big", "4", "1Gi"))
		want := "0/3 nodes are available: 1 node(s) had untolerated taint {dedicated: db}, 2 Insufficient cpu."
		s.eventually("condition "+want, func(pods map[string]*v1.Pod) bool {
			for _, c := range pods["default/big"].Status.Conditions {
				if c.Type == v1.PodScheduled && c.Status == v1.ConditionFalse &&
					c.Reason == v1.PodReasonUnschedulable && strings.HasPrefix(c.Message, want) {
					return true
				}
			}
			return false
		})
		s.eventuallyEvent("big", "FailedScheduling", want)
		if _, err := s.client.CoreV1().Nodes().Create(t.Context(), node("d", "8", "8Gi"),
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		s.eventually("bound to the new node", s.bound("big"))
		if got := s.get("default", "big").Spec.NodeName; got != "d" {
			t.Errorf("bound to %s, want d", got)
		}
	})
}

func TestGatedPodWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t, node("a", "4", "8Gi"))
		s.lead(s.start(scheduler.Config{}))
		gated := pod("gated", "1", "1Gi",
			func(p *v1.Pod) { p.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "wait"}} })
		s.put(gated)
		s.put(pod("free", "1", "1Gi"))
		s.eventually("the free one is bound", s.bound("free"))
		time.Sleep(time.Minute)
		if s.get("default", "gated").Spec.NodeName != "" {
			t.Fatal("a gated pod was bound")
		}
		open := gated.DeepCopy()
		open.Spec.SchedulingGates = nil
		s.put(open)
		s.eventually("the gated one is bound", s.bound("gated"))
	})
}

func TestFailedBindingIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t, node("a", "1", "8Gi"))
		failed := false
		s.onBind = func(b *v1.Binding, apply func() error) error {
			if !failed {
				failed = true
				return apierrors.NewServiceUnavailable("no leader")
			}
			return apply()
		}
		s.lead(s.start(scheduler.Config{Writes: 1}))
		s.put(pod("p", "1", "1Gi")) // fits only if its first try is forgotten
		s.eventually("bound", s.bound("p"))
	})
}

func TestLostAnswerToABindingThatTookEffect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t, node("a", "1", "8Gi"))
		s.onBind = func(b *v1.Binding, apply func() error) error {
			return errors.Join(apply(), apierrors.NewTimeoutError("outcome is unknown", 1))
		}
		s.lead(s.start(scheduler.Config{}))
		s.put(pod("p", "1", "1Gi"))
		s.eventually("bound", s.bound("p"))
		s.eventuallyEvent("p", "Scheduled", "Successfully assigned")
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.binds != 1 {
			t.Errorf("%d bindings were written, want 1", s.binds)
		}
	})
}

func TestTermsFollowEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t, node("a", "4", "8Gi"))
		sched := s.start(scheduler.Config{})
		depose := s.lead(sched)
		s.put(pod("first", "1", "1Gi"))
		s.eventually("bound in the first term", s.bound("first"))
		depose()
		s.put(pod("second", "1", "1Gi"))
		begun := time.Now()
		depose = s.lead(sched)
		s.eventually("bound in the second term", s.bound("second"))
		if d := time.Since(begun); d > time.Second {
			t.Errorf("the second term's first binding took %v", d)
		}
		depose()
		if s.get("default", "second").Spec.NodeName != "a" {
			t.Error("second is not on a")
		}
	})
}

func TestCountsWhatTheLeaderBeforeHasBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t, node("a", "1", "8Gi"))
		s.seed(pod("p", "1", "1Gi"))
		sched := s.start(scheduler.Config{})
		// Bound by the leader before us; our informer's watch has not brought it yet.
		theirs := pod("theirs", "1", "1Gi", func(p *v1.Pod) { p.Spec.NodeName = "a" })
		s.mu.Lock()
		s.seed(theirs)
		lists := s.lists
		s.mu.Unlock()
		s.lead(sched)
		s.eventually("the term looks at the API server", func(map[string]*v1.Pod) bool { return s.lists > lists })
		s.put(theirs)
		s.eventually("p is told that nothing is free", func(pods map[string]*v1.Pod) bool {
			return len(pods["default/p"].Status.Conditions) > 0
		})
		if got := s.get("default", "p").Spec.NodeName; got != "" {
			t.Errorf("p was bound to %s, which is full", got)
		}
	})
}

func TestDeposedLeaderStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t, node("a", "4", "8Gi"))
		refused := make(chan struct{}, 100)
		s.onBind = func(*v1.Binding, func() error) error {
			refused <- struct{}{}
			return apierrors.NewConflict(v1.Resource("pods"), "p",
				errors.New("the leadership term of this write is over"))
		}
		depose := s.lead(s.start(scheduler.Config{}))
		s.put(pod("p", "1", "1Gi"))
		<-refused
		depose()
		if s.get("default", "p").Spec.NodeName != "" {
			t.Error("a fenced binding took effect")
		}
	})
}

func TestRunRefusesASecondTermAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t, node("a", "4", "8Gi"))
		sched := s.start(scheduler.Config{})
		s.lead(sched)
		s.put(pod("p", "1", "1Gi"))
		s.eventually("running", s.bound("p"))
		if err := sched.Run(context.Background(), s.client); !errors.Is(err, scheduler.ErrRunning) {
			t.Errorf("Run beside Run: %v", err)
		}
	})
}

func TestPreemptsForAMoreImportantPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t, node("a", "2", "8Gi"), node("b", "2", "8Gi"))
		s.seed(
			pod("cheap", "2", "1Gi", priority(1), func(p *v1.Pod) { p.Spec.NodeName = "a" }),
			pod("dear", "2", "1Gi", priority(50), func(p *v1.Pod) { p.Spec.NodeName = "b" }),
		)
		s.lead(s.start(scheduler.Config{}))
		s.put(pod("vip", "1", "1Gi", priority(100)))
		s.eventually("vip is bound", s.bound("vip"))
		if s.get("default", "cheap") != nil || s.get("default", "dear") == nil {
			t.Error("the wrong pod was evicted")
		}
		if got := s.get("default", "vip").Spec.NodeName; got != "a" {
			t.Errorf("vip is on %q, want a", got)
		}
	})
}

// TestPreemptsOnce: while a victim's deletion hangs, and while the victim takes its time to end,
// events do not make the preemptor evict somebody else.
func TestPreemptsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t, node("a", "2", "8Gi"), node("b", "2", "8Gi"))
		s.seed(
			pod("on-a", "2", "1Gi", priority(1), func(p *v1.Pod) { p.Spec.NodeName = "a" }),
			pod("on-b", "2", "1Gi", priority(2), func(p *v1.Pod) { p.Spec.NodeName = "b" }),
		)
		answer, deletions := make(chan struct{}), 0
		s.onDelete = func(ctx context.Context, p *v1.Pod) error {
			s.mu.Lock()
			deletions++
			s.announce()
			s.mu.Unlock()
			select {
			case <-answer:
			case <-ctx.Done():
				return ctx.Err()
			}
			p.DeletionTimestamp = &created
			s.put(p)
			return nil
		}
		s.lead(s.start(scheduler.Config{}))
		s.put(pod("vip", "2", "1Gi", priority(100)))
		s.eventually("a deletion", func(map[string]*v1.Pod) bool { return deletions > 0 })
		memory := 8
		more := func() { // room on a node, but not enough
			t.Helper()
			memory++
			n := node("b", "2", fmt.Sprintf("%dGi", memory))
			if err := s.client.Tracker().Update(v1.SchemeGroupVersion.WithResource("nodes"), n, ""); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Minute)
			s.mu.Lock()
			defer s.mu.Unlock()
			if deletions != 1 {
				t.Fatalf("%d deletions", deletions)
			}
		}
		more()
		close(answer)
		time.Sleep(time.Second)
		more()
		victim := s.get("default", "on-a")
		i := slices.IndexFunc(victim.Status.Conditions,
			func(c v1.PodCondition) bool { return c.Type == v1.DisruptionTarget })
		if i < 0 || victim.Status.Conditions[i].Reason != v1.PodReasonPreemptionByScheduler ||
			victim.Status.Conditions[i].Status != v1.ConditionTrue {
			t.Errorf("conditions of the victim: %+v", victim.Status.Conditions)
		}
		if got := s.get("default", "vip").Status.NominatedNodeName; got != "a" {
			t.Errorf("nominated node %q, want a", got)
		}
		s.remove("default", "on-a")
		s.eventually("vip is bound", s.bound("vip"))
		if got := s.get("default", "vip").Spec.NodeName; got != "a" {
			t.Errorf("vip is on %q, want a", got)
		}
	})
}

func TestOtherSchedulersPodsAreLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t, node("a", "4", "8Gi"))
		s.lead(s.start(scheduler.Config{}))
		s.put(pod("theirs", "1", "1Gi", func(p *v1.Pod) { p.Spec.SchedulerName = "custom" }))
		s.put(pod("ours", "1", "1Gi"))
		s.eventually("ours is bound", s.bound("ours"))
		time.Sleep(time.Minute)
		if s.get("default", "theirs").Spec.NodeName != "" {
			t.Error("a pod of another scheduler was bound")
		}
	})
}

func TestSameSeedSameDecisions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		place := func() map[string]string {
			s := newAPIServer(t)
			for i := range 20 {
				if err := s.client.Tracker().Add(node(fmt.Sprintf("n%02d", i), "8", "16Gi")); err != nil {
					t.Fatal(err)
				}
			}
			var names []string
			for i := range 60 {
				p := pod(fmt.Sprintf("p%02d", i), "500m", "256Mi", ownedBy(fmt.Sprint(i%4)))
				s.seed(p)
				names = append(names, p.Name)
			}
			depose := s.lead(s.start(scheduler.Config{Seed: 42}))
			s.eventually("all bound", s.bound(names...))
			depose()
			on := map[string]string{}
			for _, n := range names {
				on[n] = s.get("default", n).Spec.NodeName
			}
			return on
		}
		if a, b := place(), place(); !maps.Equal(a, b) {
			t.Errorf("two runs with one seed differ:\n%v\n%v", a, b)
		}
	})
}

func TestNewRefusesABadConfig(t *testing.T) {
	s := newAPIServer(t)
	for name, cfg := range map[string]scheduler.Config{
		"no informers": {},
		"percentage":   {Informers: s.informers, PercentageOfNodesToScore: 101},
		"unknown plugin": {Informers: s.informers,
			Profiles: []framework.Spec{{SchedulerName: "x", Plugins: []framework.Enabled{{Name: "nope"}}}}},
		"two of a name": {Informers: s.informers,
			Profiles: []framework.Spec{{SchedulerName: "x"}, {SchedulerName: "x"}}},
	} {
		if _, err := scheduler.New(cfg); err == nil {
			t.Errorf("%s: New did not fail", name)
		}
	}
}

// TestSpreadsOverZonesOfUnequalSize: kube-scheduler puts 15 pods of a controller or a Service on
// zones of two, two and one nodes so that no zone has three more than another.
func TestSpreadsOverZonesOfUnequalSize(t *testing.T) {
	const replicas = 15
	zones := map[string]string{"a": "z1", "b": "z2", "c": "z3", "d": "z1", "e": "z2"}
	for name, of := range map[string]func(*v1.Pod){
		"a controller's": ownedBy("rc"),
		"a service's":    func(p *v1.Pod) { p.Labels = map[string]string{"service": "s"} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				objects := []runtime.Object{&v1.Service{
					ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "s"},
					Spec:       v1.ServiceSpec{Selector: map[string]string{"service": "s"}},
				}}
				for n, zone := range zones {
					objects = append(objects,
						node(n, "2", "23Gi", func(n *v1.Node) { n.Labels[v1.LabelTopologyZone] = zone }))
				}
				s := newAPIServer(t, objects...)
				s.lead(s.start(scheduler.Config{}))
				var names []string
				for i := range replicas {
					names = append(names, fmt.Sprint("r", i))
					s.put(
						pod(names[i], "0", "0", of, func(p *v1.Pod) { p.Spec.Containers[0].Resources.Requests = nil }))
				}
				s.eventually("all bound", s.bound(names...))
				pods := map[string]int{"z1": 0, "z2": 0, "z3": 0}
				for _, name := range names {
					pods[zones[s.get("default", name).Spec.NodeName]]++
				}
				counts := slices.Sorted(maps.Values(pods))
				if most, least := counts[len(counts)-1], counts[0]; most-least > 2 {
					t.Errorf("the zones have %v pods", pods)
				}
			})
		})
	}
}
