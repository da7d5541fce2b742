package garbagecollector

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ownerState is the known state of an owner.
type ownerState int

const (
	solid   ownerState = iota // it is there
	waiting                   // it is being deleted and waits for its dependents to go first
	absent                    // it is gone, or never was
	unseen                    // it exists, but no informer has shown it yet, so none would report its end
)

// deadlock returns the owners of o that wait for o while o waits for them, directly or over other
// objects. o is then on a circle of foreground deletions. dependents returns the dependents of an
// object.
func deadlock(o *object, dependents func(owner types.UID) []*object) (owners []types.UID) {
	awaited := map[types.UID]bool{}
	for todo := []types.UID{o.uid}; len(todo) > 0; {
		owner := todo[0]
		todo = todo[1:]
		for _, d := range dependents(owner) {
			if d.foreground() && d.blocks(owner) && !awaited[d.uid] {
				awaited[d.uid] = true
				todo = append(todo, d.uid)
			}
		}
	}
	for _, ref := range o.owners {
		if awaited[ref.UID] && isTrue(ref.BlockOwnerDeletion) {
			owners = append(owners, ref.UID)
		}
	}
	return owners
}

// verdict is the change that an object's owners require.
type verdict struct {
	keep bool
	// drop are the owner references to take off an object that is kept.
	drop []types.UID
	// policy of the deletion of an object that is not kept.
	policy metav1.DeletionPropagation
}

// judge decides by the states of all owners of an object. An object stays as long as one of its
// owners does.
func judge(o *object, states map[types.UID]ownerState, hasDependents bool) verdict {
	var solids int
	var others []types.UID
	anyWaiting := false
	for _, ref := range o.owners {
		switch states[ref.UID] {
		case solid, unseen:
			solids++
			continue
		case waiting:
			anyWaiting = true
		}
		others = append(others, ref.UID)
	}
	switch {
	case len(o.owners) == 0, len(others) == 0:
		return verdict{keep: true}
	case solids > 0:
		return verdict{keep: true, drop: others}
	// A propagation policy that a client has begun with is kept.
	case slices.Contains(o.finalizers, metav1.FinalizerOrphanDependents):
		return verdict{policy: metav1.DeletePropagationOrphan}
	case slices.Contains(o.finalizers, metav1.FinalizerDeleteDependents):
		return verdict{policy: metav1.DeletePropagationForeground}
	// An owner in foreground deletion also waits for the dependents of its dependents.
	case anyWaiting && hasDependents:
		return verdict{policy: metav1.DeletePropagationForeground}
	}
	return verdict{policy: metav1.DeletePropagationBackground}
}
