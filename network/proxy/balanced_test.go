package proxy

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/internal/balancers"
)

// At an address that Barque has given, a Service has the listed ports only: another one may belong
// to a Service that shares the address. Statuses of other load balancers count for all ports.
func TestPortsOfAnAddress(t *testing.T) {
	address := netip.MustParseAddr("192.0.2.1")
	for name, c := range map[string]struct {
		condition string
		ports     []balancers.Port
		want      bool
	}{
		"listed": {balancers.PoolCondition, []balancers.Port{{Protocol: corev1.ProtocolTCP, Port: 80}}, true},
		"another port": {balancers.PoolCondition, []balancers.Port{{Protocol: corev1.ProtocolTCP, Port: 81}},
			false},
		"another protocol": {balancers.NodesCondition, []balancers.Port{{Protocol: corev1.ProtocolUDP, Port: 80}},
			false},
		"none":             {balancers.NodesCondition, nil, false},
		"of another":       {"", nil, true},
		"of another, port": {"example.com/Ready", []balancers.Port{{Protocol: corev1.ProtocolTCP, Port: 81}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := service(func(s *corev1.Service) {
				s.Spec.Type = corev1.ServiceTypeLoadBalancer
				s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{balancers.Ingress(address, c.ports)}
				if c.condition != "" {
					s.Status.Conditions = []metav1.Condition{{Type: c.condition, Status: metav1.ConditionTrue}}
				}
			})
			rules := claimed(
				Snapshot{NodeName: here, Services: []*corev1.Service{s}, Slices: []*discoveryv1.EndpointSlice{}}, nil)
			if _, got := rules.Refused[Frontend{Addr: address, Protocol: corev1.ProtocolTCP, Port: 80}]; got != c.want {
				t.Errorf("the Service answers at its address: %t, want %t", got, c.want)
			}
		})
	}
}
