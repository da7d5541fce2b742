package job

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/barque/barque/controllers/pods"
)

// resize plans missing pods or surplus ones; one reconcile does one of both.
func (v *view) resize(p *plan) {
	if suspended(v.job) {
		p.discard = v.active
		return
	}
	want := v.wanted()
	if p.discard = v.excess(len(v.active) - want); len(p.discard) > 0 {
		p.discard = p.discard[:min(len(p.discard), burst)]
		return
	}
	missing := want - len(v.active)
	if waitsForEnd(v.job) {
		for _, pod := range v.pods {
			if pods.Terminating(pod) {
				missing--
			}
		}
	}
	missing = min(missing, burst)
	if missing <= 0 {
		return
	}
	if v.job.Spec.BackoffLimitPerIndex == nil {
		if wait := p.backoff.left(v.now); wait > 0 {
			p.soon(wait)
			return
		}
	}
	if !indexed(v.job) {
		for range missing {
			p.create = append(p.create, newPod(v.job))
		}
		return
	}
	next := time.Duration(0)
	for _, i := range v.pending(missing) {
		before := v.waiting[i]
		if before != nil {
			if wait := waitAfter(allFailures(before)+1, ended(before), v.now); wait > 0 {
				if next == 0 || wait < next {
					next = wait
				}
				continue
			}
		}
		p.create = append(p.create, newIndexedPod(v.job, i, before))
	}
	p.soon(next)
}

// wanted returns how many pods should run.
func (v *view) wanted() int {
	parallelism := 1
	if v.job.Spec.Parallelism != nil {
		parallelism = int(*v.job.Spec.Parallelism)
	}
	if v.job.Spec.Completions == nil {
		if v.succeeded > 0 {
			return len(v.active) // one has succeeded: the others may finish, no more are started
		}
		return parallelism
	}
	return max(0, min(parallelism, v.completions()-int(v.succeeded)))
}

// excess returns the pods to delete: at least n. In an indexed job these include pods that share an
// index, or have one that is not wanted.
func (v *view) excess(n int) []*corev1.Pod {
	left := slices.Clone(v.active)
	pods.ByDeletion(left, left, v.now)
	var out []*corev1.Pod
	if indexed(v.job) {
		taken := map[int]bool{}
		// From the dearest down: of several of one index the dearest stays.
		for _, pod := range slices.Backward(slices.Clone(left)) {
			i, ok := indexOf(pod)
			if ok && i < v.completions() && !taken[i] {
				taken[i] = true
				continue
			}
			out = append(out, pod)
		}
		left = slices.DeleteFunc(left, func(pod *corev1.Pod) bool { return slices.Contains(out, pod) })
	}
	if more := n - len(out); more > 0 {
		out = append(out, left[:min(more, len(left))]...)
	}
	return out
}

// pending returns the first n indexes that have no pod and are not decided.
func (v *view) pending(n int) []int {
	busy := v.doneNow.with(indexesOf(v.active)).with(v.failedNow)
	if waitsForEnd(v.job) {
		var going []*corev1.Pod
		for _, pod := range v.pods {
			if pods.Terminating(pod) {
				going = append(going, pod)
			}
		}
		busy = busy.with(indexesOf(going))
	}
	return busy.missing(n, v.completions())
}
