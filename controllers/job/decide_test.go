package job

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/barque/barque/controllers/pods"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func ptr[T any](v T) *T { return &v }

func newJob(parallelism, completions int32, edits ...func(*batchv1.Job)) *batchv1.Job {
	j := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "j", UID: "j", Generation: 1},
		Spec: batchv1.JobSpec{
			Parallelism: &parallelism, Completions: &completions, BackoffLimit: ptr(int32(6)),
			Template: corev1.PodTemplateSpec{
				Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever,
					Containers: []corev1.Container{{Name: "c"}}}},
		},
	}
	j.Status.StartTime = timeOf(now.Add(-time.Minute))
	for _, edit := range edits {
		edit(j)
	}
	return j
}

func byIndex(j *batchv1.Job)   { j.Spec.CompletionMode = ptr(batchv1.IndexedCompletion) }
func endless(j *batchv1.Job)   { j.Spec.Completions = nil }
func suspend(j *batchv1.Job)   { j.Spec.Suspend = ptr(true) }
func patient(j *batchv1.Job)   { j.Spec.PodReplacementPolicy = ptr(batchv1.Failed) }
func onFailure(j *batchv1.Job) { j.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyOnFailure }
func deadline(s int64) func(*batchv1.Job) {
	return func(j *batchv1.Job) { j.Spec.ActiveDeadlineSeconds = &s }
}
func limit(n int32) func(*batchv1.Job) { return func(j *batchv1.Job) { j.Spec.BackoffLimit = &n } }
func perIndex(limit int32, most *int32) func(*batchv1.Job) {
	return func(j *batchv1.Job) {
		j.Spec.BackoffLimitPerIndex, j.Spec.MaxFailedIndexes, j.Spec.BackoffLimit = &limit, most, ptr(int32(1<<31-1))
	}
}

// ignoring makes exit code 42 fail the job, 43 the index, and ignores disruptions.
func ignoring(j *batchv1.Job) {
	rule := func(action batchv1.PodFailurePolicyAction, code int32) batchv1.PodFailurePolicyRule {
		return batchv1.PodFailurePolicyRule{Action: action,
			OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{
				Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: []int32{code}}}
	}
	j.Spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{
		rule(batchv1.PodFailurePolicyActionFailJob, 42), rule(batchv1.PodFailurePolicyActionFailIndex, 43),
		{Action: batchv1.PodFailurePolicyActionIgnore,
			OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{
				{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}}},
	}}
}

func pod(name string, edits ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: name, UID: types.UID(name),
			Finalizers: []string{batchv1.JobTrackingFinalizer}, CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	for _, edit := range edits {
		edit(p)
	}
	return p
}

func counted(p *corev1.Pod)   { p.Finalizers = nil }
func succeeded(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }
func failed(p *corev1.Pod)    { p.Status.Phase = corev1.PodFailed }
func going(p *corev1.Pod)     { p.DeletionTimestamp = &metav1.Time{Time: now.Add(-time.Hour)} }
func disrupted(p *corev1.Pod) {
	p.Status.Conditions = append(p.Status.Conditions,
		corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue})
}
func exit(code int32, ago time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Phase = corev1.PodFailed
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: code, FinishedAt: metav1.NewTime(now.Add(-ago))}}}}
	}
}
func index(i int) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		metav1.SetMetaDataAnnotation(&p.ObjectMeta, batchv1.JobCompletionIndexAnnotation, strconv.Itoa(i))
	}
}
func before(n int) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		metav1.SetMetaDataAnnotation(&p.ObjectMeta, batchv1.JobIndexFailureCountAnnotation, strconv.Itoa(n))
	}
}
func restarts(n int32) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", RestartCount: n}}
	}
}

func names(list []*corev1.Pod) string {
	var out []string
	for _, p := range list {
		out = append(out, p.Name)
	}
	slices.Sort(out)
	return fmt.Sprint(out)
}

func TestDecide(t *testing.T) {
	const none = "[]"
	for _, c := range []struct {
		name                   string
		job                    *batchv1.Job
		pods                   []*corev1.Pod
		create                 int
		discard, kill, release string
		end                    string // type and reason of the condition under which it ends
		again                  time.Duration
	}{
		{"first look", newJob(2, 5), nil, 2, none, none, none, "", 0},
		{"no more than completions", newJob(9, 3), nil, 3, none, none, none, "", 0},
		{"as many as it wants", newJob(1, 3), []*corev1.Pod{pod("a")}, 0, none, none, none, "", 0},
		{"too many", newJob(1, 3),
			[]*corev1.Pod{pod("a"), pod("b", func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending })}, 0, "[b]",
			none, none, "", 0},
		{"a success is followed by the next", newJob(1, 3), []*corev1.Pod{pod("a", succeeded)}, 1, none, none, "[a]",
			"", 0},
		{"what is counted needs nothing", newJob(1, 1, func(j *batchv1.Job) { j.Status.Succeeded = 1 }),
			[]*corev1.Pod{pod("a", succeeded, counted)}, 0, none, none, none, "SuccessCriteriaMet CompletionsReached",
			0},
		{"complete", newJob(2, 2), []*corev1.Pod{pod("a", succeeded), pod("b", succeeded)}, 0, none, none, "[a b]",
			"SuccessCriteriaMet CompletionsReached", 0},
		{"a failure waits", newJob(1, 1), []*corev1.Pod{pod("a", exit(1, 4*time.Second))}, 0, none, none, "[a]", "",
			6 * time.Second},
		{"and is replaced", newJob(1, 1), []*corev1.Pod{pod("a", exit(1, 10*time.Second))}, 1, none, none, "[a]", "",
			0},
		{"a pod that goes counts as failed", newJob(1, 1), []*corev1.Pod{pod("a", going)}, 1, none, none, "[a]", "", 0},
		{"unless its end is waited for", newJob(1, 1, patient), []*corev1.Pod{pod("a", going)}, 0, none, none, none, "",
			0},
		{"one failure too many", newJob(3, 3, limit(0)), []*corev1.Pod{pod("a", failed), pod("b"), pod("c", succeeded)},
			0, none, "[b]", "[a b c]", "FailureTarget BackoffLimitExceeded", 0},
		{"too many restarts", newJob(1, 1, onFailure, limit(3)), []*corev1.Pod{pod("a", restarts(3))}, 0, none, "[a]",
			"[a]", "FailureTarget BackoffLimitExceeded", 0},
		{"few restarts", newJob(1, 1, onFailure, limit(3)), []*corev1.Pod{pod("a", restarts(2))}, 0, none, none, none,
			"", 0},
		{"no restart is too many", newJob(1, 1, onFailure, limit(0)), []*corev1.Pod{pod("a", restarts(0))}, 0, none,
			none, none, "", 0},
		{"deadline ahead", newJob(1, 1, deadline(90)), []*corev1.Pod{pod("a")}, 0, none, none, none, "",
			30 * time.Second},
		{"deadline passed", newJob(1, 1, deadline(60)), []*corev1.Pod{pod("a")}, 0, none, "[a]", "[a]",
			"FailureTarget DeadlineExceeded", 0},
		{"suspended", newJob(2, 2, suspend, deadline(1)), []*corev1.Pod{pod("a"), pod("b", failed)}, 0, "[a]", none,
			"[b]", "", 0},
		{"no number: parallelism", newJob(3, 0, endless), nil, 3, none, none, none, "", 0},
		{"no number: the others finish", newJob(3, 0, endless), []*corev1.Pod{pod("a", succeeded), pod("b")}, 0, none,
			none, "[a]", "", 0},
		{"no number: complete", newJob(3, 0, endless), []*corev1.Pod{pod("a", succeeded), pod("b", failed)}, 0, none,
			none, "[a b]", "SuccessCriteriaMet CompletionsReached", 0},
		{"policy fails the job", newJob(2, 2, ignoring), []*corev1.Pod{pod("a", exit(42, 0)), pod("b")}, 0, none, "[b]",
			"[a b]", "FailureTarget PodFailurePolicy", 0},
		{"policy ignores", newJob(1, 1, ignoring, limit(0)), []*corev1.Pod{pod("a", failed, disrupted)}, 1, none, none,
			"[a]", "", 0},
		{"indexes", newJob(2, 4, byIndex), []*corev1.Pod{pod("a", index(0), succeeded), pod("b", index(2))}, 1, none,
			none, "[a]", "", 0},
		{"indexes twice and none", newJob(3, 3, byIndex),
			[]*corev1.Pod{pod("a", index(1)),
				pod("b", index(1), func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }), pod("c"),
				pod("d", index(7))}, 0, "[b c d]", none, none, "", 0},
		{"an index is complete once", newJob(2, 2, byIndex),
			[]*corev1.Pod{pod("a", index(0), succeeded), pod("b", index(0), succeeded), pod("c", index(1))}, 0, none,
			none, "[a b]", "", 0},
		{"index's failed pod waits for the next", newJob(1, 2, byIndex, perIndex(1, nil)),
			[]*corev1.Pod{pod("a", index(0), exit(1, 0))}, 0, none, none, none, "", 10 * time.Second},
		{"which has come", newJob(2, 2, byIndex, perIndex(1, nil)),
			[]*corev1.Pod{pod("a", index(0), exit(1, 0)), pod("b", index(0), before(1)), pod("c", index(1))}, 0, none,
			none, "[a]", "", 0},
		{"index gives up", newJob(1, 2, byIndex, perIndex(0, nil)), []*corev1.Pod{pod("a", index(0), failed)}, 1, none,
			none, "[a]", "", 0},
		{"index fails by policy", newJob(1, 2, byIndex, perIndex(5, nil), ignoring),
			[]*corev1.Pod{pod("a", index(0), exit(43, 0))}, 1, none, none, "[a]", "", 0},
		{"too many indexes failed", newJob(2, 3, byIndex, perIndex(0, ptr(int32(0)))),
			[]*corev1.Pod{pod("a", index(0), failed), pod("b", index(1))}, 0, none, "[b]", "[a b]",
			"FailureTarget MaxFailedIndexesExceeded", 0},
		{"all decided, one failed", newJob(2, 2, byIndex, perIndex(0, nil)),
			[]*corev1.Pod{pod("a", index(0), failed), pod("b", index(1), succeeded)}, 0, none, none, "[a b]",
			"FailureTarget FailedIndexes", 0},
		{"success policy", newJob(3, 5, byIndex, func(j *batchv1.Job) {
			j.Spec.SuccessPolicy = &batchv1.SuccessPolicy{
				Rules: []batchv1.SuccessPolicyRule{{SucceededIndexes: ptr("0,3-4")},
					{SucceededIndexes: ptr("1-4"), SucceededCount: ptr(int32(1))}}}
		}), []*corev1.Pod{pod("a", index(0), succeeded), pod("b", index(3)), pod("c", index(2), succeeded)}, 0, none,
			"[b]", "[a b c]", "SuccessCriteriaMet SuccessPolicy", 0},
		{"being deleted", newJob(2, 2, func(j *batchv1.Job) { j.DeletionTimestamp = &metav1.Time{Time: now} }),
			[]*corev1.Pod{pod("a")}, 0, none, none, "[a]", "", 0},
		{"an earlier decision stays", newJob(2, 2, func(j *batchv1.Job) {
			j.Status.Conditions = []batchv1.JobCondition{
				*newCondition(batchv1.JobFailureTarget, corev1.ConditionTrue, "DeadlineExceeded", "m", now)}
		}), []*corev1.Pod{pod("a", succeeded), pod("b", succeeded), pod("c")}, 0, none, "[c]", "[a b c]",
			"FailureTarget DeadlineExceeded", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := decide(observed{job: c.job, pods: c.pods}, now)
			end := ""
			for _, condition := range p.status.Conditions {
				if condition.Type == batchv1.JobFailureTarget || condition.Type == batchv1.JobSuccessCriteriaMet {
					end = string(condition.Type) + " " + condition.Reason
				}
			}
			if len(p.create) != c.create || names(p.discard) != c.discard || names(p.kill) != c.kill ||
				names(p.release) != c.release || end != c.end || p.again != c.again {
				t.Errorf("create %d, discard %s, kill %s, release %s, end %q, again %v; want %d, %s, %s, %s, %q, %v",
					len(p.create), names(p.discard), names(p.kill), names(p.release), end, p.again, c.create, c.discard,
					c.kill, c.release, c.end, c.again)
			}
		})
	}
}

func TestIndexedPods(t *testing.T) {
	j := newJob(3, 3, byIndex, perIndex(3, nil))
	j.Spec.Template.Spec.InitContainers = []corev1.Container{{Name: "i"}}
	j.Status.CompletedIndexes = "0"
	p := decide(observed{job: j, pods: []*corev1.Pod{pod("a", index(1), before(1), exit(1, time.Hour))}}, now)
	if len(p.create) != 2 {
		t.Fatalf("create %s", names(p.create))
	}
	for i, made := range p.create {
		want := strconv.Itoa(i + 1)
		if made.Annotations[batchv1.JobCompletionIndexAnnotation] != want ||
			made.Labels[batchv1.JobCompletionIndexAnnotation] != want ||
			made.Spec.Hostname != "j-"+want || made.GenerateName != "j-"+want+"-" || !tracked(made) ||
			!metav1.IsControlledBy(made, j) ||
			made.Spec.Containers[0].Env[0].Name != "JOB_COMPLETION_INDEX" || len(made.Spec.InitContainers[0].Env) != 1 {
			t.Errorf("pod of index %s: %+v", want, made)
		}
	}
	if n := p.create[0].Annotations[batchv1.JobIndexFailureCountAnnotation]; n != "2" {
		t.Errorf("the replacement of index 1 inherits %s failures", n)
	}
	if n := p.create[1].Annotations[batchv1.JobIndexFailureCountAnnotation]; n != "0" {
		t.Errorf("the first pod of index 2 has %s failures", n)
	}
	if len(j.Spec.Template.Spec.Containers[0].Env) != 0 {
		t.Error("the template itself was changed")
	}
}

func TestSuspension(t *testing.T) {
	j := newJob(1, 1, suspend)
	p := decide(observed{job: j}, now)
	if !isTrue(p.status.Conditions, batchv1.JobSuspended) || p.status.StartTime != nil || len(p.events) != 1 ||
		p.events[0].reason != "Suspended" {
		t.Fatalf("suspended: %+v, %v", p.status, p.events)
	}
	j.Status, j.Spec.Suspend = p.status, nil
	p = decide(observed{job: j}, now)
	if c := conditionOf(p.status.Conditions, batchv1.JobSuspended); c.Status != corev1.ConditionFalse ||
		c.Reason != "JobResumed" || !p.status.StartTime.Equal(timeOf(now)) || p.events[0].reason != "Resumed" ||
		len(p.create) != 1 {
		t.Errorf("resumed: %+v, %v", p.status, p.events)
	}
}

func TestBackoff(t *testing.T) {
	at := func(ago time.Duration) *corev1.Pod { return pod("p", exit(1, ago)) }
	b := backoff{}.after(nil, []*corev1.Pod{at(5 * time.Second), at(3 * time.Second)})
	if b.failures != 2 || b.left(now) != 17*time.Second {
		t.Errorf("two failures: %+v, %v", b, b.left(now))
	}
	if b = b.after([]*corev1.Pod{at(2 * time.Second)},
		[]*corev1.Pod{at(time.Second), at(4 * time.Second)}); b.failures != 1 || b.left(now) != 9*time.Second {
		t.Errorf("a failure after a success: %+v, %v", b, b.left(now))
	}
	if wait := (backoff{failures: 1000, last: now}).left(now); wait != maxBackoff {
		t.Errorf("a thousand failures: %v", wait)
	}
}

func TestIndexSets(t *testing.T) {
	for _, c := range []struct {
		text  string
		limit int
		want  string
		count int
	}{
		{"", 9, "", 0}, {"3", 9, "3", 1}, {"1,2", 9, "1,2", 2}, {"1,2,3", 9, "1-3", 3},
		{"0-2,5,7-9", 9, "0-2,5,7,8", 6},
		{"9", 9, "", 0}, {"x,2-1,4", 9, "4", 1}, {"5,1", 9, "1,5", 2},
	} {
		if got := parseIndexes(c.text, c.limit); got.String() != c.want || got.count() != c.count {
			t.Errorf("%q below %d: %q, %d; want %q, %d", c.text, c.limit, got, got.count(), c.want, c.count)
		}
	}
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 1))
		random := func() (indexes, map[int]bool) {
			set, list := map[int]bool{}, []int{}
			for range r.IntN(12) {
				i := r.IntN(20)
				set[i] = true
				list = append(list, i)
			}
			return indexes(nil).withOne(list...), set
		}
		x, xs := random()
		y, ys := random()
		both := 0
		for i := range 20 {
			if x.has(i) != xs[i] || x.with(y).has(i) != (xs[i] || ys[i]) {
				t.Fatalf("seed %d: %d in %s or %s", seed, i, x, y)
			}
			if xs[i] && ys[i] {
				both++
			}
		}
		if x.common(y) != both || parseIndexes(x.String(), 20).String() != x.String() {
			t.Fatalf("seed %d: %s and %s have %d in common, not %d", seed, x, y, x.common(y), both)
		}
		for _, i := range x.missing(5, 20) {
			if xs[i] || i >= 20 {
				t.Fatalf("seed %d: %d is not missing in %s", seed, i, x)
			}
		}
		if n := len(x.missing(30, 20)); n != 20-x.count() {
			t.Fatalf("seed %d: %d are missing in %s", seed, n, x)
		}
	}
}

// fate is the test's own count of a job's ended pods.
type fate struct{ succeeded, failed int }

// world carries plans out, whole or in part.
type world struct {
	r    *rand.Rand
	job  *batchv1.Job
	pods []*corev1.Pod
	made int
	now  time.Time
	mem  backoff
	fate fate
}

// carry does the first steps of a plan; the rest is lost in a crash.
func (w *world) carry(p plan, steps int) {
	next := func() bool { steps--; return steps >= 0 }
	var gone []*corev1.Pod
	for _, pod := range p.discard {
		if next() {
			pod.Finalizers = nil
		}
		if next() {
			pod.DeletionTimestamp = &metav1.Time{Time: w.now}
			gone = append(gone, pod)
		}
	}
	for _, pod := range p.kill {
		if next() {
			pod.DeletionTimestamp = &metav1.Time{Time: w.now}
			gone = append(gone, pod)
		}
	}
	created := 0
	for _, pod := range p.create {
		if next() {
			w.made++
			created++
			pod.Name = fmt.Sprint("p", w.made)
			pod.UID, pod.CreationTimestamp, pod.Status.Phase = types.UID(pod.Name), metav1.NewTime(w.now),
				corev1.PodPending
			w.pods = append(w.pods, pod)
		}
	}
	account(&p.status, created, gone)
	if !next() {
		w.mem = backoff{} // another leader
		return
	}
	w.job.Status, w.mem = p.status, p.backoff
	for _, pod := range p.release {
		if !next() {
			continue
		}
		pod.Finalizers = nil
		switch {
		case pod.Status.Phase == corev1.PodSucceeded:
			w.fate.succeeded++
		case pod.Status.Phase == corev1.PodFailed || !waitsForEnd(w.job) ||
			isTrue(p.status.Conditions, batchv1.JobFailureTarget):
			w.fate.failed++
		} // else it goes while the job completes, and does not count before its end
	}
}

// live lets time pass and pods live on.
func (w *world) live() {
	w.now = w.now.Add(time.Duration(w.r.IntN(20)) * time.Second)
	for _, pod := range w.pods {
		finish := func(phase corev1.PodPhase) {
			pod.Status.Phase = phase
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{
				{Name: "c",
					State: corev1.ContainerState{
						Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(w.now)}}}}
		}
		switch {
		case pods.Finished(pod):
		case pod.DeletionTimestamp != nil:
			if w.r.IntN(2) == 0 {
				finish(corev1.PodFailed)
			}
		case w.r.IntN(3) > 0:
		case pod.Status.Phase == corev1.PodPending:
			pod.Status.Phase = corev1.PodRunning
		case w.r.IntN(8) == 0:
			pod.DeletionTimestamp = &metav1.Time{Time: w.now} // by a user
		case w.r.IntN(3) == 0:
			finish(corev1.PodFailed)
		default:
			finish(corev1.PodSucceeded)
		}
	}
	w.pods = slices.DeleteFunc(w.pods, func(pod *corev1.Pod) bool {
		return pod.DeletionTimestamp != nil && len(pod.Finalizers) == 0 && pods.Finished(pod)
	})
}

// With any events between two steps, every job ends and every pod is counted once. No more pods run
// than wanted. A second reconcile of an unchanged state changes nothing.
func TestEveryPodIsCountedOnce(t *testing.T) {
	complete := 0
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 7))
		parallelism := int32(1 + r.IntN(4))
		j := newJob(parallelism, int32(1+r.IntN(6)), limit(int32(r.IntN(12))))
		j.Status.StartTime = nil
		switch r.IntN(4) {
		case 0:
			byIndex(j)
		case 1:
			endless(j)
		case 2:
			byIndex(j)
			perIndex(int32(r.IntN(3)), nil)(j)
		}
		if r.IntN(3) == 0 {
			patient(j)
		}
		w := &world{r: r, job: j, now: now}
		looks := 0
		for ; !finished(j) && looks < 3000; looks++ {
			if r.IntN(20) == 0 {
				j.Spec.Suspend = ptr(!suspended(j) && looks < 1000)
			}
			p := decide(observed{job: j.DeepCopy(), pods: w.pods, backoff: w.mem}, w.now)
			steps := 1 << 20
			if r.IntN(4) == 0 {
				steps = r.IntN(8)
			}
			w.carry(p, steps)
			active := 0
			for _, pod := range w.pods {
				if pods.Active(pod) {
					active++
				}
			}
			if active > int(parallelism) {
				t.Fatalf("seed %d: %d pods run, %d may", seed, active, parallelism)
			}
			w.live()
		}
		s := &j.Status
		if !finished(j) {
			t.Fatalf("seed %d: after %d looks: %+v, %d pods", seed, looks, s, len(w.pods))
		}
		if len(s.UncountedTerminatedPods.Succeeded)+len(s.UncountedTerminatedPods.Failed) > 0 || s.Active != 0 ||
			*s.Terminating != 0 || *s.Ready != 0 {
			t.Fatalf("seed %d: finished with %+v", seed, s)
		}
		for _, pod := range w.pods {
			if tracked(pod) {
				t.Fatalf("seed %d: finished, and %s has not been counted", seed, pod.Name)
			}
		}
		if isTrue(s.Conditions, batchv1.JobComplete) {
			complete++
			if n := j.Spec.Completions; n != nil && s.Succeeded < *n {
				t.Fatalf("seed %d: complete with %d of %d", seed, s.Succeeded, *n)
			}
		}
		if int(s.Failed) != w.fate.failed {
			t.Fatalf("seed %d: %d failed, the status says %d", seed, w.fate.failed, s.Failed)
		}
		if !indexed(j) && int(s.Succeeded) != w.fate.succeeded {
			t.Fatalf("seed %d: %d succeeded, the status says %d", seed, w.fate.succeeded, s.Succeeded)
		}
	}
	if complete < 100 || complete > 390 {
		t.Errorf("%d of 400 jobs were completed: the test sees too little of one kind", complete)
	}
}

// decide's own output, seen again at once, asks for nothing more.
func TestDecideSettles(t *testing.T) {
	for _, j := range []*batchv1.Job{newJob(2, 5), newJob(2, 5, byIndex), newJob(2, 5, suspend),
		newJob(2, 0, endless)} {
		w := &world{r: rand.New(rand.NewPCG(1, 1)), job: j, now: now}
		for range 3 {
			w.carry(decide(observed{job: j.DeepCopy(), pods: w.pods}, now), 1<<20)
		}
		p := decide(observed{job: j.DeepCopy(), pods: w.pods}, now)
		if len(p.create)+len(p.discard)+len(p.kill)+len(p.release)+len(p.events) > 0 ||
			!equality.Semantic.DeepEqual(p.status, j.Status) {
			t.Errorf("plan %+v after status %+v", p, j.Status)
		}
	}
}
