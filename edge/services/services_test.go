package services

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/internal/balancers"
)

func node(name, addr string, ready bool, labels map[string]string) *corev1.Node {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Status: corev1.NodeStatus{
		Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: addr}},
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}},
	}}
}

func balanced(name string, change func(*corev1.Service), addrs ...string) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer}}
	s.Status.Conditions = []metav1.Condition{{Type: balancers.PoolCondition, Status: metav1.ConditionTrue}}
	for _, a := range addrs {
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a})
	}
	if change != nil {
		change(s)
	}
	return s
}

func local(s *corev1.Service) {
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
}

func endpoints(on ...string) []*discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{}
	for _, n := range on {
		slice.Endpoints = append(slice.Endpoints,
			discoveryv1.Endpoint{NodeName: new(n), Conditions: discoveryv1.EndpointConditions{Ready: new(true)}})
	}
	slice.Endpoints = append(slice.Endpoints,
		discoveryv1.Endpoint{NodeName: new("d"), Conditions: discoveryv1.EndpointConditions{Ready: new(false)}})
	return []*discoveryv1.EndpointSlice{slice}
}

// byBGP is an address that is not announced by ARP.
var byBGP = netip.MustParseAddr("10.0.9.60")

func TestDemands(t *testing.T) {
	nodes := []*corev1.Node{
		node("a", "10.0.0.1", true, map[string]string{balancers.GatewayNodes: "true"}),
		node("b", "10.0.0.2", true, nil), node("c", "10.0.0.3", false, nil),
		node("d", "10.0.0.4", true, nil),
		node("x", "10.0.0.5", true, map[string]string{corev1.LabelNodeExcludeBalancers: ""}),
	}
	services := []*corev1.Service{
		balanced("web", nil, "10.0.9.1", "fd00::91"),
		balanced("local", local, "10.0.9.2"),
		balanced("shared", nil, "10.0.9.2"),
		balanced("nowhere", local, "10.0.9.3"),
		balanced("of-nodes", nil, "10.0.0.1"),
		balanced("cloud's", func(s *corev1.Service) { s.Status.Conditions = nil }, "10.0.9.4"),
		balanced("proxied", func(s *corev1.Service) {
			s.Status.LoadBalancer.Ingress[0].IPMode = new(corev1.LoadBalancerIPModeProxy)
		}, "10.0.9.5"),
		balanced("cluster-ip", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP }, "10.0.9.6"),
		balanced("by-bgp", nil, byBGP.String()),
		balanced("going", func(s *corev1.Service) { s.DeletionTimestamp = new(metav1.Now()) }, "10.0.9.7"),
		balanced("gateway's", func(s *corev1.Service) {
			s.Labels = map[string]string{balancers.ProxyLabel: balancers.GatewayProxy}
		}, "10.0.9.9"),
		balanced("named", func(s *corev1.Service) {
			s.Status.LoadBalancer.Ingress[0] = corev1.LoadBalancerIngress{Hostname: "lb.example"}
		}, "10.0.9.8"),
	}
	byARP := func(a netip.Addr) bool { return a != byBGP }
	got, err := demands(services, nodes, byARP, func(of *corev1.Service) ([]*discoveryv1.EndpointSlice, error) {
		if of.Name == "local" {
			return endpoints("b", "c"), nil
		}
		return endpoints(), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []struct {
		addr     string
		eligible []string
		services int
	}{
		{"10.0.9.1", []string{"a", "b", "d"}, 1},
		{"10.0.9.2", []string{"b"}, 2},
		{"10.0.9.3", nil, 1},
		{"10.0.9.9", []string{"a"}, 1}, // the node whose gateway is on
		{"fd00::91", []string{"a", "b", "d"}, 1},
	}
	if len(got) != len(want) {
		t.Fatalf("%d addresses: %+v", len(got), got)
	}
	for i, w := range want {
		d := got[i]
		if d.Addr != netip.MustParseAddr(w.addr) || !slices.Equal(d.Eligible, w.eligible) ||
			len(d.Services) != w.services || len(d.Possible) != 5 {
			t.Errorf("%+v, want %+v", d, w)
		}
	}
}
