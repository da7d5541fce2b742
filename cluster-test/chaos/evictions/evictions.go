// Package evictions judges the ends of pods in a run of the chaos tests: a fault of the pod's node
// must explain each.
package evictions

import (
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Judge judges the ends of pods. In a run no client deletes a pod until the run removes its
// own: so each end is the cluster's own doing, and a fault of the pod's node must explain it. An
// end has the time of this process's clock at which it was seen, because the clocks of servers
// are moved. Its methods may be called from many goroutines, as each server's watch reports the
// same ends.
type Judge struct {
	// tooSoon is how long a trouble lasts before any pod that a kubelet has taken may be evicted
	// for it.
	tooSoon time.Duration

	mu       sync.Mutex
	troubles []trouble
	judged   map[ending]bool
	over     bool // pods are removed by the run itself
	// orderly and forced count those that were explained.
	orderly, forced int
}

// trouble is a time in which a node may rightly have been taken for dead.
type trouble struct {
	node     string
	from, to time.Time // to is zero while it lasts
	// reported is when all watches had reported the changes of pods until to; zero: some have not.
	reported time.Time
}

// ending is one way in which one pod ends.
type ending struct {
	pod    types.UID
	forced bool
}

// late is for how long after reported an eviction may still be seen that is due to the trouble. A
// trouble ends when the cluster is whole, with every Node Ready and no pod on its way out: a later
// eviction was at most being asked for at that moment.
const late = 5 * time.Second

// New returns a judge of a cluster that calls a silent node dead after grace, and evicts its pods
// after a further toleration. It allows three seconds less, because the node was heard of some time
// before the trouble, and is looked at once a second.
func New(grace, toleration time.Duration) *Judge {
	return &Judge{tooSoon: grace + toleration - 3*time.Second}
}

// Begin notes that something happens to nodes, which may rightly be taken for dead until End.
func (e *Judge) Begin(now time.Time, nodes ...string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, n := range nodes {
		e.troubles = append(e.troubles, trouble{node: n, from: now})
	}
}

// End ends all troubles. A watch that is behind may report their consequences until Reported.
func (e *Judge) End(now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range e.troubles {
		if e.troubles[i].to.IsZero() {
			e.troubles[i].to = now
		}
	}
}

// Reported is called when every watch has reported the changes of pods until the troubles ended.
func (e *Judge) Reported(now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range e.troubles {
		if t := &e.troubles[i]; !t.to.IsZero() && t.reported.IsZero() {
			t.reported = now
		}
	}
}

// Excused is for how long from now on an eviction may still be due to a trouble whose consequences
// all watches have reported.
func (e *Judge) Excused(now time.Time) (d time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, t := range e.troubles {
		if !t.reported.IsZero() {
			d = max(d, t.reported.Add(late).Sub(now))
		}
	}
	return d
}

// Stop is called before the run removes its own pods.
func (e *Judge) Stop() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.over = true
}

// Counts returns how many pods were evicted in order, and how many removed by force, for a reason.
func (e *Judge) Counts() (orderly, forced int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.orderly, e.forced
}

// There is called with a pod that a watch or a list reports as there. It returns the fault;
// empty: none.
func (e *Judge) There(pod *corev1.Pod, now time.Time) (wrong string) {
	if pod.DeletionTimestamp == nil {
		return ""
	}
	return e.judge(pod, false, "was evicted", now)
}

// Gone is called with the last state of a pod that a watch reports as deleted. One that had not
// been asked to end, or whose containers ran, was removed by force: its kubelet, which ends it in
// order, has had no part in that.
func (e *Judge) Gone(pod *corev1.Pod, now time.Time) (wrong string) {
	if pod.DeletionTimestamp == nil || runs(pod) {
		return e.judge(pod, true, "was removed by force", now)
	}
	return e.There(pod, now)
}

// Missing is called with the last that is known of a pod that is not in a list any more. How it
// ended was not seen there; where another watch has seen any of it, that was judged.
func (e *Judge) Missing(pod *corev1.Pod, now time.Time) (wrong string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.judged[ending{pod.UID, true}] {
		return ""
	}
	return e.judgeOnce(pod, false, "ended unseen", now)
}

// runs reports whether a container of the pod is said to run.
func runs(pod *corev1.Pod) bool {
	for i := range pod.Status.ContainerStatuses {
		if pod.Status.ContainerStatuses[i].State.Running != nil {
			return true
		}
	}
	return false
}

// judge looks for the trouble that explains an end, once.
func (e *Judge) judge(pod *corev1.Pod, forced bool, what string, now time.Time) (wrong string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.judgeOnce(pod, forced, what, now)
}

// judgeOnce is judge; mu is held.
func (e *Judge) judgeOnce(pod *corev1.Pod, forced bool, what string, now time.Time) (wrong string) {
	this := ending{pod.UID, forced}
	if e.over || e.judged[this] {
		return ""
	}
	if e.judged == nil {
		e.judged = make(map[ending]bool)
	}
	e.judged[this] = true
	wrong = e.explain(pod, now)
	switch {
	case wrong != "":
		return fmt.Sprintf("pod %s (on %q) %s, and %s", pod.Name, pod.Spec.NodeName, what, wrong)
	case forced:
		e.forced++
	default:
		e.orderly++
	}
	return ""
}

// explain returns why no trouble explains the end of a pod; empty: one does. A pod that has no node
// yet may end for a trouble of any node. mu is held.
func (e *Judge) explain(pod *corev1.Pod, now time.Time) string {
	wrong := "nothing had happened to that node"
	if pod.Spec.NodeName == "" {
		wrong = "nothing had happened to any node"
	}
	for _, t := range e.troubles {
		if t.node != pod.Spec.NodeName && pod.Spec.NodeName != "" || now.Before(t.from) ||
			!t.reported.IsZero() && !now.Before(t.reported.Add(late)) {
			continue
		}
		lasted := now.Sub(t.from)
		if !t.to.IsZero() {
			lasted = min(lasted, t.to.Sub(t.from))
		}
		if pod.Status.StartTime != nil && lasted < e.tooSoon {
			wrong = fmt.Sprintf("that node had been in trouble for %v only: pods stay for %v",
				lasted.Round(100*time.Millisecond), e.tooSoon)
			continue
		}
		return ""
	}
	return wrong
}
