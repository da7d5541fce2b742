package queue

import (
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
)

// Summary counts the pods of the queue by state.
type Summary struct {
	Active, Backoff, Unschedulable, Gated int
	// RejectedBy counts unschedulable and gated pods by the plugins that rejected them.
	RejectedBy map[Rejection]int
}

// Rejection names a plugin of a profile.
type Rejection struct{ Plugin, SchedulerName string }

// Summary counts the pods that wait.
func (q *Queue) Summary() Summary {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := Summary{Active: q.active.Len(), Backoff: q.rejected.Len() + q.failed.Len(), RejectedBy: map[Rejection]int{}}
	for _, p := range q.unschedulable {
		name := p.GetPod().Spec.SchedulerName
		if p.gate != "" {
			s.Gated++
			s.RejectedBy[Rejection{p.gate, name}]++
			continue
		}
		s.Unschedulable++
		for plugin := range p.rejectedBy {
			s.RejectedBy[Rejection{plugin, name}]++
		}
	}
	return s
}

// Waiting is a pod in the queue, for operators.
type Waiting struct {
	UID             types.UID
	Namespace, Name string
	Queue           string // active, backoff, unschedulable, gated or in flight
	Attempts        int
	RejectedBy      []string
}

// Waiting lists all pods of the queue, in no order.
func (q *Queue) Waiting() []Waiting {
	q.mu.Lock()
	defer q.mu.Unlock()
	out := make([]Waiting, 0, len(q.pods))
	for _, p := range q.pods {
		w := Waiting{UID: p.UID(), Namespace: p.GetPod().Namespace, Name: p.GetPod().Name, Attempts: p.Attempts}
		switch {
		case p.where == inActive:
			w.Queue = "active"
		case p.where == inBackoff:
			w.Queue = "backoff"
		case p.where == inFlight:
			w.Queue = "in flight"
		case p.gate != "":
			w.Queue, w.RejectedBy = "gated", []string{p.gate}
		default:
			w.Queue, w.RejectedBy = "unschedulable", sets.List(p.rejectedBy)
		}
		out = append(out, w)
	}
	return out
}
