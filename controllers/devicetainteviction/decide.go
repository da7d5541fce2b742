package devicetainteviction

import (
	"cmp"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

// cluster is the input for evictions.
type cluster struct {
	// claim returns a claim, nil when there is none.
	claim func(namespace, name string) *resourcev1.ResourceClaim
	// slices returns the slices of a pool, of all generations.
	slices func(driver, pool string) []*resourcev1.ResourceSlice
	rules  []*resourcev1.DeviceTaintRule
}

// eviction is when a pod must go, and by which rules. Drivers' own taints have none.
type eviction struct {
	at    time.Time
	rules []types.UID
}

// merge takes the earlier time, and the rules of both.
func (e *eviction) merge(o *eviction) *eviction {
	switch {
	case e == nil:
		return o
	case o == nil:
		return e
	}
	out := &eviction{at: e.at, rules: slices.Concat(e.rules, o.rules)}
	if o.at.Before(e.at) {
		out.at = o.at
	}
	slices.Sort(out.rules)
	out.rules = slices.Compact(out.rules)
	return out
}

// evictionOf returns when a pod must go, nil when it may stay.
func (c *cluster) evictionOf(pod *corev1.Pod) (e *eviction) {
	if pod.Spec.NodeName == "" || pod.DeletionTimestamp != nil {
		return nil
	}
	for i := range pod.Spec.ResourceClaims {
		name, made, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil || name == nil {
			continue
		}
		claim := c.claim(pod.Namespace, *name)
		if claim == nil || claim.Status.Allocation == nil || !resourceclaim.IsReservedForPod(pod, claim, false) ||
			made && resourceclaim.IsForPod(pod, claim, false) != nil {
			continue
		}
		for j := range claim.Status.Allocation.Devices.Results {
			e = e.merge(c.evictionFrom(&claim.Status.Allocation.Devices.Results[j]))
		}
	}
	return e
}

// evictionFrom returns when the users of a device must go.
func (c *cluster) evictionFrom(r *resourcev1.DeviceRequestAllocationResult) (e *eviction) {
	if device := deviceOf(c.slices(r.Driver, r.Pool), r.Device); device != nil {
		for _, taint := range device.Taints {
			e = e.merge(untolerated(r, taint, ""))
		}
	}
	for _, rule := range c.rules {
		if matches(rule, r.Driver, r.Pool, r.Device) {
			e = e.merge(untolerated(r, rule.Spec.Taint, rule.UID))
		}
	}
	return e
}

// untolerated is the eviction by one taint. It is nil when the taint evicts no pod or is tolerated
// for ever. Of several tolerations the shortest counts.
func untolerated(r *resourcev1.DeviceRequestAllocationResult, taint resourcev1.DeviceTaint, rule types.UID) *eviction {
	if taint.Effect != resourcev1.DeviceTaintEffectNoExecute {
		return nil
	}
	e := &eviction{}
	if rule != "" {
		e.rules = []types.UID{rule}
	}
	if taint.TimeAdded != nil {
		e.at = taint.TimeAdded.Time
	}
	seconds, tolerated := int64(math.MaxInt64), false
	for _, t := range r.Tolerations {
		if t.Effect != resourcev1.DeviceTaintEffectNoExecute || !resourceclaim.ToleratesTaint(t, taint) {
			continue
		}
		if t.TolerationSeconds == nil {
			return nil
		}
		seconds, tolerated = min(seconds, max(*t.TolerationSeconds, 0)), true
	}
	if tolerated {
		// A century is as good as for ever, and does not overflow.
		e.at = e.at.Add(time.Duration(min(seconds, 100*365*24*3600)) * time.Second)
	}
	return e
}

// newest returns the slices of the pool's newest generation: only these describe its devices.
func newest(list []*resourcev1.ResourceSlice) []*resourcev1.ResourceSlice {
	if len(list) == 0 {
		return nil
	}
	generation := slices.MaxFunc(list, func(a, b *resourcev1.ResourceSlice) int {
		return cmp.Compare(a.Spec.Pool.Generation, b.Spec.Pool.Generation)
	}).Spec.Pool.Generation
	return slices.DeleteFunc(slices.Clone(list),
		func(s *resourcev1.ResourceSlice) bool { return s.Spec.Pool.Generation != generation })
}

func deviceOf(list []*resourcev1.ResourceSlice, name string) *resourcev1.Device {
	for _, s := range newest(list) {
		for i := range s.Spec.Devices {
			if s.Spec.Devices[i].Name == name {
				return &s.Spec.Devices[i]
			}
		}
	}
	return nil
}

// matches reports whether a rule is about a device. One without a selector is about none.
func matches(rule *resourcev1.DeviceTaintRule, driver, pool, device string) bool {
	s := rule.Spec.DeviceSelector
	return s != nil && fits(s.Driver, driver) && fits(s.Pool, pool) && fits(s.Device, device)
}

func fits(want *string, is string) bool { return want == nil || *want == is }
