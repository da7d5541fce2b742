package apiserver

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func testServices(t *testing.T, c *cluster) {
	ctx, services := t.Context(), c.admin.CoreV1().Services("default")
	kubernetes := must(services.Get(ctx, "kubernetes", metav1.GetOptions{}))(t)
	if kubernetes.Spec.ClusterIP != "10.43.0.1" {
		t.Errorf("the kubernetes Service is at %s", kubernetes.Spec.ClusterIP)
	}
	dns := must(c.admin.CoreV1().Services("kube-system").Get(ctx, "kube-dns", metav1.GetOptions{}))(t)
	if dns.Spec.ClusterIP != "10.43.0.10" || len(dns.Spec.Selector) > 0 || len(dns.Spec.Ports) != 2 {
		t.Errorf("the Service of cluster DNS is %+v", dns.Spec)
	}
	web := func(name string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeNodePort, Selector: map[string]string{"app": "web"},
			Ports: []corev1.ServicePort{{Port: 80}},
		}}
	}
	made := must(services.Create(ctx, web("web"), metav1.CreateOptions{}))(t)
	port := made.Spec.Ports[0].NodePort
	if made.Spec.ClusterIP == "" || port < 30000 || port > 32767 || len(made.Spec.IPFamilies) != 1 {
		t.Errorf("allocated %+v", made.Spec)
	}
	// A client that does not know the allocated fields replaces the object.
	replacement := web("web")
	replacement.Labels = map[string]string{"a": "b"}
	replaced := must(services.Update(ctx, replacement, metav1.UpdateOptions{}))(t)
	if replaced.Spec.ClusterIP != made.Spec.ClusterIP || replaced.Spec.Ports[0].NodePort != port {
		t.Errorf("an update lost what was allocated: %+v", replaced.Spec)
	}
	taken := web("taken")
	taken.Spec.Ports[0].NodePort = port
	if _, err := services.Create(ctx, taken, metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("a node port that is taken: %v", err)
	}
	outside := web("outside")
	outside.Spec.ClusterIP = "192.0.2.1"
	if _, err := services.Create(ctx, outside, metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("an address outside of the range: %v", err)
	}
	another := web("another")
	another.Spec.ClusterIP = DNSServiceAddress(netip.MustParsePrefix("10.43.0.0/16")).String()
	if _, err := services.Create(ctx, another, metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("the address of cluster DNS: %v", err)
	}
	if err := services.Delete(ctx, "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	// Its address and ports are free at once.
	must(services.Create(ctx, taken, metav1.CreateOptions{}))(t)
}
