package proxy

import (
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// largeSnapshot has services with five endpoints each.
func largeSnapshot(services int) Snapshot {
	s := Snapshot{NodeName: here}
	for i := range services {
		name := fmt.Sprintf("s%d", i)
		s.Services = append(s.Services, service(func(of *corev1.Service) {
			of.Name, of.Spec.ClusterIP = name, netip.AddrFrom4([4]byte{10, 43, byte(i >> 8), byte(i)}).String()
		}))
		of := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: name}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To[int32](8080), Protocol: ptr.To(corev1.ProtocolTCP)}},
		}
		for j := range 5 {
			number := 5*i + j
			of.Endpoints = append(of.Endpoints, endpoint(fmt.Sprintf("10.%d.%d.%d", 64+number>>16, number>>8&255, number&255), fmt.Sprintf("node-%d", number%100), ready))
		}
		s.Slices = append(s.Slices, of)
	}
	return s
}

// inKernel is how many services are written in benchmarks: the time of a first write grows faster than
// their number.
const inKernel = 1000

// BenchmarkFirstSync writes all. A thread has its namespace: no b.Run here.
func BenchmarkFirstSync(b *testing.B) {
	kernel, all := inNamespace(b), largeSnapshot(inKernel)
	for b.Loop() {
		if err := kernel.replace(plan(all)); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPlan decides what 50,000 endpoints need, which each change does again.
func BenchmarkPlan(b *testing.B) {
	all, less := largeSnapshot(10_000), largeSnapshot(10_000)
	less.Slices[777].Endpoints = less.Slices[777].Endpoints[1:]
	now := plan(all)
	for b.Loop() {
		if diff(now, plan(less)).Empty() {
			b.Fatal("nothing has changed")
		}
	}
}

// BenchmarkOneChange is one endpoint that goes or comes among 5,000, from the objects to the kernel.
func BenchmarkOneChange(b *testing.B) {
	kernel, all, less := inNamespace(b), largeSnapshot(inKernel), largeSnapshot(inKernel)
	less.Slices[777].Endpoints = less.Slices[777].Endpoints[1:]
	now := plan(all)
	if err := kernel.replace(now); err != nil {
		b.Fatal(err)
	}
	for i := 0; b.Loop(); i++ {
		next := plan(less)
		if i%2 == 1 {
			next = plan(all)
		}
		if err := kernel.change(diff(now, next)); err != nil {
			b.Fatal(err)
		}
		now = next
	}
}
