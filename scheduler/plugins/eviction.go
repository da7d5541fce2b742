package plugins

import (
	"sync"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/barque/barque/scheduler/framework"
)

// evictions are the preemptions whose API calls are under way, by preemptor.
//
//	start ──▶ all victims but one ──▶ the last victim ──▶ over
//	              └ one failed ─────────────────────────────┘
//
// The last victim is deleted alone. Its end in the informer shows that the room is free, before the
// API call has returned. This event wakes the preemptor.
type evictions struct {
	h    *framework.Handle
	pods corelisters.PodLister

	mu    sync.Mutex
	under map[types.UID]*eviction
}

type eviction struct {
	left   int // calls that have not returned, without the last victim's
	failed bool
	last   *v1.Pod
	// ending is set once the last victim's deletion has been asked for.
	ending bool
}

func newEvictions(h *framework.Handle) *evictions {
	return &evictions{h: h, pods: h.Informers.Core().V1().Pods().Lister(), under: map[types.UID]*eviction{}}
}

// start evicts the victims that are not terminating yet. It removes the nomination of pods of lower
// priority for the same node: the room may not be enough for both.
func (e *evictions) start(preemptor *v1.Pod, v *victims) {
	for _, w := range e.h.Nominator.On(v.node) {
		if priority(w.GetPod()) < priority(preemptor) {
			e.h.Denominate(w.GetPod())
		}
	}
	var pods []*v1.Pod
	for _, p := range v.pods {
		if p.DeletionTimestamp == nil {
			pods = append(pods, p)
		}
	}
	if len(pods) == 0 {
		return
	}
	first, last := pods[:len(pods)-1], pods[len(pods)-1]
	x := &eviction{left: len(first), last: last, ending: len(first) == 0}
	e.mu.Lock()
	e.under[preemptor.UID] = x
	e.mu.Unlock()
	for _, p := range first {
		e.h.Evict(p, preemptor, func(err error) { e.returned(preemptor, x, err) })
	}
	if len(first) == 0 {
		e.evictLast(preemptor, x)
	}
}

// returned counts one call of all but the last victim's.
func (e *evictions) returned(preemptor *v1.Pod, x *eviction, err error) {
	e.mu.Lock()
	x.left--
	x.failed = x.failed || (err != nil && !apierrors.IsNotFound(err))
	wait, failed := x.left > 0, x.failed
	x.ending = !wait && !failed
	e.mu.Unlock()
	switch {
	case wait:
	case failed:
		e.over(preemptor, true)
	default:
		e.evictLast(preemptor, x)
	}
}

// evictLast evicts the last victim. When that brings no event, the preemptor is woken here: a
// failed call, or a victim that was gone before.
func (e *evictions) evictLast(preemptor *v1.Pod, x *eviction) {
	e.h.Evict(x.last, preemptor, func(err error) { e.over(preemptor, err != nil) })
}

func (e *evictions) over(preemptor *v1.Pod, wake bool) {
	e.mu.Lock()
	delete(e.under, preemptor.UID)
	e.mu.Unlock()
	if wake {
		e.h.Wake(preemptor.UID)
	} else {
		e.h.Ungate(preemptor.UID)
	}
}

// running reports whether the pod must wait for the deletion of its victims.
func (e *evictions) running(preemptor types.UID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	x := e.under[preemptor]
	switch {
	case x == nil:
		return false
	case !x.ending:
		return true
	}
	now, err := e.pods.Pods(x.last.Namespace).Get(x.last.Name)
	return err == nil && now.UID == x.last.UID && now.DeletionTimestamp == nil
}
