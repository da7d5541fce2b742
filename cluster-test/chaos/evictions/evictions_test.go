package evictions

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// tooSoon is that of New(10*time.Second, 5*time.Second).
const tooSoon = 12 * time.Second

// asked is one that was asked to end.
func asked(pod *corev1.Pod) *corev1.Pod {
	pod.DeletionTimestamp = new(metav1.Time)
	return pod
}

// taken is a pod that its kubelet has taken and whose container runs.
func taken(node string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u"}, Spec: corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{
			StartTime: new(metav1.Time),
			ContainerStatuses: []corev1.ContainerStatus{
				{State: corev1.ContainerState{Running: new(corev1.ContainerStateRunning)}}}}}
}

// ended is one that was asked to end, and has.
func ended(node string) *corev1.Pod {
	pod := asked(taken(node))
	pod.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: new(corev1.ContainerStateTerminated)}
	return pod
}

// TestEvictions: the end of a pod whose node was in trouble is excused for a while, however it
// ended, and no other is.
func TestEvictions(t *testing.T) {
	start := time.Now()
	at := func(d time.Duration) time.Time { return start.Add(d) }
	type end func(e *Judge, node string, now time.Time) string
	evicted := func(e *Judge, node string, now time.Time) string { return e.There(asked(taken(node)), now) }
	forced := func(e *Judge, node string, now time.Time) string { return e.Gone(taken(node), now) }
	inTheMiddle := func(e *Judge, node string, now time.Time) string { return e.Gone(asked(taken(node)), now) }
	inOrder := func(e *Judge, node string, now time.Time) string { return e.Gone(ended(node), now) }
	missing := func(e *Judge, node string, now time.Time) string { return e.Missing(taken(node), now) }
	untaken := func(e *Judge, node string, now time.Time) string {
		pod := taken(node)
		pod.Status = corev1.PodStatus{}
		return e.Gone(pod, now)
	}
	const none, soon = "nothing had happened to that node", "in trouble for"
	for _, c := range []struct {
		what string
		end  end
		node string
		when time.Duration
		want string // in the fault; empty: no fault
	}{
		{"evicted while it lasts", evicted, "s1", 115 * time.Second, ""},
		{"evicted after, and told by a watch that is behind", evicted, "s1", 125 * time.Second, ""},
		{"evicted soon after", evicted, "s1", 130*time.Second + late - time.Second, ""},
		{"evicted later", evicted, "s1", 130*time.Second + late, none},
		{"evicted ten seconds later", evicted, "s1", 140 * time.Second, none},
		{"evicted after a short one, when it has been long ago enough for a long one", evicted, "s5",
			100*time.Second + tooSoon + time.Second, soon},
		{"evicted after a short one that some watch has not told of yet", evicted, "s6", 200 * time.Second, soon},
		{"evicted after a long one that some watch has not told of yet", evicted, "s7", 200 * time.Second, ""},
		{"evicted before", evicted, "s1", 99 * time.Second, none},
		{"evicted from another node", evicted, "s2", 115 * time.Second, none},
		{"evicted from one that is still in trouble", evicted, "s3", time.Hour, ""},
		{"evicted too soon", evicted, "s1", 100*time.Second + tooSoon - time.Second, soon},
		{"evicted too soon after, and late enough after one before", evicted, "s4", 33 * time.Second, ""},
		{"removed by force while it lasts", forced, "s1", 115 * time.Second, ""},
		{"removed by force soon after", forced, "s1", 130*time.Second + late - time.Second, ""},
		{"removed by force later", forced, "s1", 130*time.Second + late, none},
		{"removed by force after a short one", forced, "s5", 100*time.Second + tooSoon + time.Second, soon},
		{"removed by force before", forced, "s1", 99 * time.Second, none},
		{"removed by force from another node", forced, "s2", 115 * time.Second, none},
		{"removed by force too soon", forced, "s1", 105 * time.Second, soon},
		{"removed by force while it ended", inTheMiddle, "s1", 115 * time.Second, ""},
		{"removed by force while it ended, for nothing", inTheMiddle, "s2", 115 * time.Second, none},
		{"gone in order", inOrder, "s1", 115 * time.Second, ""},
		{"gone in order, for nothing", inOrder, "s2", 115 * time.Second, none},
		{"not in a list any more", missing, "s1", 115 * time.Second, ""},
		{"not in a list any more soon after", missing, "s1", 130*time.Second + late - time.Second, ""},
		{"not in a list any more later", missing, "s1", 130*time.Second + late, none},
		{"not in a list any more, for nothing", missing, "s2", 115 * time.Second, none},
		{"never taken, and replaced at once", untaken, "s1", 101 * time.Second, ""},
		{"never taken, and replaced after a short one", untaken, "s5", 100*time.Second + tooSoon + time.Second, ""},
		{"never taken, and replaced for nothing", untaken, "s2", 101 * time.Second, none},
		{"never bound, while a node is in trouble", untaken, "", 101 * time.Second, ""},
	} {
		seconds := func(node string, from, to, told int) trouble {
			return trouble{node, at(time.Duration(from) * time.Second), at(time.Duration(to) * time.Second),
				at(time.Duration(told) * time.Second)}
		}
		e := &Judge{
			tooSoon: tooSoon,
			troubles: []trouble{seconds("s1", 100, 120, 130), {node: "s3", from: at(0)}, seconds("s4", 0, 20, 30),
				seconds("s4", 31, 33, 34),
				seconds("s5", 100, 102, 110), {node: "s6", from: at(100 * time.Second), to: at(102 * time.Second)},
				{node: "s7", from: at(100 * time.Second), to: at(120 * time.Second)}}}
		if c.node == "" {
			e.troubles = e.troubles[:1]
		}
		wrong := c.end(e, c.node, at(c.when))
		if (wrong == "") != (c.want == "") || !strings.Contains(wrong, c.want) {
			t.Errorf("%s: %q, want %q", c.what, wrong, c.want)
		}
		if again := c.end(e, c.node, at(c.when)); again != "" {
			t.Errorf("%s: it is judged again: %q", c.what, again)
		}
		if orderly, forced := e.Counts(); (orderly+forced == 1) != (c.want == "") || orderly+forced > 1 {
			t.Errorf("%s: counted are %d in order and %d by force", c.what, orderly, forced)
		}
	}
	if wrong := untaken(New(10*time.Second, 5*time.Second), "", at(0)); !strings.Contains(wrong, "to any node") {
		t.Errorf("never bound, and deleted for nothing: %q", wrong)
	}
}

// TestEvictedThenForced: one that may rightly end in order may not rightly be removed while it
// does.
func TestEvictedThenForced(t *testing.T) {
	start := time.Now()
	e := New(10*time.Second, 5*time.Second)
	e.Begin(start, "s1", "s2")
	if wrong := e.There(asked(taken("s1")), start.Add(tooSoon)); wrong != "" {
		t.Error(wrong)
	}
	e.End(start.Add(tooSoon))
	e.Reported(start.Add(tooSoon))
	after := start.Add(tooSoon + late)
	if wrong := e.Gone(ended("s1"), after); wrong != "" {
		t.Errorf("it has ended in order: %s", wrong)
	}
	if wrong := e.Gone(asked(taken("s1")), after); !strings.Contains(wrong, "removed by force") {
		t.Errorf("it was removed while it ran: %q", wrong)
	}
	e.Stop()
	other := taken("s2")
	other.UID = types.UID("v")
	if wrong := e.Gone(other, after); wrong != "" {
		t.Errorf("the run removes it: %s", wrong)
	}
	if orderly, forced := e.Counts(); orderly != 1 || forced != 0 {
		t.Errorf("counted are %d in order and %d by force", orderly, forced)
	}
}

// TestTroublesEnd: the consequences of a trouble are excused until every watch has reported them,
// and a moment longer; a fault that excuses no eviction begins then.
func TestTroublesEnd(t *testing.T) {
	start := time.Now()
	at := func(d time.Duration) time.Time { return start.Add(d) }
	number := 0
	evicted := func(e *Judge, now time.Time) string {
		pod := asked(taken("s1"))
		number++
		pod.UID = types.UID(rune('a' + number))
		return e.There(pod, now)
	}
	e := New(10*time.Second, 5*time.Second)
	e.Begin(start, "s1")
	e.Reported(at(time.Second)) // it lasts: its end is not reported yet
	if d := e.Excused(at(time.Hour)); d != 0 {
		t.Errorf("while it lasts: %v", d)
	}
	if wrong := evicted(e, at(tooSoon)); wrong != "" {
		t.Error(wrong)
	}
	e.End(at(time.Minute))
	if wrong := evicted(e, at(2*time.Minute)); wrong != "" {
		t.Errorf("a watch that is behind tells of it: %s", wrong)
	}
	told := at(3 * time.Minute)
	e.Reported(told)
	e.Reported(told.Add(time.Minute)) // the first time counts
	if d := e.Excused(told.Add(time.Second)); d != late-time.Second {
		t.Errorf("an eviction is excused for %v, want %v", d, late-time.Second)
	}
	if wrong := evicted(e, told.Add(late-1)); wrong != "" {
		t.Error(wrong)
	}
	if wrong := evicted(e, told.Add(late)); wrong == "" {
		t.Error("an eviction is excused for longer")
	}
	if d := e.Excused(told.Add(time.Hour)); d != 0 {
		t.Errorf("an hour later: %v", d)
	}
}

// TestMissingWasSeen: a pod that is not in the list of a server that was away is judged, unless
// another watch has reported its end before.
func TestMissingWasSeen(t *testing.T) {
	start := time.Now()
	for what, tell := range map[string]func(e *Judge) string{
		"by force": func(e *Judge) string { return e.Gone(taken("s1"), start.Add(tooSoon)) },
		"in order": func(e *Judge) string { return e.There(asked(taken("s1")), start.Add(tooSoon)) },
		"":         func(*Judge) string { return "" },
	} {
		e := New(10*time.Second, 5*time.Second)
		e.Begin(start, "s1")
		if wrong := tell(e); wrong != "" {
			t.Errorf("%s: %s", what, wrong)
		}
		e.End(start.Add(tooSoon))
		e.Reported(start.Add(tooSoon))
		wrong := e.Missing(taken("s1"), start.Add(tooSoon+late))
		if (wrong == "") != (what != "") {
			t.Errorf("told %q by another watch: %q", what, wrong)
		}
		if orderly, forced := e.Counts(); orderly+forced > 1 || (orderly+forced == 1) != (what != "") {
			t.Errorf("told %q by another watch: counted are %d in order and %d by force", what, orderly, forced)
		}
	}
}
