package garbagecollector

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// For any owners: an object with an existing owner is not deleted. After it has lost its other
// references, nothing is left to do.
func TestJudgeConverges(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 1))
		o, states := &object{uid: "o"}, map[types.UID]ownerState{}
		for i := range r.IntN(5) {
			uid := types.UID(fmt.Sprint("owner", i))
			o.owners = append(o.owners, metav1.OwnerReference{UID: uid})
			states[uid] = []ownerState{solid, waiting, absent, unseen}[r.IntN(4)]
		}
		v := judge(o, states, r.IntN(2) == 0)
		lives := len(o.owners) == 0 ||
			slices.ContainsFunc(o.owners,
				func(ref metav1.OwnerReference) bool { return states[ref.UID] == solid || states[ref.UID] == unseen })
		if v.keep != lives {
			t.Fatalf("seed %d: %+v of owners %v", seed, v, states)
		}
		if !v.keep {
			continue
		}
		for _, uid := range v.drop {
			if states[uid] == solid || states[uid] == unseen {
				t.Fatalf("seed %d: the reference to %s, which is there, is dropped", seed, uid)
			}
		}
		o.owners = slices.DeleteFunc(o.owners,
			func(ref metav1.OwnerReference) bool { return slices.Contains(v.drop, ref.UID) })
		if again := judge(o, states, true); !again.keep || len(again.drop) > 0 {
			t.Fatalf("seed %d: a second verdict is %+v", seed, again)
		}
	}
}
