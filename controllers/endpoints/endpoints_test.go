package endpoints

import (
	"fmt"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/barque/barque/controllers/controllertest"
)

//lint:file-ignore SA1019 Endpoints are deprecated, and still read by clients that this is for.

func service() *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "web", Labels: map[string]string{"l": "v"}},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "web"}, ClusterIP: "10.43.0.9",
			Ports: []corev1.ServicePort{
				{Name: "http", Port: 80, TargetPort: intstr.FromString("http"), Protocol: corev1.ProtocolTCP}},
		},
	}
}

func pod(i int, port int32, ready bool) *corev1.Pod {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	ip := fmt.Sprintf("10.42.%d.%d", i/250, i%250)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: fmt.Sprint("p", i),
			Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{
			Name: "c", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: port, Protocol: corev1.ProtocolTCP}},
		}}},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}},
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: status}},
		},
	}
}

func TestDecide(t *testing.T) {
	noPort := pod(5, 1, true)
	noPort.Spec.Containers[0].Ports = nil
	noIP := pod(6, 8080, true)
	noIP.Status.PodIP, noIP.Status.PodIPs = "", nil
	done := pod(7, 8080, true)
	done.Status.Phase = corev1.PodSucceeded
	e := decide(service(),
		[]*corev1.Pod{pod(2, 8080, true), pod(1, 8080, true), pod(3, 8080, false), pod(4, 9090, true), noPort, noIP,
			done}, nil)
	if len(e.Subsets) != 2 {
		t.Fatalf("subsets %+v", e.Subsets)
	}
	a, b := e.Subsets[0], e.Subsets[1]
	if len(a.Addresses) != 2 || a.Addresses[0].IP != "10.42.0.1" || len(a.NotReadyAddresses) != 1 ||
		a.Ports[0].Port != 8080 || a.Addresses[0].TargetRef.Name != "p1" {
		t.Errorf("first subset %+v", a)
	}
	if len(b.Addresses) != 1 || b.Ports[0].Port != 9090 {
		t.Errorf("second subset %+v", b)
	}
	if e.Labels["l"] != "v" || e.Labels[managedBy] != ManagedBy {
		t.Errorf("labels %v", e.Labels)
	}
	headless := service()
	headless.Spec.ClusterIP, headless.Spec.PublishNotReadyAddresses = corev1.ClusterIPNone, true
	e = decide(headless, []*corev1.Pod{pod(3, 8080, false)}, nil)
	if _, ok := e.Labels[corev1.IsHeadlessService]; !ok || len(e.Subsets[0].Addresses) != 1 {
		t.Errorf("headless %+v", e)
	}
}

func TestCapacity(t *testing.T) {
	var all []*corev1.Pod
	for i := range 1200 {
		all = append(all, pod(i, 8080, i%2 == 0))
	}
	e := decide(service(), all, nil)
	if n, m := len(e.Subsets[0].Addresses), len(e.Subsets[0].NotReadyAddresses); n != 600 || m != 400 {
		t.Errorf("%d ready, %d not ready", n, m)
	}
	if e.Annotations[corev1.EndpointsOverCapacity] != "truncated" {
		t.Errorf("annotations %v", e.Annotations)
	}
	if e = decide(service(), all[:10], e); e.Annotations[corev1.EndpointsOverCapacity] != "" {
		t.Error("the mark stays")
	}
}

func TestFollowsServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(t, service(), pod(1, 8080, true),
			&corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "users"}})
		ctrl, err := New(Config{Informers: c.Informers})
		if err != nil {
			t.Fatal(err)
		}
		c.Start(ctrl.Run)
		get := func(name string) *corev1.Endpoints {
			e, err := c.Client.CoreV1().Endpoints("d").Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return nil
			}
			return e
		}
		controllertest.Eventually(t, "one address", func() bool {
			e := get("web")
			return e != nil && len(e.Subsets) == 1 && e.Subsets[0].Addresses[0].IP == "10.42.0.1"
		})
		if err := c.Client.CoreV1().Services("d").Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		controllertest.Eventually(t, "they go with the Service", func() bool { return get("web") == nil })
		if get("users") == nil {
			t.Error("Endpoints of a user were deleted")
		}
	})
}
