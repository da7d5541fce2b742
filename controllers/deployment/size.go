package deployment

import (
	"cmp"
	"math"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// limits are the bounds of a rollout in pods.
type limits struct {
	desired     int32
	surge       int32 // pods above desired
	unavailable int32 // pods below desired that may be missing
}

func limitsOf(d *appsv1.Deployment) limits {
	l := limits{desired: 1}
	if d.Spec.Replicas != nil {
		l.desired = *d.Spec.Replicas
	}
	if d.Spec.Strategy.Type != appsv1.RollingUpdateDeploymentStrategyType || d.Spec.Strategy.RollingUpdate == nil {
		return l
	}
	r := d.Spec.Strategy.RollingUpdate
	l.surge = share(r.MaxSurge, l.desired, true)
	l.unavailable = share(r.MaxUnavailable, l.desired, false)
	if l.surge == 0 && l.unavailable == 0 {
		// Two percentages that both round to nothing must not stop every rollout.
		l.unavailable = 1
	}
	l.unavailable = min(l.unavailable, l.desired)
	return l
}

func share(v *intstr.IntOrString, of int32, up bool) int32 {
	n, err := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(v, intstr.FromInt32(0)), int(of), up)
	if err != nil {
		return 0 // validation refuses an invalid value
	}
	return int32(max(0, n))
}

func (l limits) most() int32  { return l.desired + l.surge }
func (l limits) least() int32 { return l.desired - l.unavailable }

// sizes holds the wanted replicas of each ReplicaSet while a plan is made.
type sizes map[*appsv1.ReplicaSet]int32

func currentSizes(sets []*appsv1.ReplicaSet) sizes {
	s := sizes{}
	for _, set := range sets {
		s[set] = replicasOf(set)
	}
	return s
}

func (s sizes) total() int32 {
	var n int32
	for _, v := range s {
		n += v
	}
	return n
}

func replicasOf(set *appsv1.ReplicaSet) int32 {
	if set == nil {
		return 0
	}
	if set.Spec.Replicas == nil {
		return 1
	}
	return *set.Spec.Replicas
}

// availableOf does not count pods above the ReplicaSet's new size: its status may be older than its
// scaling.
func availableOf(set *appsv1.ReplicaSet, size int32) int32 {
	if set == nil {
		return 0
	}
	return min(set.Status.AvailableReplicas, size)
}

// roll takes one step of a rolling update. newest is nil while it has not been created; then
// newSize is the size to create it with.
//
// Two rules hold after every step: no more than desired+surge pods in all, and none taken away
// that is needed to have desired-unavailable pods available.
func roll(l limits, newest *appsv1.ReplicaSet, old []*appsv1.ReplicaSet) (s sizes, newSize int32) {
	s = currentSizes(old)
	newSize = grow(l, replicasOf(newest), s.total())

	available := availableOf(newest, newSize)
	for _, set := range old {
		available += availableOf(set, s[set])
	}
	// Unavailable pods serve no traffic. They go first, as far as the new pods that are still
	// starting leave room.
	room := s.total() + newSize - l.least() - (newSize - availableOf(newest, newSize))
	ordered := oldestFirst(old)
	for _, set := range ordered {
		sick := s[set] - availableOf(set, s[set])
		n := max(0, min(sick, room))
		s[set] -= n
		room -= n
	}
	spare := min(available-l.least(), room)
	for _, set := range ordered {
		n := max(0, min(s[set], spare))
		s[set] -= n
		spare -= n
	}
	return s, newSize
}

// grow returns the size of the newest ReplicaSet beside others that have old pods in all.
func grow(l limits, size, old int32) int32 {
	if size >= l.desired {
		return l.desired
	}
	return size + max(0, min(l.most()-size-old, l.desired-size))
}

// rescale spreads a change of the Deployment's size over its ReplicaSets during a rollout, in
// proportion to their sizes. So the ratio of old and new stays. It returns nil for newest when it
// does not exist.
func rescale(l limits, deployed int32, newest *appsv1.ReplicaSet, old []*appsv1.ReplicaSet, rolling bool) sizes {
	all := slices.Clone(old)
	if newest != nil {
		all = append(all, newest)
	}
	s := currentSizes(all)
	if only := activeOrLatest(newest, old); only != nil {
		s[only] = l.desired
		return s
	}
	if saturated(newest, l.desired) {
		for _, set := range old {
			s[set] = 0
		}
		return s
	}
	if !rolling {
		return s
	}
	var allowed int32
	if l.desired > 0 {
		allowed = l.most()
	}
	add := allowed - s.total()
	if add == 0 {
		return s
	}
	var active []*appsv1.ReplicaSet
	for _, set := range all {
		if s[set] > 0 {
			active = append(active, set)
		}
	}
	// The largest gets the rest that rounding leaves; among equals the newest gains first and the
	// oldest loses first.
	slices.SortFunc(active, func(a, b *appsv1.ReplicaSet) int {
		if c := cmp.Compare(s[b], s[a]); c != 0 {
			return c
		}
		if add > 0 {
			return compareAge(b, a)
		}
		return compareAge(a, b)
	})
	var added int32
	for _, set := range active {
		part := proportion(set, l, deployed)
		if add > 0 {
			part = max(0, min(part, add-added))
		} else {
			part = min(0, max(part, add-added))
		}
		part = max(part, -s[set])
		s[set] += part
		added += part
	}
	for _, set := range active {
		rest := max(add-added, -s[set])
		s[set] += rest
		added += rest
	}
	return s
}

// proportion is by how much one ReplicaSet changes when all change by the same factor.
func proportion(set *appsv1.ReplicaSet, l limits, deployed int32) int32 {
	size := replicasOf(set)
	if l.desired == 0 {
		return -size
	}
	before, ok := sizeIn(set.Annotations, maxReplicas)
	if !ok || before == 0 {
		before = deployed // unknown: the size that the Deployment had
	}
	if before == 0 {
		return 0
	}
	scaled := math.Round(float64(size) * float64(l.most()) / float64(before))
	return int32(scaled) - size
}

// activeOrLatest returns the one ReplicaSet that takes all of a change, nil when several have pods.
func activeOrLatest(newest *appsv1.ReplicaSet, old []*appsv1.ReplicaSet) *appsv1.ReplicaSet {
	var active []*appsv1.ReplicaSet
	for _, set := range old {
		if replicasOf(set) > 0 {
			active = append(active, set)
		}
	}
	if replicasOf(newest) > 0 {
		active = append(active, newest)
	}
	switch {
	case len(active) == 1:
		return active[0]
	case len(active) > 1:
		return nil
	case newest != nil:
		return newest
	case len(old) > 0:
		return slices.MaxFunc(old, compareAge)
	}
	return nil
}

// saturated reports whether the newest ReplicaSet alone carries the Deployment.
func saturated(newest *appsv1.ReplicaSet, desired int32) bool {
	if newest == nil {
		return false
	}
	was, ok := sizeIn(newest.Annotations, desiredReplicas)
	return ok && was == desired && replicasOf(newest) == desired && newest.Status.AvailableReplicas == desired
}

func oldestFirst(sets []*appsv1.ReplicaSet) []*appsv1.ReplicaSet {
	return slices.SortedFunc(slices.Values(sets), compareAge)
}

func compareAge(a, b *appsv1.ReplicaSet) int {
	if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
		return c
	}
	return cmp.Compare(a.Name, b.Name)
}
