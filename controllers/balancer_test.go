package controllers_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/barque/barque/internal/balancers"
)

// balancer is a provider with the addresses from 192.0.2.1 to 192.0.2.9.
type balancer struct{}

func (balancer) Run(ctx context.Context, _ *rest.Config, changed func()) error {
	changed()
	<-ctx.Done()
	return nil
}

func (balancer) Serves(s *corev1.Service) bool { return s.Spec.LoadBalancerClass == nil }

func (balancer) Balance(s *corev1.Service, all []*corev1.Service, avoid map[netip.Addr]string) (status corev1.ServiceStatus, known bool, refused error) {
	status = *s.Status.DeepCopy()
	if len(status.LoadBalancer.Ingress) > 0 {
		return status, true, nil
	}
	taken := map[string]bool{}
	for a := range avoid {
		taken[a.String()] = true
	}
	for _, other := range all {
		for _, in := range other.Status.LoadBalancer.Ingress {
			taken[in.IP] = true
		}
	}
	condition := metav1.Condition{Type: balancers.PoolCondition, Status: metav1.ConditionFalse, Reason: "Full"}
	for i := range 9 {
		if ip := fmt.Sprintf("192.0.2.%d", i+1); !taken[ip] {
			condition.Status, condition.Reason = metav1.ConditionTrue, "Assigned"
			status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{balancers.Ingress(netip.MustParseAddr(ip), balancers.Wanted(s))}
			meta.SetStatusCondition(&status.Conditions, condition)
			return status, true, nil
		}
	}
	meta.SetStatusCondition(&status.Conditions, condition)
	return status, true, errors.New("full")
}

// loadBalancer is a Service with these addresses.
func loadBalancer(name string, ips ...string) *corev1.Service {
	s := &corev1.Service{ObjectMeta: named(name), Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}},
	}}
	for _, ip := range ips {
		s.Status.Conditions = []metav1.Condition{{Type: balancers.PoolCondition, Status: metav1.ConditionTrue, Reason: "Assigned"}}
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, balancers.Ingress(netip.MustParseAddr(ip), balancers.Wanted(s)))
	}
	return s
}
