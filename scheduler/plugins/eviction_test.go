package plugins

import (
	"errors"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/scheduler/framework"
)

// TestEvictionsHoldThePreemptor: a pod is not tried again while its victims are being deleted. The
// last victim goes last, and its end wakes the pod.
func TestEvictionsHoldThePreemptor(t *testing.T) {
	third := func(name string) *v1.Pod { return aPod(name, on("a"), asks("cpu", "1"), withPriority(1)) }
	preempting := func() (*world, *v1.Pod) {
		w := newWorld(t, []any{aNode("a"), third("x"), third("y"), third("z")}, FitName, PreemptionName)
		w.slow = true
		for _, name := range []string{"x", "y", "z"} {
			if err := w.informers.Core().V1().Pods().Informer().GetStore().Add(third(name)); err != nil {
				t.Fatal(err)
			}
		}
		p := aPod("p", asks("cpu", "4"), withPriority(10))
		_, state, fit := w.filter(p)
		if nominated, s := w.profile.PostFilter(t.Context(), state, p, fit); nominated == nil || nominated.NominatedNodeName != "a" {
			t.Fatalf("nominated %+v: %s", nominated, s.Message())
		}
		return w, p
	}
	waits := func(w *world, p *v1.Pod, want bool) {
		t.Helper()
		s := w.profile.PreEnqueue(t.Context(), p)
		if got := s.Message() == "waiting for the preemption for this pod to be finished"; got != want {
			t.Errorf("waits: %t (%s), want %t", got, s.Message(), want)
		}
	}

	w, p := preempting()
	if len(w.evicted) != 2 {
		t.Fatalf("evicts %v before the last", w.evicted)
	}
	waits(w, p, true)
	w.done[0](nil)
	waits(w, p, true)
	w.done[1](apierrors.NewNotFound(v1.Resource("pods"), "y"))
	if len(w.evicted) != 3 {
		t.Fatalf("evicts %v, and not the last", w.evicted)
	}
	waits(w, p, true)
	// The informer shows the last victim's end before its API call returns.
	last := third(w.evicted[2])
	last.DeletionTimestamp = &metav1.Time{}
	if err := w.informers.Core().V1().Pods().Informer().GetStore().Update(last); err != nil {
		t.Fatal(err)
	}
	waits(w, p, false)
	w.done[2](nil)
	waits(w, p, false)
	if len(w.woken) > 0 || !slices.Equal(w.ungated, []string{"p"}) {
		t.Errorf("woken %v, ungated %v: the victim's end must wake it", w.woken, w.ungated)
	}

	w, p = preempting()
	w.done[0](errors.New("no"))
	w.done[1](nil)
	waits(w, p, false)
	if len(w.evicted) != 2 || !slices.Equal(w.woken, []string{"p"}) {
		t.Errorf("after a failure: evicts %v, wakes %v; want 2 victims, and p", w.evicted, w.woken)
	}

	w, p = preempting()
	w.done[0](nil)
	w.done[1](nil)
	w.done[2](apierrors.NewNotFound(v1.Resource("pods"), "z"))
	waits(w, p, false)
	if !slices.Equal(w.woken, []string{"p"}) {
		t.Errorf("wakes %v although no event will come of a victim that was gone", w.woken)
	}
}

// TestPreemptionTakesNominationsAway: a pod of lower priority loses its nomination for the same
// node.
func TestPreemptionTakesNominationsAway(t *testing.T) {
	w := newWorld(t, []any{aNode("a"), aPod("x", on("a"), asks("cpu", "4"), withPriority(1))}, FitName, PreemptionName)
	for _, other := range []*v1.Pod{aPod("lesser", withPriority(5)), aPod("equal", withPriority(10))} {
		info, err := framework.NewPodInfo(other)
		if err != nil {
			t.Fatal(err)
		}
		w.nominees.Set(info, "a")
	}
	p := aPod("p", asks("cpu", "1"), withPriority(10))
	_, state, fit := w.filter(p)
	w.profile.PostFilter(t.Context(), state, p, fit)
	if !slices.Equal(w.denominated, []string{"lesser"}) {
		t.Errorf("takes the nomination from %v, want lesser alone", w.denominated)
	}
}
