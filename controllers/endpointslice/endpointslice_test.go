package endpointslice_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/barque/barque/controllers/controllertest"
	"github.com/barque/barque/controllers/endpointslice"
)

func service() *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "web"},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "web"}, ClusterIP: "10.43.0.9", ClusterIPs: []string{"10.43.0.9"},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports: []corev1.ServicePort{
				{Name: "http", Port: 80, TargetPort: intstr.FromString("http"), Protocol: corev1.ProtocolTCP}},
		},
	}
}

func pod(i int, ready bool) *corev1.Pod {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	ip := fmt.Sprintf("10.42.0.%d", i)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: fmt.Sprint("p", i),
			Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{
			Name: "c", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: corev1.ProtocolTCP}},
		}}},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}},
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: status}},
		},
	}
}

// serving returns the addresses of the ready endpoints in all slices of the Service.
func serving(t *testing.T, c *controllertest.Cluster) []string {
	t.Helper()
	l, err := c.Client.DiscoveryV1().EndpointSlices("d").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, s := range l.Items {
		if s.Labels[discoveryv1.LabelServiceName] != "web" ||
			s.Labels[discoveryv1.LabelManagedBy] != endpointslice.ManagedBy {
			t.Errorf("labels %v", s.Labels)
		}
		for _, e := range s.Endpoints {
			if *e.Conditions.Ready {
				out = append(out, fmt.Sprintf("%s:%d", e.Addresses[0], *s.Ports[0].Port))
			}
		}
	}
	slices.Sort(out)
	return out
}

func TestSlicesFollowPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(t, service(), pod(1, true), pod(2, false),
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
		ctrl, err := endpointslice.New(endpointslice.Config{Informers: c.Informers})
		if err != nil {
			t.Fatal(err)
		}
		c.Start(ctrl.Run)
		expect := func(want ...string) {
			t.Helper()
			controllertest.Eventually(t, fmt.Sprintf("endpoints %v", want),
				func() bool { return slices.Equal(serving(t, c), want) })
		}
		expect("10.42.0.1:8080")
		two := pod(2, true)
		if _, err := c.Client.CoreV1().Pods("d").UpdateStatus(t.Context(), two, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		expect("10.42.0.1:8080", "10.42.0.2:8080")
		zero := int64(0)
		if err := c.Client.CoreV1().Pods("d").Delete(t.Context(), "p1",
			metav1.DeleteOptions{GracePeriodSeconds: &zero}); err != nil {
			t.Fatal(err)
		}
		expect("10.42.0.2:8080")
		// A slice that somebody deletes comes back.
		l, err := c.Client.DiscoveryV1().EndpointSlices("d").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(l.Items) != 1 {
			t.Fatalf("%d slices, %v", len(l.Items), err)
		}
		if err := c.Client.DiscoveryV1().EndpointSlices("d").Delete(t.Context(), l.Items[0].Name,
			metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		expect("10.42.0.2:8080")
	})
}
