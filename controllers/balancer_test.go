package controllers_test

import (
	"context"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/barque/barque/internal/balancers"
)

// balancer is a provider that gives each Service an address by its name. A cluster has the store to
// keep two leaders from giving one address to two Services.
type balancer struct{}

func (balancer) Run(ctx context.Context, _ *rest.Config, changed func()) error {
	changed()
	<-ctx.Done()
	return nil
}

func (balancer) Serves(s *corev1.Service) bool { return s.Spec.LoadBalancerClass == nil }

func (balancer) Balance(
	s *corev1.Service, _ []*corev1.Service, _ map[netip.Addr]string,
) (status corev1.ServiceStatus, known bool, refused error) {
	status = *s.Status.DeepCopy()
	if len(status.LoadBalancer.Ingress) == 0 {
		address := netip.AddrFrom4([4]byte{192, 0, 2, s.Name[0]})
		status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{balancers.Ingress(address, balancers.Wanted(s))}
		meta.SetStatusCondition(&status.Conditions,
			metav1.Condition{Type: balancers.PoolCondition, Status: metav1.ConditionTrue, Reason: "Assigned"})
	}
	return status, true, nil
}

// loadBalancer is a Service with these addresses.
func loadBalancer(name string, ips ...string) *corev1.Service {
	s := &corev1.Service{ObjectMeta: named(name), Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}},
	}}
	for _, ip := range ips {
		s.Status.Conditions = []metav1.Condition{
			{Type: balancers.PoolCondition, Status: metav1.ConditionTrue, Reason: "Assigned"}}
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress,
			balancers.Ingress(netip.MustParseAddr(ip), balancers.Wanted(s)))
	}
	return s
}
