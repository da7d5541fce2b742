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
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name + "-1",
				Labels: map[string]string{discoveryv1.LabelServiceName: name}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports: []discoveryv1.EndpointPort{
				{Name: ptr.To("http"), Port: ptr.To[int32](8080), Protocol: ptr.To(corev1.ProtocolTCP)}},
		}
		for j := range 5 {
			number := 5*i + j
			of.Endpoints = append(of.Endpoints,
				endpoint(fmt.Sprintf("10.%d.%d.%d", 64+number>>16, number>>8&255, number&255),
					fmt.Sprintf("node-%d", number%100), ready))
		}
		s.Slices = append(s.Slices, of)
	}
	return s
}

// inKernel is how many services are written in benchmarks.
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

// BenchmarkPlan decides what 50,000 endpoints need, as the start does.
func BenchmarkPlan(b *testing.B) {
	all := largeSnapshot(10_000)
	for b.Loop() {
		book, parts := newBook(), map[source]*part{}
		for i := range all.Services {
			p := partOf(all, i)
			parts[p.source] = p
		}
		if delta, _ := book.update(parts); delta.Empty() {
			b.Fatal("there is nothing")
		}
	}
}

// partOf is what one service of a large snapshot asks for.
func partOf(s Snapshot, i int) *part {
	service := s.Services[i]
	s.Services, s.Slices = s.Services[i:i+1], s.Slices[i:i+1]
	return &part{source: source{ofService, service.Namespace, service.Name}, rules: claimed(s, nil),
		checks: healthChecks(s)}
}

// changes are a book of many services, and what an endpoint that goes or comes at one of them asks
// for.
func changes(services int) (b *book, of source, less, all func() *part) {
	const one = 777
	more, fewer := largeSnapshot(services), largeSnapshot(services)
	fewer.Slices[one].Endpoints = fewer.Slices[one].Endpoints[1:]
	b = newBook()
	parts := map[source]*part{}
	for i := range more.Services {
		p := partOf(more, i)
		parts[p.source] = p
	}
	b.update(parts)
	return b, partOf(more, one).source, func() *part { return partOf(fewer, one) },
		func() *part { return partOf(more, one) }
}

// BenchmarkDecideOneChange is one endpoint that goes or comes among 50,000, from the objects to the
// delta.
func BenchmarkDecideOneChange(b *testing.B) {
	book, of, less, all := changes(10_000)
	for i := 0; b.Loop(); i++ {
		next := less
		if i%2 == 1 {
			next = all
		}
		if delta, _ := book.update(map[source]*part{of: next()}); len(delta.SetChains) != 1 {
			b.Fatalf("%d chains change", len(delta.SetChains))
		}
	}
}

// BenchmarkOneChange is one endpoint that goes or comes among 5,000, from the objects to the
// kernel.
func BenchmarkOneChange(b *testing.B) {
	kernel := inNamespace(b)
	book, of, less, all := changes(inKernel)
	if err := kernel.replace(book.rules); err != nil {
		b.Fatal(err)
	}
	for i := 0; b.Loop(); i++ {
		next := less
		if i%2 == 1 {
			next = all
		}
		delta, _ := book.update(map[source]*part{of: next()})
		if err := kernel.change(delta); err != nil {
			b.Fatal(err)
		}
	}
}
