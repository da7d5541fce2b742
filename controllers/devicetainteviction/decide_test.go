package devicetainteviction

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

const driver = "gpu.example.com"

// noon is when taints are set.
var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func taint(effect resourcev1.DeviceTaintEffect) resourcev1.DeviceTaint {
	return resourcev1.DeviceTaint{Key: "ill", Value: "very", Effect: effect, TimeAdded: ptr.To(metav1.NewTime(noon))}
}

// newPod runs on a node and uses the claim "c".
func newPod(change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "uid-p"}}
	p.Spec.NodeName = "n"
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: ptr.To("c")}}
	for _, c := range change {
		c(p)
	}
	return p
}

// newClaim has device x of pool n, for the pod p.
func newClaim(change ...func(*resourcev1.ResourceClaim)) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "uid-c"}}
	c.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "uid-p"}}
	c.Status.Allocation = &resourcev1.AllocationResult{
		Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
			{Request: "r", Driver: driver, Pool: "n", Device: "x"},
		}}}
	for _, f := range change {
		f(c)
	}
	return c
}

// tolerates for some seconds; negative for ever.
func tolerates(seconds ...int64) func(*resourcev1.ResourceClaim) {
	return func(c *resourcev1.ResourceClaim) {
		for _, s := range seconds {
			t := resourcev1.DeviceToleration{Key: "ill", Operator: resourcev1.DeviceTolerationOpExists,
				Effect: resourcev1.DeviceTaintEffectNoExecute}
			if s >= 0 {
				t.TolerationSeconds = &s
			}
			r := &c.Status.Allocation.Devices.Results[0]
			r.Tolerations = append(r.Tolerations, t)
		}
	}
}

// newSlice offers device x of pool n.
func newSlice(generation int64, taints ...resourcev1.DeviceTaint) *resourcev1.ResourceSlice {
	s := &resourcev1.ResourceSlice{Spec: resourcev1.ResourceSliceSpec{
		Driver: driver, Pool: resourcev1.ResourcePool{Name: "n", Generation: generation, ResourceSliceCount: 1},
		Devices: []resourcev1.Device{{Name: "x", Taints: taints}, {Name: "y"}},
	}}
	s.Name = fmt.Sprint("slice-", generation)
	return s
}

func newRule(
	name string, effect resourcev1.DeviceTaintEffect, change ...func(*resourcev1.DeviceTaintRule),
) *resourcev1.DeviceTaintRule {
	r := &resourcev1.DeviceTaintRule{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Generation: 1}}
	r.Spec.Taint, r.Spec.DeviceSelector = taint(effect), &resourcev1.DeviceTaintSelector{Driver: ptr.To(driver)}
	for _, c := range change {
		c(r)
	}
	return r
}

func of(
	claim *resourcev1.ResourceClaim, slices []*resourcev1.ResourceSlice, rules ...*resourcev1.DeviceTaintRule,
) *cluster {
	return &cluster{
		claim: func(namespace, name string) *resourcev1.ResourceClaim {
			if claim == nil || claim.Namespace != namespace || claim.Name != name {
				return nil
			}
			return claim
		},
		slices: func(d, pool string) (out []*resourcev1.ResourceSlice) {
			for _, s := range slices {
				if s.Spec.Driver == d && s.Spec.Pool.Name == pool {
					out = append(out, s)
				}
			}
			return out
		},
		rules: rules,
	}
}

func TestEvictionOf(t *testing.T) {
	const stays = -1
	evicts, warns := resourcev1.DeviceTaintEffectNoExecute, resourcev1.DeviceTaintEffectNoSchedule
	ill := []*resourcev1.ResourceSlice{newSlice(1, taint(evicts))}
	device := func(name string) func(*resourcev1.DeviceTaintRule) {
		return func(r *resourcev1.DeviceTaintRule) { r.Spec.DeviceSelector.Device = &name }
	}
	for name, c := range map[string]struct {
		pod     *corev1.Pod
		claim   *resourcev1.ResourceClaim
		slices  []*resourcev1.ResourceSlice
		rules   []*resourcev1.DeviceTaintRule
		seconds int // after noon
		byRules int
	}{
		"no taint":            {newPod(), newClaim(), []*resourcev1.ResourceSlice{newSlice(1)}, nil, stays, 0},
		"taint of the driver": {newPod(), newClaim(), ill, nil, 0, 0},
		"taint that only warns": {newPod(), newClaim(), []*resourcev1.ResourceSlice{newSlice(1, taint(warns))}, nil,
			stays, 0},
		"taint of old times": {newPod(), newClaim(), append(ill, newSlice(2)), nil, stays, 0},
		"taint of a rule": {newPod(), newClaim(), nil, []*resourcev1.DeviceTaintRule{newRule("r", evicts)}, 0,
			1},
		"rule for the device": {newPod(), newClaim(), nil,
			[]*resourcev1.DeviceTaintRule{newRule("r", evicts, device("x"))}, 0, 1},
		"rule for another device": {newPod(), newClaim(), nil,
			[]*resourcev1.DeviceTaintRule{newRule("r", evicts, device("y"))}, stays, 0},
		"rule for nothing": {newPod(), newClaim(), nil,
			[]*resourcev1.DeviceTaintRule{
				newRule("r", evicts, func(r *resourcev1.DeviceTaintRule) { r.Spec.DeviceSelector = nil })}, stays, 0},
		"rule without effect": {newPod(), newClaim(), nil,
			[]*resourcev1.DeviceTaintRule{newRule("r", resourcev1.DeviceTaintEffectNone)}, stays, 0},
		"two rules and the driver": {newPod(), newClaim(), ill,
			[]*resourcev1.DeviceTaintRule{newRule("a", evicts), newRule("b", evicts)}, 0, 2},
		"tolerated":                {newPod(), newClaim(tolerates(-1)), ill, nil, stays, 0},
		"tolerated for a minute":   {newPod(), newClaim(tolerates(60)), ill, nil, 60, 0},
		"the shorter one counts":   {newPod(), newClaim(tolerates(60, 10)), ill, nil, 10, 0},
		"for ever and for a while": {newPod(), newClaim(tolerates(60, -1)), ill, nil, stays, 0},
		"not placed": {newPod(func(p *corev1.Pod) { p.Spec.NodeName = "" }), newClaim(), ill, nil, stays,
			0},
		"on its way out": {newPod(func(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.Now()) }),
			newClaim(), ill, nil, stays, 0},
		"not its user": {newPod(func(p *corev1.Pod) { p.UID = "other" }), newClaim(), ill, nil, stays, 0},
		"not allocated": {newPod(),
			newClaim(func(c *resourcev1.ResourceClaim) { c.Status.Allocation = nil }), ill, nil, stays, 0},
		"claim is gone": {newPod(), nil, ill, nil, stays, 0},
	} {
		t.Run(name, func(t *testing.T) {
			e := of(c.claim, c.slices, c.rules...).evictionOf(c.pod)
			switch {
			case e == nil:
				if c.seconds != stays {
					t.Errorf("it stays, want its end %d s after noon", c.seconds)
				}
			case c.seconds == stays:
				t.Errorf("it goes at %s", e.at)
			case !e.at.Equal(noon.Add(time.Duration(c.seconds)*time.Second)) || len(e.rules) != c.byRules:
				t.Errorf("it goes at %s by %v, want %d s after noon by %d rules", e.at, e.rules, c.seconds, c.byRules)
			}
		})
	}
}

func TestConditionOf(t *testing.T) {
	evicts := newRule("r", resourcev1.DeviceTaintEffectNoExecute)
	for name, c := range map[string]struct {
		rule            *resourcev1.DeviceTaintRule
		n               counts
		reason, message string
		status          metav1.ConditionStatus
	}{
		"nothing to do": {evicts, counts{}, "NotStarted", "", metav1.ConditionFalse},
		"one to go": {evicts, counts{pods: 1, namespaces: 1}, "PodsPendingEviction",
			"1 pod needs to be evicted in 1 namespace.", metav1.ConditionTrue},
		"some are gone": {evicts, counts{pods: 3, namespaces: 2, evicted: 1}, "PodsPendingEviction",
			"3 pods need to be evicted in 2 different namespaces. 1 pod evicted since starting the controller.",
			metav1.ConditionTrue},
		"done": {evicts, counts{evicted: 2}, "Completed", "2 pods evicted since starting the controller.",
			metav1.ConditionFalse},
		"another effect": {newRule("r", resourcev1.DeviceTaintEffectNoSchedule), counts{}, "OtherEffect",
			"Eviction only happens for the NoExecute effect.", metav1.ConditionFalse},
		"no effect": {newRule("r", resourcev1.DeviceTaintEffectNone),
			counts{pods: 1, namespaces: 1, published: 2, allocated: 1}, "NoEffect",
			"2 published devices selected. 1 allocated device selected. 1 pod would be evicted in 1 namespace if the effect was NoExecute. " +
				"This information will not be updated again. Recreate the DeviceTaintRule to trigger an update.",
			metav1.ConditionFalse},
	} {
		got := conditionOf(c.rule, c.n)
		if got.Reason != c.reason || got.Message != c.message || got.Status != c.status || got.ObservedGeneration != 1 {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
