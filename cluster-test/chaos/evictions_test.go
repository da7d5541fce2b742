package main

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// taken is a pod that its kubelet has taken and whose container runs.
func taken(node string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u"}, Spec: corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{
		StartTime: new(metav1.Time), ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Running: new(corev1.ContainerStateRunning)}}}}}
}

// ended is one that was asked to end, and has.
func ended(node string) *corev1.Pod {
	pod := asked(taken(node))
	pod.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: new(corev1.ContainerStateTerminated)}
	return pod
}

// TestEvictions: the end of a pod whose node was in trouble is excused for a while, however it ended, and no other is.
func TestEvictions(t *testing.T) {
	start := time.Now()
	at := func(d time.Duration) time.Time { return start.Add(d) }
	type end func(e *evictions, node string, now time.Time) string
	evicted := func(e *evictions, node string, now time.Time) string { return e.there(asked(taken(node)), now) }
	forced := func(e *evictions, node string, now time.Time) string { return e.gone(taken(node), now) }
	inTheMiddle := func(e *evictions, node string, now time.Time) string { return e.gone(asked(taken(node)), now) }
	inOrder := func(e *evictions, node string, now time.Time) string { return e.gone(ended(node), now) }
	missing := func(e *evictions, node string, now time.Time) string { return e.missing(taken(node), now) }
	untaken := func(e *evictions, node string, now time.Time) string {
		pod := taken(node)
		pod.Status = corev1.PodStatus{}
		return e.gone(pod, now)
	}
	const none, soon = "nothing had happened to that node", "in trouble for"
	for _, c := range []struct {
		what string
		end  end
		node string
		when time.Duration
		want string // in what is wrong; empty: nothing is
	}{
		{"evicted while it lasts", evicted, "s1", 115 * time.Second, ""},
		{"evicted soon after", evicted, "s1", 120*time.Second + evictable - time.Second, ""},
		{"evicted long after", evicted, "s1", 120*time.Second + evictable, none},
		{"evicted before", evicted, "s1", 99 * time.Second, none},
		{"evicted from another node", evicted, "s2", 115 * time.Second, none},
		{"evicted from one that is still in trouble", evicted, "s3", time.Hour, ""},
		{"evicted too soon", evicted, "s1", 100*time.Second + tooSoon - time.Second, soon},
		{"evicted too soon after, and late enough after one before", evicted, "s4", 33 * time.Second, ""},
		{"removed by force while it lasts", forced, "s1", 115 * time.Second, ""},
		{"removed by force soon after", forced, "s1", 120*time.Second + evictable - time.Second, ""},
		{"removed by force long after", forced, "s1", 120*time.Second + evictable, none},
		{"removed by force before", forced, "s1", 99 * time.Second, none},
		{"removed by force from another node", forced, "s2", 115 * time.Second, none},
		{"removed by force too soon", forced, "s1", 105 * time.Second, soon},
		{"removed by force while it ended", inTheMiddle, "s1", 115 * time.Second, ""},
		{"removed by force while it ended, for nothing", inTheMiddle, "s2", 115 * time.Second, none},
		{"gone in order", inOrder, "s1", 115 * time.Second, ""},
		{"gone in order, for nothing", inOrder, "s2", 115 * time.Second, none},
		{"not in a list any more", missing, "s1", 115 * time.Second, ""},
		{"not in a list any more, for nothing", missing, "s2", 115 * time.Second, none},
		{"never taken, and replaced at once", untaken, "s1", 101 * time.Second, ""},
		{"never taken, and replaced for nothing", untaken, "s2", 101 * time.Second, none},
		{"never bound, while a node is in trouble", untaken, "", 101 * time.Second, ""},
	} {
		e := &evictions{troubles: []trouble{{"s1", at(100 * time.Second), at(120 * time.Second)}, {node: "s3", from: at(0)},
			{"s4", at(0), at(10 * time.Second)}, {"s4", at(30 * time.Second), at(40 * time.Second)}}}
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
		if orderly, forced := e.counts(); (orderly+forced == 1) != (c.want == "") || orderly+forced > 1 {
			t.Errorf("%s: counted are %d in order and %d by force", c.what, orderly, forced)
		}
	}
	if wrong := untaken(new(evictions), "", at(0)); !strings.Contains(wrong, "to any node") {
		t.Errorf("never bound, and deleted for nothing: %q", wrong)
	}
}

// TestEvictedThenForced: one that may rightly end in order may not rightly be removed while it does.
func TestEvictedThenForced(t *testing.T) {
	start := time.Now()
	e := new(evictions)
	e.begin(start, "s1", "s2")
	if wrong := e.there(asked(taken("s1")), start.Add(tooSoon)); wrong != "" {
		t.Error(wrong)
	}
	e.end(start.Add(tooSoon))
	late := start.Add(tooSoon + evictable)
	if wrong := e.gone(ended("s1"), late); wrong != "" {
		t.Errorf("it has ended in order: %s", wrong)
	}
	if wrong := e.gone(asked(taken("s1")), late); !strings.Contains(wrong, "removed by force") {
		t.Errorf("it was removed while it ran: %q", wrong)
	}
	e.stop()
	other := taken("s2")
	other.UID = types.UID("v")
	if wrong := e.gone(other, late); wrong != "" {
		t.Errorf("the run removes it: %s", wrong)
	}
	if orderly, forced := e.counts(); orderly != 1 || forced != 0 {
		t.Errorf("counted are %d in order and %d by force", orderly, forced)
	}
}
