package queue

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/clock"

	"github.com/barque/barque/scheduler/framework"
)

const rejector = "Rejector"

var nodeAdded = fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add}

// rules gates pods with scheduling gates, and lets "Rejector" hope for nodes named "good".
type rules struct{}

func (rules) PreEnqueue(_ context.Context, pod *v1.Pod) *fwk.Status {
	if len(pod.Spec.SchedulingGates) > 0 {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable).WithPlugin("Gate")
	}
	return nil
}

func (rules) Events() map[string][]fwk.ClusterEventWithHint {
	return map[string][]fwk.ClusterEventWithHint{rejector: {{
		Event: nodeAdded,
		QueueingHintFn: func(_ klog.Logger, _ *v1.Pod, _, n any) (fwk.QueueingHint, error) {
			switch n.(*v1.Node).Name {
			case "good":
				return fwk.Queue, nil
			case "broken":
				return fwk.QueueSkip, errors.New("cannot tell")
			}
			return fwk.QueueSkip, nil
		},
	}}}
}

func newQueue() *Queue {
	return New(Config{
		Clock: clock.RealClock{}, // virtual, inside the bubble
		Less: func(a, b fwk.QueuedEntityInfo) bool {
			if a.GetPriority() != b.GetPriority() {
				return a.GetPriority() > b.GetPriority()
			}
			return a.GetTimestamp().Before(b.GetTimestamp())
		},
		RulesFor:         func(string) Rules { return rules{} },
		InitialBackoff:   time.Second,
		MaxBackoff:       10 * time.Second,
		MaxUnschedulable: 5 * time.Minute,
	})
}

func podOf(name string, change ...func(*v1.Pod)) *framework.PodInfo {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), CreationTimestamp: metav1.Now()}}
	for _, c := range change {
		c(p)
	}
	info, err := framework.NewPodInfo(p)
	if err != nil {
		panic(err)
	}
	return info
}

func nodeNamed(name string) *v1.Node { return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }

// popWithin pops, and checks how long that took in virtual time.
func popWithin(t *testing.T, q *Queue, least, most time.Duration) *Pod {
	t.Helper()
	begun := time.Now()
	p, err := q.Pop(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if d := time.Since(begun); d < least || d > most {
		t.Fatalf("%s came after %v, want %v to %v", p.GetPod().Name, d, least, most)
	}
	return p
}

// mustWait checks that nothing comes for so long.
func mustWait(t *testing.T, q *Queue, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	if p, err := q.Pop(ctx); err == nil {
		t.Fatalf("%s came, want nothing for %v", p.GetPod().Name, d)
	}
}

func TestPopOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		high := int32(10)
		now := time.Now()
		at := func(age time.Duration) func(*v1.Pod) {
			return func(p *v1.Pod) { p.CreationTimestamp = metav1.NewTime(now.Add(-age)) }
		}
		q.Add(podOf("young", at(time.Second)))
		q.Add(podOf("old", at(time.Hour)))
		q.Add(podOf("b", at(time.Minute)))
		q.Add(podOf("a", at(time.Minute)))
		q.Add(podOf("important", func(p *v1.Pod) { p.Spec.Priority = &high }))
		for _, want := range []string{"important", "old", "a", "b", "young"} {
			p := popWithin(t, q, 0, 0)
			if p.GetPod().Name != want {
				t.Fatalf("popped %s, want %s", p.GetPod().Name, want)
			}
			q.Done(p)
		}
	})
}

func TestErrorsBackOffTwiceAsLongEachTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		q.Add(podOf("p"))
		p := popWithin(t, q, 0, 0)
		for _, want := range []time.Duration{1, 2, 4, 8, 10, 10} {
			q.Retry(p)
			p = popWithin(t, q, want*time.Second, want*time.Second)
		}
	})
}

func TestRejectedPodWaitsForWhatHelps(t *testing.T) {
	for node, helps := range map[string]bool{"good": true, "bad": false, "broken": true} {
		synctest.Test(t, func(t *testing.T) {
			q := newQueue()
			q.Add(podOf("p"))
			q.Reject(popWithin(t, q, 0, 0), sets.New(rejector))
			mustWait(t, q, time.Minute)
			q.Move(nodeAdded, nil, nodeNamed(node))
			if !helps {
				mustWait(t, q, time.Minute)
				return
			}
			popWithin(t, q, 0, 0)
		})
	}
}

// A pod that backs off after a rejection leaves the turn to others, and comes when there are none.
func TestBackoffEndsWhenNothingIsActive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		high := int32(10)
		q.Add(podOf("p", func(p *v1.Pod) { p.Spec.Priority = &high }))
		q.Reject(popWithin(t, q, 0, 0), sets.New(rejector))
		q.Add(podOf("q"))
		q.Move(nodeAdded, nil, nodeNamed("good"))
		if p := popWithin(t, q, 0, 0); p.GetPod().Name != "q" {
			t.Errorf("%s came first, though it backs off", p.GetPod().Name)
		}
		if s := q.Summary(); s.Backoff != 1 {
			t.Errorf("summary %+v", s)
		}
		if p := popWithin(t, q, 0, 0); p.GetPod().Name != "p" {
			t.Errorf("%s came twice", p.GetPod().Name)
		}
	})
}

// The back-off that ends first ends early first. Within one second the most important pod comes
// first. A back-off after an error is not cut short, and PreEnqueue is asked.
func TestWhichBackoffsEndEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		q.Add(podOf("failed"))
		q.Retry(popWithin(t, q, 0, 0))
		high := int32(10)
		for _, name := range []string{"a", "b", "c", "important"} {
			q.Add(podOf(name, func(p *v1.Pod) {
				if name == "important" {
					p.Spec.Priority = &high
				}
			}))
			q.Reject(popWithin(t, q, 0, 0), sets.New(rejector))
			time.Sleep(time.Millisecond)
		}
		q.Move(nodeAdded, nil, nodeNamed("good"))
		q.Update(podOf("a").GetPod(),
			podOf("a", func(p *v1.Pod) { p.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "g"}} }),
			fwk.ClusterEvent{Resource: fwk.TargetPod, ActionType: fwk.Update})
		q.Delete("c")
		if p := popWithin(t, q, 0, 0); p.GetPod().Name != "important" {
			t.Errorf("%s came", p.GetPod().Name)
		}
		if p := popWithin(t, q, 0, 0); p.GetPod().Name != "b" {
			t.Errorf("%s came", p.GetPod().Name)
		}
		if p := popWithin(t, q, time.Second-4*time.Millisecond,
			time.Second-4*time.Millisecond); p.GetPod().Name != "failed" {
			t.Errorf("%s came", p.GetPod().Name)
		}
	})
}

func TestEventInFlightIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		q.Add(podOf("p"))
		p := popWithin(t, q, 0, 0)
		q.Move(nodeAdded, nil, nodeNamed("good")) // after the snapshot that p is judged by
		q.Reject(p, sets.New(rejector))
		popWithin(t, q, 0, 0)
	})
}

func TestEventBeforePopIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		q.Add(podOf("p"))
		q.Move(nodeAdded, nil, nodeNamed("good"))
		q.Reject(popWithin(t, q, 0, 0), sets.New(rejector))
		mustWait(t, q, time.Minute)
	})
}

func TestNothingWaitsForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		q.Add(podOf("p"))
		q.Reject(popWithin(t, q, 0, 0), sets.New(rejector))
		popWithin(t, q, 5*time.Minute, 5*time.Minute)
	})
}

func TestGatedPodComesWhenTheGateGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		gated := podOf("p", func(p *v1.Pod) { p.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "g"}} })
		q.Add(gated)
		q.Move(nodeAdded, nil, nodeNamed("good"))
		mustWait(t, q, time.Hour)
		q.Update(gated.GetPod(), podOf("p"),
			fwk.ClusterEvent{Resource: fwk.TargetPod, ActionType: fwk.UpdatePodSchedulingGatesEliminated})
		popWithin(t, q, 0, 0)
	})
}

func TestUpdateInFlightCountsAfterIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		old := podOf("p")
		q.Add(old)
		p := popWithin(t, q, 0, 0)
		q.Update(old.GetPod(), podOf("p", func(p *v1.Pod) { p.Labels = map[string]string{"new": "yes"} }),
			fwk.ClusterEvent{Resource: fwk.TargetPod, ActionType: fwk.UpdatePodLabel})
		if p.GetPod().Labels["new"] != "" {
			t.Error("the pod changed under its owner's hands")
		}
		q.Retry(p)
		if p = popWithin(t, q, time.Second, time.Second); p.GetPod().Labels["new"] != "yes" {
			t.Error("the update was lost")
		}
	})
}

func TestDeletedPodDoesNotComeBack(t *testing.T) {
	giveBack := map[string]func(*Queue, *Pod){
		"rejected": func(q *Queue, p *Pod) { q.Reject(p, sets.New(rejector)) },
		"retried":  func(q *Queue, p *Pod) { q.Retry(p) },
		"done":     func(q *Queue, p *Pod) { q.Done(p) },
	}
	for how, back := range giveBack {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newQueue()
				q.Add(podOf("p"))
				p := popWithin(t, q, 0, 0)
				q.Delete("p")
				back(q, p)
				mustWait(t, q, time.Hour)
				if active, backoff, unschedulable, flying := q.Len(); active+backoff+unschedulable+flying != 0 {
					t.Errorf("left in the queue: %d %d %d %d", active, backoff, unschedulable, flying)
				}
			})
		})
	}
}

func TestPopWaitsForAdd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		got := make(chan *Pod)
		go func() {
			p, err := q.Pop(t.Context())
			if err != nil {
				t.Error(err)
			}
			got <- p
		}()
		synctest.Wait()
		q.Add(podOf("p"))
		if p := <-got; p.GetPod().Name != "p" {
			t.Errorf("popped %s", p.GetPod().Name)
		}
	})
}
