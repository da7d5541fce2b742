package adminapi

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/internal/balancers"
)

func TestWaiting(t *testing.T) {
	service := func(
		name, condition string, status metav1.ConditionStatus, change ...func(*corev1.Service),
	) *corev1.Service {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
			Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer}}
		s.Status.Conditions = []metav1.Condition{
			{Type: condition, Status: status, Reason: "PortInUse", Message: "by another one"}}
		for _, c := range change {
			c(s)
		}
		return s
	}
	got := Waiting([]*corev1.Service{
		service("b", balancers.PoolCondition, metav1.ConditionFalse),
		service("a", balancers.NodesCondition, metav1.ConditionFalse),
		service("served", balancers.PoolCondition, metav1.ConditionTrue),
		service("another's", "example.com/Ready", metav1.ConditionFalse),
		service("no balancer", balancers.PoolCondition, metav1.ConditionFalse,
			func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP }),
		service("ends", balancers.PoolCondition, metav1.ConditionFalse,
			func(s *corev1.Service) { s.DeletionTimestamp = new(metav1.Now()) }),
		service("gateway's", balancers.PoolCondition, metav1.ConditionFalse, func(s *corev1.Service) {
			s.Labels = map[string]string{balancers.ProxyLabel: balancers.GatewayProxy}
			s.OwnerReferences = []metav1.OwnerReference{{Kind: "Gateway", Name: "web", Controller: new(true)}}
		}),
		{},
	})
	var names []string
	for _, w := range got {
		names = append(names, w.Service)
		if w.Reason != "PortInUse" || w.Message != "by another one" {
			t.Errorf("%+v", w)
		}
	}
	if !slices.Equal(names, []string{"ns/a", "ns/b", "ns/gateway's"}) {
		t.Errorf("%q wait", names)
	}
	if got[0].Gateway != "" || got[2].Gateway != "ns/web" {
		t.Errorf("of Gateways: %+v", got)
	}
}
