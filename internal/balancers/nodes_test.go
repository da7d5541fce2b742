package balancers

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func node(ready corev1.ConditionStatus, change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{Status: corev1.NodeStatus{
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}},
		Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeHostName, Address: "a"}, {Type: corev1.NodeInternalIP, Address: "192.0.2.1"},
			{Type: corev1.NodeInternalIP, Address: "2001:db8::1"},
			{Type: corev1.NodeExternalIP, Address: "203.0.113.1"},
		},
	}}
	for _, c := range change {
		c(n)
	}
	return n
}

func excluded(value string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Labels = map[string]string{corev1.LabelNodeExcludeBalancers: value} }
}

func TestEligible(t *testing.T) {
	for name, c := range map[string]struct {
		node            *corev1.Node
		takes, eligible bool
	}{
		"ready":    {node(corev1.ConditionTrue), true, true},
		"silent":   {node(corev1.ConditionUnknown), true, false},
		"excluded": {node(corev1.ConditionTrue, excluded("")), false, false},
		"not so":   {node(corev1.ConditionTrue, excluded("false")), true, true},
		"being taken": {
			node(corev1.ConditionTrue, func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: toBeDeleted}} }),
			false, false},
		"deleted": {node(corev1.ConditionTrue, func(n *corev1.Node) { n.DeletionTimestamp = new(metav1.Now()) }),
			false, false},
	} {
		t.Run(name, func(t *testing.T) {
			if takes, eligible := TakesTraffic(c.node), Eligible(c.node); takes != c.takes || eligible != c.eligible {
				t.Errorf("takes traffic %v, eligible %v", takes, eligible)
			}
		})
	}
}

func TestAddressesOf(t *testing.T) {
	n := node(corev1.ConditionTrue)
	for family, want := range map[corev1.IPFamily]string{corev1.IPv4Protocol: "203.0.113.1",
		corev1.IPv6Protocol: "2001:db8::1"} {
		if got := AddressesOf(n, family); !slices.Equal(got, []netip.Addr{netip.MustParseAddr(want)}) {
			t.Errorf("%s: %v, want %s", family, got, want)
		}
	}
}

// TestSameForClients: the reports that every kubelet sends change nothing.
func TestSameForClients(t *testing.T) {
	report := node(corev1.ConditionTrue, func(n *corev1.Node) {
		n.ResourceVersion = "2"
		n.Labels = map[string]string{"zone": "a"}
		n.Status.Conditions[0].LastHeartbeatTime = metav1.Now()
	})
	for name, c := range map[string]struct {
		now  *corev1.Node
		same bool
	}{
		"a report":  {report, true},
		"gone":      {nil, false},
		"not ready": {node(corev1.ConditionFalse), false},
		"excluded":  {node(corev1.ConditionTrue, excluded("")), false},
		"moved": {node(corev1.ConditionTrue, func(n *corev1.Node) { n.Status.Addresses = n.Status.Addresses[:2] }),
			false},
	} {
		t.Run(name, func(t *testing.T) {
			if same := SameForClients(node(corev1.ConditionTrue), c.now); same != c.same {
				t.Errorf("same: %v", same)
			}
		})
	}
}

func TestSameNodes(t *testing.T) {
	slice := func(service string, ready ...bool) *discoveryv1.EndpointSlice {
		s := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{discoveryv1.LabelServiceName: service}}}
		for i, r := range ready {
			s.Endpoints = append(s.Endpoints,
				discoveryv1.Endpoint{NodeName: new(string(rune('a' + i))),
					Conditions: discoveryv1.EndpointConditions{Ready: &r}})
		}
		return s
	}
	two := slice("web", true, true)
	two.Endpoints[1].NodeName = new("a") // a second pod of the node
	for name, c := range map[string]struct {
		before, now *discoveryv1.EndpointSlice
		same        bool
	}{
		"one more pod":      {slice("web", true), two, true},
		"another node":      {slice("web", true), slice("web", true, true), false},
		"not ready":         {slice("web", true, true), slice("web", true, false), false},
		"another's":         {slice("web", true), slice("api", true), false},
		"gone":              {slice("web", true), nil, false},
		"gone, none ready":  {slice("web", false), nil, true},
		"new, with a ready": {nil, slice("web", true), false},
	} {
		t.Run(name, func(t *testing.T) {
			if same := SameNodes(c.before, c.now); same != c.same {
				t.Errorf("same: %v", same)
			}
		})
	}
}
