package main

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

const (
	namespace = "bench"
	nodeName  = "bench-node"
	// endpoints is how many each service has, but for changing, which has one.
	endpoints   = 5
	servicePort = 80
	backendPort = 8080
	// mostServices is the number of services that the network of the backends has room for.
	mostServices = 12_000
	// changing is the service whose endpoint changes while the proxies are measured.
	changing = "changing"
)

// headlessEach is the part of the services that are headless where names are asked for: one of so
// many.
const headlessEach = 10

// backend is the address of endpoint n of all.
func backend(n int) netip.Addr {
	base := backendNetwork.Addr().As4()
	return netip.AddrFrom4([4]byte{base[0], base[1], byte(n >> 8), byte(n)})
}

// The endpoint of changing is one of these.
var changes = [2]netip.Addr{backend(mostServices * endpoints), backend(mostServices*endpoints + 1)}

func serviceName(i int) string { return fmt.Sprintf("s%d", i) }

// object is a service with its endpoints, as their controllers would have made them.
type object struct {
	service *corev1.Service
	slice   *discoveryv1.EndpointSlice
}

// numbered is service i of all.
func numbered(i int, headless bool) object {
	var addrs []netip.Addr
	for e := range endpoints {
		addrs = append(addrs, backend(i*endpoints+e))
	}
	return named(serviceName(i), headless, addrs...)
}

// named has one port.
func named(name string, headless bool, addrs ...netip.Addr) object {
	meta := metav1.ObjectMeta{Namespace: namespace, Name: name}
	o := object{
		service: &corev1.Service{ObjectMeta: meta,
			Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: servicePort}}}},
		slice: &discoveryv1.EndpointSlice{
			ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4,
			Ports: []discoveryv1.EndpointPort{
				{Name: ptr.To("http"), Port: ptr.To[int32](backendPort), Protocol: ptr.To(corev1.ProtocolTCP)}},
		},
	}
	if headless {
		o.service.Spec.ClusterIP = corev1.ClusterIPNone
	}
	o.slice.Labels = map[string]string{discoveryv1.LabelServiceName: name}
	for _, addr := range addrs {
		o.slice.Endpoints = append(o.slice.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{addr.String()},
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true)},
			NodeName:   ptr.To("another-node"),
		})
	}
	return o
}
