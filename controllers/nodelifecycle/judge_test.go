package nodelifecycle

import (
	"math/rand/v2"
	"testing"
	"testing/quick"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func TestJudge(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	s := Settings{}.withDefaults()
	for name, c := range map[string]struct {
		e    evidence
		want judgement
	}{
		"alive": {
			evidence{heardOf: true, life: Life{State: Alive}},
			judgement{again: 5 * time.Second}},
		"doubted: ask it": {
			evidence{heardOf: true, life: Life{State: Suspect}, silentSince: ago(0)},
			judgement{probe: true}},
		"doubted, and it answers": {
			evidence{heardOf: true, life: Life{State: Dead}, silentSince: ago(time.Hour), probed: true, answered: true},
			judgement{again: 5 * time.Second}},
		"it does not answer: no new pods at once": {
			evidence{heardOf: true, life: Life{State: Suspect}, silentSince: ago(0), probed: true},
			judgement{unreachable: true, again: 5 * time.Second}},
		"looked at again when the grace is over": {
			evidence{heardOf: true, life: Life{State: Dead}, silentSince: ago(38 * time.Second), probed: true},
			judgement{unreachable: true, again: 2 * time.Second}},
		"unknown after the grace": {
			evidence{heardOf: true, life: Life{State: Suspect}, silentSince: ago(40 * time.Second), probed: true},
			judgement{unreachable: true, unknown: true, again: 5 * time.Second}},
		"gone on purpose is gone": {
			evidence{heardOf: true, life: Life{State: Left}, silentSince: ago(time.Second), probed: true},
			judgement{unreachable: true, again: 5 * time.Second}},
		"gone on purpose has its own grace": {
			evidence{heardOf: true, life: Life{State: Left}, silentSince: ago(39 * time.Second), probed: true},
			judgement{unreachable: true, again: time.Second}},
		"ill, and its kubelet may yet say so": {
			evidence{heardOf: true, life: Life{State: Alive}, illSince: ago(14 * time.Second)},
			judgement{again: time.Second}},
		"ill, and its kubelet does not say so": {
			evidence{heardOf: true, life: Life{State: Alive}, illSince: ago(15 * time.Second)},
			judgement{ill: true, again: 5 * time.Second}},
		"its kubelet writes: it lives": {
			evidence{heardOf: true, life: Life{State: Dead}, silentSince: ago(time.Hour), told: ago(10 * time.Second),
				probed: true},
			judgement{unreachable: true, again: 5 * time.Second}},
		"its kubelet wrote, but long ago": {
			evidence{heardOf: true, life: Life{State: Dead}, silentSince: ago(time.Hour), told: ago(40 * time.Second),
				probed: true},
			judgement{unreachable: true, unknown: true, again: 5 * time.Second}},
		"what its kubelet wrote before does not count": {
			evidence{heardOf: true, life: Life{State: Dead}, silentSince: ago(40 * time.Second),
				told: ago(41 * time.Second), probed: true},
			judgement{unreachable: true, unknown: true, again: 5 * time.Second}},
		"marked already": {
			evidence{heardOf: true, life: Life{State: Dead}, silentSince: ago(time.Hour), marked: true},
			judgement{unreachable: true, again: 5 * time.Second}},
		"marked, and heard of again: its kubelet will say so": {
			evidence{heardOf: true, life: Life{State: Alive}, marked: true, tainted: true},
			judgement{again: 5 * time.Second}},
		"new, and not missed yet": {
			evidence{silentSince: ago(58 * time.Second)},
			judgement{again: 2 * time.Second}},
		"new, and missed": {
			evidence{silentSince: ago(time.Minute), probed: true},
			judgement{unreachable: true, unknown: true, again: 5 * time.Second}},
		"heard of again: ask it": {
			evidence{heardOf: true, life: Life{State: Alive}, silentSince: ago(10 * time.Second), tainted: true},
			judgement{probe: true}},
		"heard of again, but its kubelet does not answer yet": {
			evidence{heardOf: true, life: Life{State: Alive}, silentSince: ago(time.Hour), tainted: true, probed: true},
			judgement{unreachable: true, again: recheck}},
		"heard of again, and its kubelet answers": {
			evidence{heardOf: true, life: Life{State: Alive}, silentSince: ago(10 * time.Second), tainted: true,
				probed: true, answered: true},
			judgement{again: 5 * time.Second}},
		"heard of again, and its kubelet writes": {
			evidence{heardOf: true, life: Life{State: Alive}, silentSince: ago(10 * time.Second),
				told: ago(time.Second), tainted: true},
			judgement{again: 5 * time.Second}},
	} {
		if got := judge(c.e, s, now); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// A grace that is shorter than the ten seconds after which a kubelet repeats its word.
func TestJudgeWithAShortGrace(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	s := Settings{Period: time.Second, Grace: 3 * time.Second}.withDefaults()
	for name, c := range map[string]struct {
		e    evidence
		want judgement
	}{
		"within its grace": {
			evidence{heardOf: true, life: Life{State: Suspect}, silentSince: ago(2500 * time.Millisecond),
				probed: true},
			judgement{unreachable: true, again: 500 * time.Millisecond}},
		"unknown after it": {
			evidence{heardOf: true, life: Life{State: Suspect}, silentSince: ago(3 * time.Second), probed: true},
			judgement{unreachable: true, unknown: true, again: time.Second}},
		"its kubelet has written and is not due yet": {
			evidence{heardOf: true, life: Life{State: Suspect}, silentSince: ago(time.Minute),
				told: ago(14 * time.Second), probed: true},
			judgement{unreachable: true, again: time.Second}},
		"its kubelet is overdue": {
			evidence{heardOf: true, life: Life{State: Suspect}, silentSince: ago(time.Minute),
				told: ago(15 * time.Second), probed: true},
			judgement{unreachable: true, unknown: true, again: time.Second}},
		"it said good-bye and starts again": {
			evidence{heardOf: true, life: Life{State: Left}, silentSince: ago(30 * time.Second), probed: true},
			judgement{unreachable: true, again: time.Second}},
		"new": {
			evidence{silentSince: ago(30 * time.Second)},
			judgement{again: time.Second}},
		"silent again, and heard of since it was before": {
			evidence{heardOf: true, life: Life{State: Suspect}, silentSince: ago(time.Minute),
				heard: ago(2500 * time.Millisecond), tainted: true, probed: true},
			judgement{unreachable: true, again: 500 * time.Millisecond}},
		"silent again, for its grace": {
			evidence{heardOf: true, life: Life{State: Suspect}, silentSince: ago(time.Minute),
				heard: ago(3 * time.Second), tainted: true, probed: true},
			judgement{unreachable: true, unknown: true, again: time.Second}},
		"it has answered since it was heard of": {
			evidence{heardOf: true, life: Life{State: Dead}, silentSince: ago(2 * time.Second), heard: ago(time.Minute),
				probed: true},
			judgement{unreachable: true, again: time.Second}},
	} {
		if got := judge(c.e, s, now); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestJudgeHolds(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s := Settings{}.withDefaults()
	draw := func(rnd *rand.Rand) evidence {
		flip := func() bool { return rnd.IntN(2) == 0 }
		e := evidence{
			life: Life{State: State(1 + rnd.IntN(4))}, heardOf: flip(), answered: flip(), marked: flip(),
			tainted: flip(), probed: flip(),
			silentSince: now.Add(-time.Duration(rnd.IntN(120)) * time.Second),
		}
		if e.answered = e.answered && e.probed; flip() {
			e.told = now.Add(-time.Duration(rnd.IntN(120)) * time.Second)
		}
		if flip() {
			e.illSince = now.Add(-time.Duration(rnd.IntN(30)) * time.Second)
		}
		return e
	}
	holds := func(seed uint64) bool {
		e := draw(rand.New(rand.NewPCG(seed, 1)))
		j := judge(e, s, now)
		alive := e.heardOf && e.life.State == Alive
		quiet := func(d time.Duration) bool { return now.Sub(e.silentSince) >= d && now.Sub(e.told) >= d }
		for what, ok := range map[string]bool{
			"it asks once":                           !j.probe || !e.probed,
			"asking comes before anything else":      !j.probe || j == judgement{probe: true},
			"it looks again, in time":                j.probe || j.again > 0 && j.again <= s.Period,
			"one that answers gets no taint":         !e.answered || e.marked || !j.unreachable,
			"only one that was asked gets a taint":   !j.unreachable || e.probed || e.marked,
			"one that is well gets no taint":         !alive || e.tainted || !j.unreachable,
			"unknown is unreachable, too":            !j.unknown || j.unreachable,
			"unknown is nobody who lives or answers": !j.unknown || !alive && e.probed && !e.answered,
			"unknown is nobody of whom was heard":    !j.unknown || quiet(s.Grace),
			"unknown comes in time": !(e.heardOf && !alive && !e.marked && e.probed && !e.answered &&
				quiet(s.Grace)) || j.unknown,
			"unknown is not said twice":         !j.unknown || !e.marked,
			"one never heard of gets more time": !j.unknown || e.heardOf || quiet(s.StartupGrace),
			"ill is only one that lives":        !j.ill || alive && !j.unknown && !j.unreachable,
			"ill is said in time": !(alive && !e.tainted && !e.illSince.IsZero() &&
				now.Sub(e.illSince) >= illPatience) || j.ill,
			"a taint does not outlast a sign of life": !(alive && e.told.After(e.silentSince)) || !j.unreachable,
		} {
			if !ok {
				t.Errorf("not so: %s: %+v of %+v", what, j, e)
			}
		}
		return !t.Failed()
	}
	if err := quick.Check(holds, &quick.Config{MaxCount: 20000}); err != nil {
		t.Error(err)
	}
}

func TestMemory(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	node := func(stamp time.Time, taints ...corev1.Taint) *corev1.Node {
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "n", CreationTimestamp: metav1.NewTime(at(-3600))},
			Spec:       corev1.NodeSpec{Taints: taints},
			Status: corev1.NodeStatus{
				Conditions: []corev1.NodeCondition{
					{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.NewTime(stamp)}}},
		}
	}
	taint := corev1.Taint{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoSchedule}
	alive, suspect := func(s int) Life { return Life{State: Alive, Since: at(s)} },
		func(s int) Life { return Life{State: Suspect, Since: at(s)} }

	fresh := func() *memory { return newMemory(newWords(), at(0), at(0)) }
	m := fresh()
	if e := m.evidence(node(at(-60)), suspect(-1), true, at(1)); !e.silentSince.Equal(at(-1)) ||
		!e.told.Equal(at(-60)) {
		t.Errorf("first: silent since %v, told %v", e.silentSince, e.told)
	}
	if e := m.evidence(node(at(-60)), Life{State: Dead, Since: at(5)}, true, at(6)); !e.silentSince.Equal(at(-1)) {
		t.Errorf("a new kind of silence is a new silence: %v", e.silentSince)
	}
	// The clock of the node is an hour behind: its stamp counts from when its change was seen.
	if e := m.evidence(node(at(-3600)), suspect(5), true, at(10)); !e.told.Equal(at(10)) {
		t.Errorf("told %v, want the time by this clock", e.told)
	}
	if e := m.evidence(node(at(-3600), taint), alive(11), true, at(12)); !e.silentSince.Equal(at(-1)) || !e.tainted ||
		!e.heard.Equal(at(12)) {
		t.Errorf("forgotten before the taint is off: %+v", e)
	}
	for _, look := range []int{13, 14} { // it is silent again, since before the last look
		if e := m.evidence(node(at(-3600), taint), suspect(11), true, at(look)); !e.silentSince.Equal(at(-1)) ||
			!e.heard.Equal(at(11)) {
			t.Errorf("silent again: %+v", e)
		}
	}
	if e := m.evidence(node(at(-3600)), alive(11), true, at(13)); !e.silentSince.IsZero() {
		t.Errorf("alive, and silent since %v", e.silentSince)
	}
	m.answered("n", at(20))
	if e := m.evidence(node(at(-3600)), suspect(14), true, at(21)); !e.silentSince.Equal(at(20)) {
		t.Errorf("silent since %v, though it answered", e.silentSince)
	}
	// A clock that is ahead does not make a node live in the future.
	if e := fresh().evidence(node(at(3600)), suspect(0), true, at(1)); e.told.After(at(1)) {
		t.Errorf("told %v", e.told)
	}
	// A write before the term counts by this clock: the next leader in the same process.
	next := newMemory(m.words, at(0), at(30))
	if e := next.evidence(node(at(-3600)), suspect(5), true, at(31)); !e.told.Equal(at(10)) ||
		!e.silentSince.Equal(at(5)) {
		t.Errorf("in the next term: told %v, silent since %v", e.told, e.silentSince)
	}
	// A node that was never heard is silent since the start of this process, in any term.
	if e := next.evidence(node(at(-3600)), Life{}, false, at(31)); e.heardOf {
		t.Errorf("%+v", e)
	}
	if e := newMemory(m.words, at(0), at(30)).evidence(node(at(-3600)), Life{}, false,
		at(31)); !e.silentSince.Equal(at(0)) {
		t.Errorf("never heard of, and silent since %v", e.silentSince)
	}
	// A new leader finds the taint of its predecessor on a node that is alive: an old stamp is no
	// sign.
	if e := fresh().evidence(node(at(-1), taint), alive(0), true, at(1)); e.told.After(e.silentSince) {
		t.Errorf("told %v, silent since %v", e.told, e.silentSince)
	}
}

func TestReplaceable(t *testing.T) {
	tolerate := func(effect corev1.TaintEffect, seconds *int64) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{
				Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: effect,
				TolerationSeconds: seconds,
			})
		}
	}
	for name, c := range map[string]struct {
		edit func(*corev1.Pod)
		want bool
	}{
		"never acknowledged":         {func(*corev1.Pod) {}, true},
		"acknowledged":               {func(p *corev1.Pod) { p.Status.StartTime = ptr.To(metav1.Now()) }, false},
		"running":                    {func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }, false},
		"finished":                   {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, false},
		"not bound":                  {func(p *corev1.Pod) { p.Spec.NodeName = "" }, false},
		"going already":              {func(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.Now()) }, false},
		"nobody would replace it":    {func(p *corev1.Pod) { p.OwnerReferences = nil }, false},
		"owned, but not controlled":  {func(p *corev1.Pod) { p.OwnerReferences[0].Controller = nil }, false},
		"tolerates it for a while":   {tolerate(corev1.TaintEffectNoExecute, ptr.To[int64](300)), true},
		"tolerates it without limit": {tolerate(corev1.TaintEffectNoExecute, nil), false},
		"may be placed on such":      {tolerate(corev1.TaintEffectNoSchedule, nil), false},
	} {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "r", Controller: ptr.To(true)}}},
			Spec: corev1.PodSpec{NodeName: "n"}, Status: corev1.PodStatus{Phase: corev1.PodPending},
		}
		if c.edit(pod); replaceable(pod) != c.want {
			t.Errorf("%s: %v", name, !c.want)
		}
	}
}
