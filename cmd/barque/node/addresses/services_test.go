package addresses

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/internal/balancers"
)

// TestWhatMovesAddresses: Services without an address of a pool, and the reports of kubelets, make
// no one judge all addresses anew.
func TestWhatMovesAddresses(t *testing.T) {
	pooled := &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer}}
	pooled.Status.Conditions = []metav1.Condition{{Type: balancers.PoolCondition, Status: metav1.ConditionTrue}}
	labelled, given, local := pooled.DeepCopy(), pooled.DeepCopy(), pooled.DeepCopy()
	labelled.Labels = map[string]string{"a": "b"}
	given.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
	local.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	plain := &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP}}
	for name, c := range map[string]struct {
		event func(h cache.ResourceEventHandler)
		want  int
	}{
		"a Service":           {func(h cache.ResourceEventHandler) { h.OnAdd(plain, false) }, 0},
		"one with an address": {func(h cache.ResourceEventHandler) { h.OnAdd(pooled, false) }, 1},
		"another label":       {func(h cache.ResourceEventHandler) { h.OnUpdate(pooled, labelled) }, 0},
		"another address":     {func(h cache.ResourceEventHandler) { h.OnUpdate(pooled, given) }, 1},
		"another policy":      {func(h cache.ResourceEventHandler) { h.OnUpdate(pooled, local) }, 1},
		"another type":        {func(h cache.ResourceEventHandler) { h.OnUpdate(pooled, plain) }, 1},
		"deleted unseen": {
			func(h cache.ResourceEventHandler) { h.OnDelete(cache.DeletedFinalStateUnknown{Obj: pooled}) }, 1},
		"deleted": {func(h cache.ResourceEventHandler) { h.OnDelete(plain) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			got := 0
			c.event(unless(sameAnswered, func() { got++ }))
			if got != c.want {
				t.Errorf("%d times, want %d", got, c.want)
			}
		})
	}
}
