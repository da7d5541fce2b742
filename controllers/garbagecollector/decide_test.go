package garbagecollector

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestJudge(t *testing.T) {
	owned := func(finalizers []string, by ...types.UID) *object {
		o := &object{uid: "o", finalizers: finalizers}
		for _, uid := range by {
			o.owners = append(o.owners, metav1.OwnerReference{UID: uid})
		}
		return o
	}
	states := map[types.UID]ownerState{"solid": solid, "waiting": waiting, "absent": absent}
	for name, c := range map[string]struct {
		o          *object
		dependents bool
		keep       bool
		drop       []types.UID
		policy     metav1.DeletionPropagation
	}{
		"nobody's":                     {owned(nil), false, true, nil, ""},
		"its owner is there":           {owned(nil, "solid"), false, true, nil, ""},
		"one of two is there":          {owned(nil, "solid", "absent"), false, true, []types.UID{"absent"}, ""},
		"one stays, one is going":      {owned(nil, "waiting", "solid"), true, true, []types.UID{"waiting"}, ""},
		"its owner is gone":            {owned(nil, "absent"), true, false, nil, metav1.DeletePropagationBackground},
		"its owner waits":              {owned(nil, "waiting"), false, false, nil, metav1.DeletePropagationBackground},
		"its owner waits for a family": {owned(nil, "waiting"), true, false, nil, metav1.DeletePropagationForeground},
		"marked as orphaning": {owned([]string{metav1.FinalizerOrphanDependents}, "absent"), true, false, nil,
			metav1.DeletePropagationOrphan},
		"marked for foreground already": {owned([]string{metav1.FinalizerDeleteDependents}, "absent"), true, false, nil,
			metav1.DeletePropagationForeground},
	} {
		v := judge(c.o, states, c.dependents)
		if v.keep != c.keep || !slices.Equal(v.drop, c.drop) || v.policy != c.policy {
			t.Errorf("%s: %+v", name, v)
		}
	}
}

func TestDeadlock(t *testing.T) {
	g := newGraph()
	put := func(uid types.UID, waits bool, owners ...metav1.OwnerReference) {
		o := &object{uid: uid, owners: owners, deleting: waits}
		if waits {
			o.finalizers = []string{metav1.FinalizerDeleteDependents}
		}
		g.put(o)
	}
	by := func(owner types.UID, blocks bool) metav1.OwnerReference {
		return metav1.OwnerReference{UID: owner, BlockOwnerDeletion: &blocks}
	}
	put("self", true, by("self", true))
	put("self, not blocking", true, by("self, not blocking", false))
	put("self, not deleted", false, by("self, not deleted", true))
	put("a", true, by("c", true), by("above", true), by("a", false))
	put("b", true, by("a", true))
	put("c", true, by("b", true))
	put("above", true)
	put("below", true, by("c", true))
	put("x", true, by("y", true))
	put("y", true, by("x", false))
	put("m", true, by("n", true))
	put("n", false, by("m", true))
	for uid, want := range map[types.UID][]types.UID{
		"self": {"self"}, "self, not blocking": nil, "self, not deleted": nil,
		"a": {"c"}, "b": {"a"}, "c": {"b"}, "above": nil, "below": nil,
		"x": nil, "y": nil, // one of two does not block
		"m": nil, // the other one does not wait
	} {
		if got := deadlock(g.get(uid), g.dependentsOf); !slices.Equal(got, want) {
			t.Errorf("%s is to let go of %v, want %v", uid, got, want)
		}
	}
}

func TestGraphWakesThoseConcerned(t *testing.T) {
	g := newGraph()
	owner := &object{uid: "owner", name: "owner"}
	block := true
	dependent := &object{uid: "dependent", owners: []metav1.OwnerReference{{UID: "owner", BlockOwnerDeletion: &block}}}
	if look := g.put(owner); len(look) != 0 {
		t.Errorf("an object without owners wakes %v", look)
	}
	if look := g.put(dependent); !slices.Equal(look, []types.UID{"dependent"}) {
		t.Errorf("a new dependent wakes %v", look)
	}
	if look := g.put(dependent); len(look) != 0 {
		t.Errorf("no change wakes %v", look)
	}
	going := &object{uid: "owner", deleting: true, finalizers: []string{metav1.FinalizerDeleteDependents}}
	if look := g.put(going); !slices.Equal(look, []types.UID{"owner", "dependent"}) {
		t.Errorf("a foreground deletion wakes %v", look)
	}
	if look := g.remove("dependent"); !slices.Equal(look, []types.UID{"owner"}) {
		t.Errorf("the end of a dependent wakes %v", look)
	}
	if n := len(g.dependents); n != 0 {
		t.Errorf("%d owners are remembered for nothing", n)
	}
	g.put(dependent)
	if look := g.remove("owner"); !slices.Equal(look, []types.UID{"dependent"}) {
		t.Errorf("the end of an owner wakes %v", look)
	}
}
