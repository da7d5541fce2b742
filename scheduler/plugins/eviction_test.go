package plugins

import (
	"errors"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/scheduler/framework"
	"github.com/barque/barque/scheduler/plugins/names"
	"github.com/barque/barque/scheduler/plugins/plugintest"
)

// TestEvictionsHoldThePreemptor: a pod is not tried again while its victims are being deleted. The
// last victim goes last, and its end wakes the pod.
func TestEvictionsHoldThePreemptor(t *testing.T) {
	third := func(name string) *v1.Pod { return aPod(name, on("a"), asks("cpu", "1"), withPriority(1)) }
	preempting := func() (*plugintest.World, *v1.Pod) {
		w := newWorld(t, []any{aNode("a"), third("x"), third("y"), third("z")}, names.NodeResourcesFit,
			names.DefaultPreemption)
		w.Slow = true
		for _, name := range []string{"x", "y", "z"} {
			if err := w.Informers.Core().V1().Pods().Informer().GetStore().Add(third(name)); err != nil {
				t.Fatal(err)
			}
		}
		p := aPod("p", asks("cpu", "4"), withPriority(10))
		_, state, fit := w.Filter(p)
		if nominated, s := w.Profile.PostFilter(t.Context(), state, p, fit); nominated == nil ||
			nominated.NominatedNodeName != "a" {
			t.Fatalf("nominated %+v: %s", nominated, s.Message())
		}
		return w, p
	}
	waits := func(w *plugintest.World, p *v1.Pod, want bool) {
		t.Helper()
		s := w.Profile.PreEnqueue(t.Context(), p)
		if got := s.Message() == "waiting for the preemption for this pod to be finished"; got != want {
			t.Errorf("waits: %t (%s), want %t", got, s.Message(), want)
		}
	}

	w, p := preempting()
	if len(w.Evicted) != 2 {
		t.Fatalf("evicts %v before the last", w.Evicted)
	}
	waits(w, p, true)
	w.Done[0](nil)
	waits(w, p, true)
	w.Done[1](apierrors.NewNotFound(v1.Resource("pods"), "y"))
	if len(w.Evicted) != 3 {
		t.Fatalf("evicts %v, and not the last", w.Evicted)
	}
	waits(w, p, true)
	// The informer shows the last victim's end before its API call returns.
	last := third(w.Evicted[2])
	last.DeletionTimestamp = &metav1.Time{}
	if err := w.Informers.Core().V1().Pods().Informer().GetStore().Update(last); err != nil {
		t.Fatal(err)
	}
	waits(w, p, false)
	w.Done[2](nil)
	waits(w, p, false)
	if len(w.Woken) > 0 || !slices.Equal(w.Ungated, []string{"p"}) {
		t.Errorf("woken %v, ungated %v: the victim's end must wake it", w.Woken, w.Ungated)
	}

	w, p = preempting()
	w.Done[0](errors.New("no"))
	w.Done[1](nil)
	waits(w, p, false)
	if len(w.Evicted) != 2 || !slices.Equal(w.Woken, []string{"p"}) {
		t.Errorf("after a failure: evicts %v, wakes %v; want 2 victims, and p", w.Evicted, w.Woken)
	}

	w, p = preempting()
	w.Done[0](nil)
	w.Done[1](nil)
	w.Done[2](apierrors.NewNotFound(v1.Resource("pods"), "z"))
	waits(w, p, false)
	if !slices.Equal(w.Woken, []string{"p"}) {
		t.Errorf("wakes %v although no event will come of a victim that was gone", w.Woken)
	}
}

// TestPreemptionTakesNominationsAway: a pod of lower priority loses its nomination for the same
// node.
func TestPreemptionTakesNominationsAway(t *testing.T) {
	w := newWorld(t, []any{aNode("a"), aPod("x", on("a"), asks("cpu", "4"), withPriority(1))}, names.NodeResourcesFit,
		names.DefaultPreemption)
	for _, other := range []*v1.Pod{aPod("lesser", withPriority(5)), aPod("equal", withPriority(10))} {
		info, err := framework.NewPodInfo(other)
		if err != nil {
			t.Fatal(err)
		}
		w.Nominator.Set(info, "a")
	}
	p := aPod("p", asks("cpu", "1"), withPriority(10))
	_, state, fit := w.Filter(p)
	w.Profile.PostFilter(t.Context(), state, p, fit)
	if !slices.Equal(w.Denominated, []string{"lesser"}) {
		t.Errorf("takes the nomination from %v, want lesser alone", w.Denominated)
	}
}
