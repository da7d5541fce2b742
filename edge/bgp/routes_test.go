package bgp

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/edge/pool"
	"github.com/barque/barque/internal/balancers"
)

func nodeAt(name, addr string, ready bool, labels map[string]string) *corev1.Node {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid", Labels: labels},
		Status: corev1.NodeStatus{
			Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: addr}},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}},
		}}
}

func service(name string, local bool, addrs ...string) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer}}
	if local {
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	}
	s.Status.Conditions = []metav1.Condition{{Type: balancers.PoolCondition, Status: metav1.ConditionTrue}}
	for _, a := range addrs {
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a})
	}
	return s
}

func endpointsOf(service string, ready bool, nodes ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: service + "-x",
		Labels: map[string]string{discoveryv1.LabelServiceName: service}}}
	for _, n := range nodes {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{NodeName: new(n),
			Conditions: discoveryv1.EndpointConditions{Ready: new(ready)}})
	}
	return s
}

func poolOf(name string, bgp *pool.BGPSpec, ways []string, addresses ...string) *pool.Object {
	return &pool.Object{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: pool.Spec{Addresses: addresses, Announce: ways, BGP: bgp}}
}

func TestRoutes(t *testing.T) {
	ways := pool.WaysOf([]*pool.Object{
		poolOf("bgp", &pool.BGPSpec{Communities: []string{"64512:7"}}, []string{"BGP"}, "198.51.100.0/28",
			"2001:db8::/120"),
		poolOf("both", nil, []string{"ARP", "BGP"}, "198.51.100.16/28"), poolOf("arp", nil, nil, "198.51.100.32/28"),
		poolOf("wrong", &pool.BGPSpec{Communities: []string{"70000:7"}}, []string{"BGP"}, "198.51.100.48/28"),
	})
	all := []*corev1.Service{
		service("web", false, "198.51.100.1", "2001:db8::1"), service("both", false, "198.51.100.17"),
		service("arp", false, "198.51.100.33"), service("wrong", false, "198.51.100.49"),
		service("strange", false, "203.0.113.1"), service("of-a-node", false, "198.51.100.14"),
		service("here", true, "198.51.100.2"), service("there", true, "198.51.100.3"),
		service("unready", true, "198.51.100.4"),
		service("shares", false, "198.51.100.5"), service("shares-there", true, "198.51.100.5"),
	}
	slicesOfAll := []*discoveryv1.EndpointSlice{endpointsOf("here", true, "a", "b"), endpointsOf("there", true, "b"),
		endpointsOf("unready", false, "a"), endpointsOf("shares-there", true, "b")}
	const own = "198.51.100.1/32 198.51.100.17/32 198.51.100.2/32 2001:db8::1/128"
	for name, c := range map[string]struct {
		node *corev1.Node
		want string
	}{
		"a node":     {nodeAt("a", "192.0.2.1", true, nil), own},
		"left out":   {nodeAt("a", "192.0.2.1", true, map[string]string{corev1.LabelNodeExcludeBalancers: ""}), ""},
		"not ready":  {nodeAt("a", "192.0.2.1", false, nil), ""},
		"not there":  {nil, ""},
		"other pods": {nodeAt("c", "192.0.2.3", true, nil), "198.51.100.1/32 198.51.100.17/32 2001:db8::1/128"},
	} {
		t.Run(name, func(t *testing.T) {
			v := &view{node: c.node, nodes: []*corev1.Node{nodeAt("b", "198.51.100.14", true, nil)}, services: all,
				slices: slicesOfAll, ways: ways}
			var got []string
			announced := routes(v)
			for p, of := range announced {
				got = append(got, p.String())
				if with := len(of.Communities) > 0; with != (p.Addr() != netip.MustParseAddr("198.51.100.17")) {
					t.Errorf("%s has the attributes %+v", p, of)
				}
				if of.LocalPreference != 100 {
					t.Errorf("%s has the attributes %+v", p, of)
				}
			}
			slices.Sort(got)
			if text := strings.Join(got, " "); text != c.want {
				t.Errorf("got  %s\nwant %s", text, c.want)
			}
		})
	}
}
