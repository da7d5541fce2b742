package attachdetach

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// nodeView is the state of a node.
type nodeView struct {
	exists bool
	ready  bool
	// outOfService means that the node has the taint with which a user declares it off.
	outOfService bool
	// inUse means that the node uses the volume.
	inUse bool
}

// view is the input of a decision about one volume.
type view struct {
	// users are the pods that need the volume, by node.
	users map[string][]*corev1.Pod
	// attachments of the volume, by node.
	attachments map[string]*storagev1.VolumeAttachment
	nodes       map[string]nodeView
	// shared means that several nodes may have the volume.
	shared bool
	// unused has the time since which a node that has the volume has no users of it.
	unused map[string]time.Time
	now    time.Time
	// forceAfter is 0 when only a user may say that a node is off.
	forceAfter time.Duration
}

// plan has the changes for one volume.
type plan struct {
	attach []string // nodes
	detach []string // nodes
	forced []string // those of detach that may still use the volume
	// refused are pods that wait until another node has given the volume up, with the reason.
	refused map[*corev1.Pod]string
	// again is when to look again although nothing happens, 0 for never.
	again time.Duration
}

func decide(v view) plan {
	p := plan{refused: map[*corev1.Pod]string{}}
	for _, node := range slices.Sorted(maps.Keys(v.attachments)) {
		if len(v.users[node]) == 0 && v.attachments[node].DeletionTimestamp == nil {
			p.release(node, v)
		}
	}
	elsewhere := len(v.attachments) > 0 // detaching takes time, so those count too
	for _, node := range slices.Sorted(maps.Keys(v.users)) {
		there := v.attachments[node]
		switch {
		case there != nil && there.DeletionTimestamp == nil:
		case there != nil: // the name is free again when it has gone, which is an event
		case !v.nodes[node].exists:
		case elsewhere && !v.shared:
			for _, pod := range v.users[node] {
				p.refused[pod] = v.whoHasIt(node)
			}
		default:
			p.attach = append(p.attach, node)
			elsewhere = true
		}
	}
	return p
}

// release detaches the volume from a node on which no pod needs it, if and when that is safe.
func (p *plan) release(node string, v view) {
	n := v.nodes[node]
	if n.exists && !n.inUse {
		p.detach = append(p.detach, node)
		return
	}
	since, known := v.unused[node]
	if !known {
		since = v.now
	}
	overdue := since.Add(v.forceAfter)
	switch {
	case n.outOfService,
		v.forceAfter > 0 && !n.ready && !v.now.Before(overdue):
		p.detach, p.forced = append(p.detach, node), append(p.forced, node)
	case v.forceAfter > 0 && !n.ready:
		p.wakeAfter(overdue.Sub(v.now))
	}
}

func (p *plan) wakeAfter(d time.Duration) {
	if p.again == 0 || d < p.again {
		p.again = d
	}
}

// whoHasIt says why a volume cannot be attached to a node.
func (v view) whoHasIt(node string) string {
	var here, there []string
	for other, pods := range v.users {
		if other == node || v.attachments[other] == nil {
			continue
		}
		for _, pod := range pods {
			if pod.Namespace == v.users[node][0].Namespace {
				here = append(here, pod.Name)
			} else {
				there = append(there, pod.Name)
			}
		}
	}
	slices.Sort(here)
	switch {
	case len(here) == 0 && len(there) == 0:
		return "Volume is already exclusively attached to one node and can't be attached to another"
	case len(here) == 0:
		return fmt.Sprintf("Volume is already used by %d pod(s) in different namespaces", len(there))
	case len(there) == 0:
		return "Volume is already used by pod(s) " + strings.Join(here, ", ")
	}
	return fmt.Sprintf("Volume is already used by pod(s) %s and %d pod(s) in different namespaces",
		strings.Join(here, ", "), len(there))
}

// needsVolumes reports whether a pod needs its volumes on its node. One that is being deleted does
// until none of its containers runs.
func needsVolumes(pod *corev1.Pod) bool {
	switch {
	case pod.Spec.NodeName == "", pod.Status.Phase == corev1.PodFailed, pod.Status.Phase == corev1.PodSucceeded:
		return false
	case pod.DeletionTimestamp == nil:
		return true
	}
	return slices.ContainsFunc(
		slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses,
			pod.Status.EphemeralContainerStatuses), func(s corev1.ContainerStatus) bool {
			return s.State.Terminated == nil && s.State.Waiting == nil
		})
}

// sharable reports whether several nodes may have a volume.
func sharable(volume *corev1.PersistentVolume) bool {
	return slices.ContainsFunc(volume.Spec.AccessModes, func(m corev1.PersistentVolumeAccessMode) bool {
		return m == corev1.ReadWriteMany || m == corev1.ReadOnlyMany
	})
}
