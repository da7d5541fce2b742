package services

import (
	"net/url"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"
)

// A server reaches a Service at its endpoints, without a Service network.
func TestResolver(t *testing.T) {
	service := func(name string, spec corev1.ServiceSpec) runtime.Object {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: spec}
	}
	clusterIP := func(address string) corev1.ServiceSpec {
		return corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: address,
			Ports: []corev1.ServicePort{{Name: "api", Port: 443}}}
	}
	endpoints := func(of string, ready bool) runtime.Object {
		return &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: of,
				Labels: map[string]string{discoveryv1.LabelServiceName: of}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("api"), Port: ptr.To[int32](8443)}},
			Endpoints: []discoveryv1.Endpoint{
				{Addresses: []string{"10.42.0.7"}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
		}
	}
	factory := informers.NewSharedInformerFactory(fake.NewClientset(
		service("web", clusterIP("10.43.0.9")), endpoints("web", true),
		service("headless", clusterIP(corev1.ClusterIPNone)), endpoints("headless", true),
		service("unready", clusterIP("10.43.0.10")), endpoints("unready", false),
		service("outside", corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "api.example.com"}),
	), 0)
	r, err := NewResolver(factory, &url.URL{Scheme: "https", Host: "127.0.0.1:6443"})
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	defer factory.Shutdown()
	defer close(stop)
	factory.Start(stop)
	factory.WaitForCacheSync(stop)
	for _, test := range []struct {
		namespace, name string
		port            int32
		want            string // "" for an error
	}{
		{"ns", "web", 443, "https://10.42.0.7:8443"},
		{"ns", "headless", 443, "https://10.42.0.7:8443"},
		{"ns", "unready", 443, ""},
		{"ns", "web", 80, ""},
		{"ns", "none", 443, ""},
		{"ns", "outside", 8443, "https://api.example.com:8443"},
		{"default", "kubernetes", 443, "https://127.0.0.1:6443"},
	} {
		u, err := r.ResolveEndpoint(test.namespace, test.name, test.port)
		if test.want == "" {
			if err == nil {
				t.Errorf("%s/%s:%d leads to %s", test.namespace, test.name, test.port, u)
			}
		} else if err != nil || u.String() != test.want {
			t.Errorf("%s/%s:%d leads to %v, %v; want %s", test.namespace, test.name, test.port, u, err, test.want)
		}
	}
}
