package devicetainteviction

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

// counts are the numbers in a rule's condition.
type counts struct {
	// pods are still to be evicted, in a number of namespaces. evicted pods were evicted before.
	pods, namespaces int
	evicted          int64
	// published and allocated devices match the rule. They are counted for the effect None only.
	published, allocated int
}

// pending counts the pods that a rule evicts.
func (c *cluster) pending(rule *resourcev1.DeviceTaintRule, pods []*corev1.Pod) (out counts) {
	namespaces := sets.New[string]()
	for _, pod := range pods {
		if e := c.evictionOf(pod); e != nil && slices.Contains(e.rules, rule.UID) {
			out.pods++
			namespaces.Insert(pod.Namespace)
		}
	}
	out.namespaces = namespaces.Len()
	return out
}

// simulated counts the effect that a rule would have with NoExecute.
func (c *cluster) simulated(
	rule *resourcev1.DeviceTaintRule, pods []*corev1.Pod, all []*resourcev1.ResourceSlice,
	claims []*resourcev1.ResourceClaim,
) counts {
	rule = rule.DeepCopy()
	rule.Spec.Taint.Effect = resourcev1.DeviceTaintEffectNoExecute
	alone := &cluster{claim: c.claim, slices: c.slices, rules: []*resourcev1.DeviceTaintRule{rule}}
	out := alone.pending(rule, pods)
	type pool struct{ driver, name string }
	pools := map[pool][]*resourcev1.ResourceSlice{}
	for _, s := range all {
		key := pool{s.Spec.Driver, s.Spec.Pool.Name}
		pools[key] = append(pools[key], s)
	}
	for key, list := range pools {
		for _, s := range newest(list) {
			for i := range s.Spec.Devices {
				if matches(rule, key.driver, key.name, s.Spec.Devices[i].Name) {
					out.published++
				}
			}
		}
	}
	for _, claim := range claims {
		if claim.Status.Allocation == nil {
			continue
		}
		for _, r := range claim.Status.Allocation.Devices.Results {
			if matches(rule, r.Driver, r.Pool, r.Device) {
				out.allocated++
			}
		}
	}
	return out
}

// conditionOf returns a rule's condition. Its LastTransitionTime is left open.
func conditionOf(rule *resourcev1.DeviceTaintRule, n counts) metav1.Condition {
	c := metav1.Condition{
		Type:               resourcev1.DeviceTaintConditionEvictionInProgress,
		Status:             metav1.ConditionFalse,
		ObservedGeneration: rule.Generation,
	}
	switch rule.Spec.Taint.Effect {
	case resourcev1.DeviceTaintEffectNoExecute:
		switch {
		case n.pods > 0:
			c.Reason, c.Status = "PodsPendingEviction", metav1.ConditionTrue
			c.Message = fmt.Sprintf("%s to be evicted in %s.", counted(n.pods, "pod needs", "pods need"),
				counted(n.namespaces, "namespace", "different namespaces"))
		case n.evicted > 0:
			c.Reason = "Completed"
		default:
			c.Reason = "NotStarted"
		}
	case resourcev1.DeviceTaintEffectNone:
		c.Reason = "NoEffect"
		c.Message = fmt.Sprintf("%s selected. %s selected. %s would be evicted in %s if the effect was NoExecute. "+
			"This information will not be updated again. Recreate the DeviceTaintRule to trigger an update.",
			counted(n.published, "published device", "published devices"),
			counted(n.allocated, "allocated device", "allocated devices"),
			counted(n.pods, "pod", "pods"), counted(n.namespaces, "namespace", "different namespaces"))
	default:
		c.Reason, c.Message = "OtherEffect", "Eviction only happens for the NoExecute effect."
	}
	if n.evicted > 0 {
		if c.Message != "" {
			c.Message += " "
		}
		c.Message += counted(int(n.evicted), "pod", "pods") + " evicted since starting the controller."
	}
	return c
}

func counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
