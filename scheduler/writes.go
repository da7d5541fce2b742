package scheduler

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// writes runs API calls outside the loop, a bounded number at once. Calls of one pod run in the
// order in which they were given, so that a late "unschedulable" never follows a binding. Every
// call must end with the term's context.
type writes struct {
	slots chan struct{}
	wg    sync.WaitGroup

	mu   sync.Mutex
	last map[types.UID]chan struct{} // closed when the pod's newest call has ended
}

func newWrites(limit int) *writes {
	return &writes{slots: make(chan struct{}, limit), last: map[types.UID]chan struct{}{}}
}

// do runs call in a goroutine, which wait joins. It returns at once.
func (w *writes) do(uid types.UID, call func()) { w.doAfter(uid, nil, call) }

// doAfter is do with a preparation that may wait for long. The preparation does not count among the
// concurrent calls.
func (w *writes) doAfter(uid types.UID, prepare, call func()) {
	done := make(chan struct{})
	w.mu.Lock()
	before := w.last[uid]
	w.last[uid] = done
	w.mu.Unlock()
	w.wg.Go(func() {
		if before != nil {
			<-before
		}
		if prepare != nil {
			prepare()
		}
		w.slots <- struct{}{}
		call()
		<-w.slots
		w.mu.Lock()
		if w.last[uid] == done {
			delete(w.last, uid)
		}
		w.mu.Unlock()
		close(done)
	})
}

// beside runs a call in no order with other calls of its pod. The call must not wait for slow work,
// such as the volumes of the pod that it ends.
func (w *writes) beside(call func()) {
	w.wg.Go(func() {
		w.slots <- struct{}{}
		call()
		<-w.slots
	})
}

// wait returns when all calls have ended. No call may be given after it.
func (w *writes) wait() { w.wg.Wait() }
