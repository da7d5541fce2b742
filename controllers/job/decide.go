package job

import (
	"cmp"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/barque/barque/controllers/jobs"
	"github.com/barque/barque/controllers/pods"
)

const (
	// burst bounds how many pods one look at a job creates or deletes.
	burst = 500
	// maxUncounted bounds how many pods one look counts: their UIDs stand in the status.
	maxUncounted = 500
)

// observed is the input of decide about one job.
type observed struct {
	job     *batchv1.Job
	pods    []*corev1.Pod // all that it controls
	backoff backoff
}

// plan has the changes for one job, in this order.
type plan struct {
	discard []*corev1.Pod // too many: deleted without their finalizer, they count as nothing
	kill    []*corev1.Pod // of a job that ends: deleted with their finalizer
	create  []*corev1.Pod
	status  batchv1.JobStatus
	release []*corev1.Pod // counted in the status, or never to be counted: they lose the finalizer
	backoff backoff       // to remember when the status is written
	events  []event       // to write after the status
	again   time.Duration
}

// event is one that users see.
type event struct{ kind, reason, message string }

// soon asks for another look after d at the latest.
func (p *plan) soon(d time.Duration) {
	if d > 0 && (p.again == 0 || d < p.again) {
		p.again = d
	}
}

// view is decide's input, with derived data.
type view struct {
	observed
	now    time.Time
	active []*corev1.Pod
	// noted are the pods that the status has in uncountedTerminatedPods.
	noted sets.Set[types.UID]
	// newly ended pods are in no count yet.
	newSucceeded, newFailed []*corev1.Pod
	succeeded, failed       int32 // all, the new ones included
	// For indexed jobs: the indexes in the status, and the indexes with the new pods.
	done, doneNow, failedNow indexes
	// waiting are failed pods whose replacement is to inherit their count of failures, by index.
	waiting map[int]*corev1.Pod
}

// decide takes one step of an unfinished job that has no other manager. It is called again whenever
// its input has changed.
//
// A pod is counted in three steps, so that a crash between any two neither loses it nor counts it
// twice. Its UID goes into the status; its finalizer is removed; its UID leaves the status and a
// counter rises. A completion index needs no UID: the set of indexes is the counter.
func decide(o observed, now time.Time) plan {
	v := look(o, now)
	p := plan{status: *o.job.Status.DeepCopy(), backoff: o.backoff.after(v.newSucceeded, v.newFailed)}
	if p.status.UncountedTerminatedPods == nil {
		p.status.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{}
	}
	if p.status.StartTime == nil && !suspended(o.job) {
		p.status.StartTime = timeOf(now)
	}
	end := v.end(&p)
	switch {
	case end != nil:
		p.kill = v.active
	case o.job.DeletionTimestamp == nil:
		v.resize(&p)
	}
	if end == nil {
		if end = v.completed(&p); end == nil && o.job.DeletionTimestamp == nil {
			v.suspension(&p)
		}
	}
	v.count(&p, end)
	v.finish(&p, end)
	return p
}

func look(o observed, now time.Time) *view {
	v := &view{observed: o, now: now, noted: sets.New[types.UID]()}
	v.pods = slices.Clone(o.pods)
	slices.SortStableFunc(v.pods, func(a, b *corev1.Pod) int {
		x, _ := indexOf(a)
		y, _ := indexOf(b)
		return cmp.Or(cmp.Compare(x, y), cmp.Compare(a.Name, b.Name))
	})
	status := &o.job.Status
	v.succeeded, v.failed = status.Succeeded, status.Failed
	if u := status.UncountedTerminatedPods; u != nil {
		v.noted.Insert(u.Succeeded...)
		v.noted.Insert(u.Failed...)
		v.succeeded += int32(len(u.Succeeded))
		v.failed += int32(len(u.Failed))
	}
	for _, pod := range v.pods {
		if pods.Active(pod) {
			v.active = append(v.active, pod)
		}
		if !tracked(pod) || v.noted.Has(pod.UID) || !v.valid(pod) {
			continue
		}
		switch {
		case pod.Status.Phase == corev1.PodSucceeded:
			v.newSucceeded = append(v.newSucceeded, pod)
			v.succeeded++
		case v.lost(pod):
			v.newFailed = append(v.newFailed, pod)
			if judge(o.job.Spec.PodFailurePolicy, pod).counts() {
				v.failed++
			}
		}
	}
	if indexed(o.job) {
		v.lookAtIndexes()
	}
	return v
}

func (v *view) lookAtIndexes() {
	v.done = parseIndexes(v.job.Status.CompletedIndexes, v.completions())
	var succeeded, failed []int
	for _, pod := range v.pods {
		i, ok := indexOf(pod)
		switch {
		case !ok || i >= v.completions() || !tracked(pod):
		case pod.Status.Phase == corev1.PodSucceeded:
			succeeded = append(succeeded, i)
		case v.job.Spec.BackoffLimitPerIndex != nil && v.givesUp(pod):
			failed = append(failed, i)
		}
	}
	v.doneNow = v.done.withOne(succeeded...)
	v.succeeded = int32(v.doneNow.count())
	if v.job.Spec.BackoffLimitPerIndex == nil {
		return
	}
	if was := v.job.Status.FailedIndexes; was != nil {
		v.failedNow = parseIndexes(*was, v.completions())
	}
	v.failedNow = v.failedNow.withOne(failed...)
	v.waiting = map[int]*corev1.Pod{}
	replaced := indexesOf(v.active)
	for _, pod := range v.pods {
		i, _ := indexOf(pod)
		if !tracked(pod) || !v.valid(pod) || !v.lost(pod) || replaced.has(i) || v.doneNow.has(i) || v.failedNow.has(i) {
			continue
		}
		if other := v.waiting[i]; other == nil ||
			(allFailures(other) <= allFailures(pod) && !ended(pod).Before(ended(other))) {
			v.waiting[i] = pod
		}
	}
}

// valid reports whether a pod can count: in an indexed job it has an index that is asked for.
func (v *view) valid(pod *corev1.Pod) bool {
	if !indexed(v.job) {
		return true
	}
	i, ok := indexOf(pod)
	return ok && i < v.completions()
}

// lost reports whether a pod has failed, or counts as failed because it goes.
func (v *view) lost(pod *corev1.Pod) bool {
	if pod.Status.Phase == corev1.PodFailed {
		return true
	}
	return !waitsForEnd(v.job) && pods.Terminating(pod)
}

// givesUp reports whether no pod follows a failed one, by its index's limit or the policy.
func (v *view) givesUp(pod *corev1.Pod) bool {
	if !v.lost(pod) {
		return false
	}
	verdict := judge(v.job.Spec.PodFailurePolicy, pod)
	if verdict.action == batchv1.PodFailurePolicyActionFailIndex {
		return true
	}
	return verdict.counts() && failures(pod, batchv1.JobIndexFailureCountAnnotation) >= *v.job.Spec.BackoffLimitPerIndex
}

func (v *view) completions() int {
	if v.job.Spec.Completions == nil {
		return 0
	}
	return int(*v.job.Spec.Completions)
}

func indexesOf(list []*corev1.Pod) indexes {
	var out []int
	for _, pod := range list {
		if i, ok := indexOf(pod); ok {
			out = append(out, i)
		}
	}
	return indexes(nil).withOne(out...)
}

func indexed(job *batchv1.Job) bool {
	return job.Spec.CompletionMode != nil && *job.Spec.CompletionMode == batchv1.IndexedCompletion
}

func suspended(job *batchv1.Job) bool { return job.Spec.Suspend != nil && *job.Spec.Suspend }

// waitsForEnd reports whether pods are replaced only when they have ended, not while they go.
func waitsForEnd(job *batchv1.Job) bool {
	return job.Spec.PodReplacementPolicy != nil && *job.Spec.PodReplacementPolicy == batchv1.Failed
}

// managedElsewhere reports whether another controller is responsible for the job.
func managedElsewhere(job *batchv1.Job) bool {
	return job.Spec.ManagedBy != nil && *job.Spec.ManagedBy != batchv1.JobControllerName
}

func finished(job *batchv1.Job) bool {
	how, _ := jobs.Finished(job)
	return how != ""
}
