package queue

import (
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
)

// TestWake: a pod that is woken comes; also when it was woken in flight.
func TestWake(t *testing.T) {
	for _, inFlight := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			q := newQueue()
			q.Add(podOf("p"))
			p := popWithin(t, q, 0, 0)
			if inFlight {
				q.Wake("p")
			}
			q.Reject(p, sets.New(rejector))
			if !inFlight {
				q.Wake("p")
			}
			p = popWithin(t, q, 0, 0)
			q.Reject(p, sets.New(rejector))
			mustWait(t, q, time.Minute) // it counts once
			q.Wake("nobody")
		})
	}
}

// TestUngate: a pod that was rejected and then gated waits for the events of its rejection again.
func TestUngate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		q.Add(podOf("p"))
		p := popWithin(t, q, 0, 0)
		q.Reject(p, sets.New(rejector))
		gated := podOf("p", func(p *v1.Pod) { p.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "g"}} })
		q.Update(p.GetPod(), gated, fwk.ClusterEvent{Resource: fwk.TargetPod, ActionType: fwk.Update})
		time.Sleep(time.Minute)
		q.Move(nodeAdded, nil, nodeNamed("good")) // its turn comes, and the gate keeps it
		mustWait(t, q, time.Minute)
		q.Update(gated.GetPod(), podOf("p"), fwk.ClusterEvent{Resource: fwk.UnscheduledPod, ActionType: fwk.Add})
		p = popWithin(t, q, 0, 0)
		q.Reject(p, sets.New(rejector))
		q.Update(p.GetPod(), gated, fwk.ClusterEvent{Resource: fwk.TargetPod, ActionType: fwk.Update})
		time.Sleep(time.Minute)
		q.Move(nodeAdded, nil, nodeNamed("good"))
		q.Ungate("p")
		if s := q.Summary(); s.Gated != 0 || s.Unschedulable != 1 || s.RejectedBy[Rejection{rejector, ""}] != 1 {
			t.Errorf("summary %+v", s)
		}
		mustWait(t, q, time.Minute)
		q.Move(nodeAdded, nil, nodeNamed("good"))
		mustWait(t, q, time.Minute) // gated again: its plugin registers the event that opens the gate
		if s := q.Summary(); s.Gated != 1 {
			t.Errorf("summary %+v", s)
		}

		// The gate of a pod that was never rejected stays.
		q.Add(podOf("q", func(p *v1.Pod) { p.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "g"}} }))
		q.Ungate("q")
		if s := q.Summary(); s.Gated != 2 {
			t.Errorf("summary %+v", s)
		}
	})
}
