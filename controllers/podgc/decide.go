package podgc

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/barque/barque/controllers/pods"
)

// fate is the decision about one pod.
type fate int

const (
	keep   fate = iota
	later       // perhaps: look again when the quarantine of its node is over
	remove      // no other component will end it
)

// nodeView is the state of a pod's node.
type nodeView struct {
	// gone is set when the Node object does not exist; goneFor is for how long that is known.
	gone    bool
	goneFor time.Duration
	// outOfService is set when a user has said so by taint and the node is not ready.
	outOfService bool
}

// decide returns the fate of a pod and the reason for the log.
func decide(pod *corev1.Pod, node nodeView, quarantine time.Duration) (fate, string) {
	switch {
	case pod.Spec.NodeName == "":
		if pod.DeletionTimestamp != nil {
			return remove, "PodGC: unscheduled and being deleted"
		}
	case node.gone:
		if node.goneFor < quarantine {
			return later, ""
		}
		return remove, "PodGC: node no longer exists"
	case node.outOfService && pod.DeletionTimestamp != nil:
		return remove, "PodGC: node is out of service"
	}
	return keep, ""
}

// excess returns the finished pods beyond threshold, the oldest and the evicted ones first.
func excess(all []*corev1.Pod, threshold int) []*corev1.Pod {
	var finished []*corev1.Pod
	for _, p := range all {
		if pods.Finished(p) && p.DeletionTimestamp == nil {
			finished = append(finished, p)
		}
	}
	if len(finished) <= threshold {
		return nil
	}
	slices.SortFunc(finished, func(a, b *corev1.Pod) int {
		if ea, eb := a.Status.Reason == "Evicted", b.Status.Reason == "Evicted"; ea != eb {
			if ea {
				return -1
			}
			return 1
		}
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	return finished[:len(finished)-threshold]
}

func outOfService(node *corev1.Node) bool {
	tainted := slices.ContainsFunc(node.Spec.Taints,
		func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
			return false
		}
	}
	return tainted
}
