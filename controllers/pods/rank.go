package pods

import (
	"cmp"
	"math/bits"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// DeletionCost is the annotation with which users rank pods for scaling down; lower goes first.
const DeletionCost = corev1.PodDeletionCost

// ByDeletion sorts pods in place by the cost of their loss, the least first. The order is: not on a
// node yet, not running, not ready, a low deletion cost by annotation, and a node with many of
// related. Then come pods that are ready or created most recently (on a logarithmic scale, so that
// only very different ages count), and many restarts. related are the pods with the same purpose,
// including victims.
func ByDeletion(victims, related []*corev1.Pod, now time.Time) {
	onNode := map[string]int{}
	for _, p := range related {
		if Active(p) && p.Spec.NodeName != "" {
			onNode[p.Spec.NodeName]++
		}
	}
	slices.SortStableFunc(victims, func(a, b *corev1.Pod) int { return compare(a, b, onNode, now) })
}

func compare(a, b *corev1.Pod, onNode map[string]int, now time.Time) int {
	if c := falseFirst(a.Spec.NodeName != "", b.Spec.NodeName != ""); c != 0 {
		return c
	}
	if c := cmp.Compare(phaseRank(a), phaseRank(b)); c != 0 {
		return c
	}
	if c := falseFirst(Ready(a), Ready(b)); c != 0 {
		return c
	}
	if c := cmp.Compare(cost(a), cost(b)); c != 0 {
		return c
	}
	if c := cmp.Compare(onNode[b.Spec.NodeName], onNode[a.Spec.NodeName]); c != 0 {
		return c
	}
	if Ready(a) && Ready(b) {
		ra, rb := Condition(a, corev1.PodReady).LastTransitionTime.Time,
			Condition(b, corev1.PodReady).LastTransitionTime.Time
		if c := cmp.Compare(ageRank(ra, now), ageRank(rb, now)); c != 0 {
			return c
		}
	}
	if c := cmp.Compare(restarts(b), restarts(a)); c != 0 {
		return c
	}
	if c := cmp.Compare(ageRank(a.CreationTimestamp.Time, now), ageRank(b.CreationTimestamp.Time, now)); c != 0 {
		return c
	}
	return cmp.Compare(a.UID, b.UID)
}

func falseFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case !a:
		return -1
	}
	return 1
}

func phaseRank(p *corev1.Pod) int {
	switch p.Status.Phase {
	case corev1.PodRunning:
		return 2
	case corev1.PodUnknown:
		return 1
	}
	return 0
}

func cost(p *corev1.Pod) int32 {
	n, err := strconv.ParseInt(p.Annotations[DeletionCost], 10, 32)
	if err != nil {
		return 0
	}
	return int32(n)
}

// ageRank is the magnitude of an age: 0 for less than a second, one more for each doubling. An
// unknown time counts as youngest.
func ageRank(since, now time.Time) int {
	if since.IsZero() {
		return -1
	}
	return bits.Len64(uint64(max(0, now.Sub(since)) / time.Second))
}

func restarts(p *corev1.Pod) int32 {
	var most int32
	for _, c := range p.Status.ContainerStatuses {
		most = max(most, c.RestartCount)
	}
	for _, c := range p.Status.InitContainerStatuses {
		most = max(most, c.RestartCount)
	}
	return most
}
