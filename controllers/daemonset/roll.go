package daemonset

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// roll replaces pods of older templates. manage has found every node in order.
func (v *view) roll(p *plan) error {
	desired := int(p.status.DesiredNumberScheduled)
	surge, err := limitOf(v.set, surgeOf, desired)
	if err != nil {
		return err
	}
	unavailable, err := limitOf(v.set, unavailableOf, desired)
	if err != nil {
		return err
	}
	if surge > 0 {
		v.rollBySurge(p, surge, desired)
		return nil
	}
	v.rollByDeletion(p, max(1, unavailable))
	return nil
}

// places are the nodes that should have a pod or have one, sorted.
func (v *view) places() []string {
	all := map[string]bool{}
	for node := range v.here {
		all[node] = true
	}
	for _, node := range v.names {
		if v.fits[node].run {
			all[node] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// pair returns the pods of a node that stay, of the current template and of an older one; false
// when there are several of one kind.
func (v *view) pair(node string) (newest, old *corev1.Pod, ok bool) {
	for _, pod := range v.here[node] {
		if pod.DeletionTimestamp != nil {
			continue
		}
		which := &old
		if v.updated(pod) {
			which = &newest
		}
		if *which != nil {
			return nil, nil, false
		}
		*which = pod
	}
	return newest, old, true
}

// rollByDeletion deletes old pods, as many as may be unavailable; manage replaces them. Old pods
// that are unavailable already can always be deleted.
func (v *view) rollByDeletion(p *plan, most int) {
	unavailable := 0
	var candidates []*corev1.Pod
	for _, node := range v.places() {
		newest, old, ok := v.pair(node)
		switch {
		case !ok || (newest == nil) == (old == nil):
			unavailable++ // in the hands of manage
		case newest != nil:
			if !v.available(newest) {
				unavailable++
			}
		case !v.available(old):
			p.delete = append(p.delete, old)
			unavailable++
		default:
			candidates = append(candidates, old)
		}
	}
	p.delete = append(p.delete, candidates[:min(len(candidates), max(0, most-unavailable))]...)
}

// rollBySurge creates new pods beside the old ones, within the surge. The old pod is deleted when
// the new one is available. An unavailable old pod always gets a new one.
func (v *view) rollBySurge(p *plan, most, desired int) {
	surging, available := 0, 0
	var candidates []string
	var misplaced []*corev1.Pod
	for _, node := range v.places() {
		newest, old, ok := v.pair(node)
		if !ok {
			surging++
			continue
		}
		serving := old
		if serving == nil {
			serving = newest
		}
		if serving != nil && v.available(serving) {
			available++
		}
		switch {
		case old == nil:
		case newest != nil && !v.available(newest):
			surging++
		case newest != nil:
			p.delete = append(p.delete, old)
		case !v.fits[node].run && v.available(old):
			misplaced = append(misplaced, old)
		case !v.fits[node].run:
			p.delete = append(p.delete, old)
		case !v.available(old):
			p.create = append(p.create, node)
		default:
			candidates = append(candidates, node)
		}
	}
	// A pod on a node that should have none serves until others do.
	p.delete = append(p.delete, misplaced[:min(len(misplaced), max(0, available-desired))]...)
	p.create = append(p.create, candidates[:min(len(candidates), max(0, most-surging))]...)
}
