package main

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/barque/barque/cluster-test/chaos/traces"
)

// podAt is one of a Deployment's, at a revision.
func podAt(name, uid, node string, revision int) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(uid), ResourceVersion: fmt.Sprint(revision),
			Labels: map[string]string{"app": web}},
		Spec: corev1.PodSpec{NodeName: node}}
}

// asked is one that was asked to end.
func asked(pod *corev1.Pod) *corev1.Pod {
	pod.DeletionTimestamp = new(metav1.Time)
	return pod
}

// TestPodHistory: the changes of pods that a watch may report one after the other, and those that
// it must not.
func TestPodHistory(t *testing.T) {
	type event struct {
		kind watch.EventType
		pod  *corev1.Pod
	}
	failed := podAt("w1", "a", "s1", 12)
	failed.Status.Phase = corev1.PodFailed
	for name, c := range map[string]struct {
		events []event
		wrong  string // of the last one; empty: nothing
	}{
		"life and death": {
			[]event{{watch.Modified, podAt("w1", "a", "s1", 11)}, {watch.Modified, asked(podAt("w1", "a", "s1", 12))},
				{watch.Added, podAt("w9", "i", "", 13)}, {watch.Modified, podAt("w9", "i", "s2", 14)},
				{watch.Bookmark, podAt("", "", "", 14)},
				{watch.Bookmark, podAt("", "", "", 20)}, {watch.Deleted, podAt("w1", "a", "s1", 21)},
				{watch.Deleted, podAt("w9", "i", "s2", 22)}, {watch.Added, podAt("w1", "j", "", 30)},
				{watch.Deleted, podAt("w1", "j", "", 31)}}, ""},
		"one that has failed is replaced": {
			[]event{{watch.Modified, failed}, {watch.Added, podAt("w9", "i", "s1", 13)}}, ""},
		"one too many": {[]event{{watch.Added, podAt("w9", "i", "s1", 11)}},
			"5 pods of web at revision 11, and 4 are declared"},
		"a name twice": {[]event{{watch.Added, podAt("w1", "i", "", 11)}},
			"two pods w1 at revision 11"},
		"a name goes to another": {[]event{{watch.Modified, podAt("w1", "i", "s1", 11)}},
			"two pods w1 at revision 11"},
		"a name twice, when one ends": {
			[]event{{watch.Modified, asked(podAt("w1", "a", "s1", 11))}, {watch.Added, podAt("w1", "i", "", 12)}},
			"two pods w1"},
		"from nowhere": {[]event{{watch.Modified, podAt("w9", "i", "s1", 11)}}, "was not there"},
		"deleted twice": {
			[]event{{watch.Deleted, podAt("w1", "a", "s1", 11)}, {watch.Deleted, podAt("w1", "a", "s1", 12)}},
			"was not there"},
		"it moves": {[]event{{watch.Modified, podAt("w1", "a", "s2", 11)}},
			`from node s1 to "s2"`},
		"it is unbound": {[]event{{watch.Modified, podAt("w1", "a", "", 11)}},
			`from node s1 to ""`},
		"it comes back": {
			[]event{{watch.Modified, asked(podAt("w1", "a", "s1", 11))}, {watch.Modified, podAt("w1", "a", "s1", 12)}},
			"is not any more"},
		"the revision stands still": {[]event{{watch.Modified, podAt("w1", "a", "s1", 10)}},
			`revision "10", after 10`},
		"the revision goes back": {
			[]event{{watch.Modified, podAt("w1", "a", "s1", 11)}, {watch.Modified, podAt("w2", "b", "s1", 9)}},
			`revision "9", after 11`},
		"progress goes back": {[]event{{watch.Bookmark, podAt("", "", "", 9)}},
			`revision "9", after 10`},
		"progress has overtaken an event": {
			[]event{{watch.Bookmark, podAt("", "", "", 15)}, {watch.Modified, podAt("w1", "a", "s1", 12)}},
			`revision "12", after 15`},
		"a revision that is not a revision": {
			[]event{
				{watch.Modified,
					func() *corev1.Pod { p := podAt("w1", "a", "s1", 0); p.ResourceVersion = ""; return p }()}},
			`revision ""`},
	} {
		h, list := new(podHistory), &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "10"}}
		for i, uid := range []string{"a", "b", "c", "d"} {
			list.Items = append(list.Items, *podAt(fmt.Sprintf("w%d", i+1), uid, "s1", i+1))
		}
		if _, wrong := h.begin(list); len(wrong) > 0 {
			t.Fatalf("%s: %q", name, wrong)
		}
		for i, e := range c.events {
			got, last := strings.Join(h.take(e.kind, e.pod), "; "), i == len(c.events)-1
			if !last && got != "" || last && (got == "") != (c.wrong == "") || last && !strings.Contains(got, c.wrong) {
				t.Errorf("%s: event %d is called wrong for %q; want %q", name, i, got, c.wrong)
			}
		}
	}
}

// TestPodHistoryBeginsAnew: of the changes between only the missing pods are known; a list that is
// older, or has too many, is wrong.
func TestPodHistoryBeginsAnew(t *testing.T) {
	list := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "10"}}
	for _, name := range []string{"stays", "goes", "is another"} {
		list.Items = append(list.Items, *podAt(name, name, "s1", 5))
	}
	h := new(podHistory)
	if missing, wrong := h.begin(list); len(wrong)+len(missing) > 0 {
		t.Errorf("%q, missing %v", wrong, missing)
	}
	list = &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "12"},
		Items: []corev1.Pod{list.Items[0], *podAt("is another", "of that name", "s2", 11)}}
	missing, wrong := h.begin(list)
	if len(wrong) > 0 || len(missing) != 2 || missing[0].UID == missing[1].UID || missing[0].Name == "stays" ||
		missing[1].Name == "stays" {
		t.Errorf("%q, missing %v", wrong, missing)
	}
	list.ResourceVersion = "9"
	for i := range replicas + 1 {
		list.Items = append(list.Items, *podAt(fmt.Sprintf("w%d", i), fmt.Sprint(i), "s1", 5))
	}
	_, wrong = h.begin(list)
	if text := strings.Join(wrong, "; "); !strings.Contains(text, "at revision 9, after 12") ||
		!strings.Contains(text, "7 pods of web") {
		t.Errorf("%q", wrong)
	}
	list.ResourceVersion = "x"
	if _, wrong := h.begin(list); len(wrong) != 1 {
		t.Errorf("%q", wrong)
	}
}

// TestHasAll: a history is asked whether it has all that a list has, as it is there, and nothing
// else.
func TestHasAll(t *testing.T) {
	list := func(pods ...*corev1.Pod) *corev1.PodList {
		l := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "10"}}
		for _, p := range pods {
			l.Items = append(l.Items, *p)
		}
		return l
	}
	h := &podHistory{server: "s2"}
	if err := h.hasAll(list(podAt("w1", "a", "s1", 3))); err == nil {
		t.Error("one that knows nothing has all")
	}
	h.begin(list(podAt("w1", "a", "s1", 3), podAt("w2", "b", "s1", 4)))
	for what, c := range map[string]struct {
		list *corev1.PodList
		want string
	}{
		"all": {list(podAt("w2", "b", "s1", 4), podAt("w1", "a", "s1", 3)), ""},
		"one has come": {list(podAt("w1", "a", "s1", 3), podAt("w2", "b", "s1", 4), podAt("w3", "c", "s1", 12)),
			"s2 has not told of pod w3 at revision 12"},
		"one has changed": {list(podAt("w1", "a", "s1", 3), podAt("w2", "b", "s1", 12)),
			"has not told of pod w2 at revision 12"},
		"one was made anew": {list(podAt("w1", "a", "s1", 3), podAt("w2", "c", "s1", 4)), "has not told of pod w2"},
		"one has gone":      {list(podAt("w2", "b", "s1", 4)), "has not told that pod w1 is gone"},
		"there are none":    {list(), "is gone"},
	} {
		err := h.hasAll(c.list)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", what, err, c.want)
		}
	}
	h.take(watch.Deleted, podAt("w1", "a", "s1", 12))
	if err := h.hasAll(list(podAt("w2", "b", "s1", 4))); err != nil {
		t.Errorf("after it was told: %v", err)
	}
}

// TestAsDeclared: just the pods of the API run, each where it should.
func TestAsDeclared(t *testing.T) {
	pod := func(uid, node string) traces.Pod { return traces.Pod{UID: uid, Node: node} }
	a, b := pod("a", "s1"), pod("b", "s2")
	for name, c := range map[string]struct {
		running []traces.Pod
		wrong   string
	}{
		"as declared":   {[]traces.Pod{b, a}, ""},
		"one is gone":   {[]traces.Pod{a}, "pod b does not run on s2"},
		"one is left":   {[]traces.Pod{a, b, pod("c", "s1")}, "pod c runs on s1, and should not"},
		"one is double": {[]traces.Pod{a, b, pod("a", "s2")}, "pod a runs on s2, and should not"},
		"nothing":       {nil, "pod a does not run on s1"},
	} {
		err := asDeclared(c.running, []traces.Pod{a, b})
		if (err == nil) != (c.wrong == "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
