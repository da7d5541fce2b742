package deployment

import (
	"cmp"
	"maps"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
)

// observed is the input of decide about one Deployment.
type observed struct {
	deployment *appsv1.Deployment
	sets       []*appsv1.ReplicaSet // all that it controls
	// unfinished is how many pods each ReplicaSet still has on the nodes, by UID; only Recreate
	// asks for it.
	unfinished map[*appsv1.ReplicaSet]int
}

// plan has the changes for one Deployment. Its ReplicaSets are copies, ready to be written.
type plan struct {
	create *appsv1.ReplicaSet
	update []change
	remove []*appsv1.ReplicaSet // old ones beyond the history limit
	// revision that the Deployment's annotation should show, 0 to leave it.
	revision int64
	status   appsv1.DeploymentStatus
	again    time.Duration
}

// change is the write of one existing ReplicaSet.
type change struct {
	set  *appsv1.ReplicaSet
	from int32 // its size before
}

// decide takes one step towards the Deployment's spec. It is called again whenever its input has
// changed.
func decide(o observed, now time.Time) plan {
	d := o.deployment
	newest, old := findNewest(d, o.sets)
	p := plan{status: statusOf(d, newest, old, now)}
	if d.DeletionTimestamp != nil {
		return p
	}
	l := limitsOf(d)
	pausedCondition(d, &p.status, now)

	var want sizes
	newSize, create := int32(0), false
	switch rolling := d.Spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType; {
	case d.Spec.Paused || resized(l, o.sets):
		want = rescale(l, d.Status.Replicas, newest, old, rolling)
	case rolling:
		want, newSize = roll(l, newest, old)
		create = newest == nil
	default:
		var clear bool
		want, clear = emptied(old, o.unfinished)
		newSize = replicasOf(newest)
		if clear {
			newSize, create = l.desired, newest == nil
		}
	}
	revision := newestRevision(old) + 1
	if create {
		p.create = makeSet(d, newSize, l.most(), revision)
	}
	if newest != nil {
		if _, set := want[newest]; !set {
			want[newest] = newSize
		}
	}
	p.update = changes(d, l, want, newest, revision)
	p.revision = shownRevision(d, newest, p, revision)

	name := ""
	switch {
	case newest != nil:
		name = newest.Name
	case p.create != nil:
		name = p.create.Name
	}
	if !d.Spec.Paused {
		progress(d, &p.status, name, p.create != nil, now)
	}
	if d.Spec.Paused || complete(d, &p.status) {
		p.remove = beyondHistory(d, old)
	}
	p.again = nextLook(d, &p.status, now)
	return p
}

// resized reports whether the Deployment's size has changed since its ReplicaSets were last scaled.
func resized(l limits, sets []*appsv1.ReplicaSet) bool {
	for _, set := range sets {
		if was, ok := sizeIn(set.Annotations, desiredReplicas); ok && replicasOf(set) > 0 && was != l.desired {
			return true
		}
	}
	return false
}

// emptied scales all old ReplicaSets to zero; clear means that none of their pods is left.
func emptied(old []*appsv1.ReplicaSet, unfinished map[*appsv1.ReplicaSet]int) (want sizes, clear bool) {
	want, clear = currentSizes(old), true
	for _, set := range old {
		if want[set] > 0 || set.Status.Replicas > 0 || unfinished[set] > 0 {
			clear = false
		}
		want[set] = 0
	}
	return want, clear
}

// changes returns the writes that bring the ReplicaSets to the wanted sizes and bookkeeping.
func changes(d *appsv1.Deployment, l limits, want sizes, newest *appsv1.ReplicaSet, revision int64) []change {
	var out []change
	for set, size := range want {
		annotations := set.Annotations
		minReady := set.Spec.MinReadySeconds
		if set == newest && !d.Spec.Paused {
			annotations = inherit(annotations, d.Annotations, revision)
			minReady = d.Spec.MinReadySeconds
		}
		if size > 0 || replicasOf(set) > 0 {
			annotations = withSizes(annotations, l.desired, l.most())
		}
		if size == replicasOf(set) && minReady == set.Spec.MinReadySeconds && maps.Equal(annotations, set.Annotations) {
			continue
		}
		c := change{set: set.DeepCopy(), from: replicasOf(set)}
		c.set.Annotations, c.set.Spec.Replicas, c.set.Spec.MinReadySeconds = annotations, &size, minReady
		out = append(out, c)
	}
	// Growing comes first, because users wait for it. Then by name, for a stable order.
	slices.SortFunc(out, func(a, b change) int {
		if c := cmp.Compare(a.by(), b.by()); c != 0 {
			return -c
		}
		return cmp.Compare(a.set.Name, b.set.Name)
	})
	return out
}

// by is the number of pods that a change adds.
func (c change) by() int32 { return replicasOf(c.set) - c.from }

func newestRevision(sets []*appsv1.ReplicaSet) int64 {
	var most int64
	for _, set := range sets {
		most = max(most, revisionOf(set.Annotations))
	}
	return most
}

// shownRevision is the revision of the newest ReplicaSet when the Deployment does not show it yet.
func shownRevision(d *appsv1.Deployment, newest *appsv1.ReplicaSet, p plan, revision int64) int64 {
	switch {
	case p.create != nil:
	case newest == nil || d.Spec.Paused:
		return 0
	default:
		revision = max(revision, revisionOf(newest.Annotations))
	}
	if revisionOf(d.Annotations) == revision {
		return 0
	}
	return revision
}

// beyondHistory returns the old ReplicaSets that no rollback needs any more, by the history limit.
func beyondHistory(d *appsv1.Deployment, old []*appsv1.ReplicaSet) []*appsv1.ReplicaSet {
	if d.Spec.RevisionHistoryLimit == nil {
		return nil
	}
	var alive []*appsv1.ReplicaSet
	for _, set := range old {
		if set.DeletionTimestamp == nil {
			alive = append(alive, set)
		}
	}
	slices.SortFunc(alive, func(a, b *appsv1.ReplicaSet) int {
		if c := cmp.Compare(revisionOf(a.Annotations), revisionOf(b.Annotations)); c != 0 {
			return c
		}
		return compareAge(a, b)
	})
	excess := alive[:max(0, len(alive)-int(*d.Spec.RevisionHistoryLimit))]
	return slices.DeleteFunc(slices.Clone(excess), func(set *appsv1.ReplicaSet) bool {
		return replicasOf(set) != 0 || set.Status.Replicas != 0 || set.Generation > set.Status.ObservedGeneration
	})
}
