package services

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/apiserver/allocator"
)

// fakePool hands out values in order.
type fakePool[T comparable] struct {
	free  []T
	owner map[T]string
}

func (p *fakePool[T]) Allocate(_ context.Context, owner string) (T, error) {
	for _, v := range p.free {
		if p.owner[v] == "" {
			p.owner[v] = owner
			return v, nil
		}
	}
	var none T
	return none, allocator.ErrFull
}

func (p *fakePool[T]) Reserve(_ context.Context, v T, owner string) error {
	if p.owner[v] != "" {
		return fmt.Errorf("provided value %v %w", v, allocator.ErrAllocated)
	}
	p.owner[v] = owner
	return nil
}

func (p *fakePool[T]) Release(_ context.Context, v T, owner string) error {
	if p.owner[v] == owner {
		delete(p.owner, v)
	}
	return nil
}

func newAllocator() (*Allocator, *fakePool[netip.Addr], *fakePool[int32]) {
	addresses := &fakePool[netip.Addr]{owner: map[netip.Addr]string{}}
	for a := netip.MustParseAddr("10.43.0.2"); len(addresses.free) < 5; a = a.Next() {
		addresses.free = append(addresses.free, a)
	}
	ports := &fakePool[int32]{free: []int32{30000, 30001, 30002}, owner: map[int32]string{}}
	return &Allocator{addresses, ports, slog.New(slog.DiscardHandler)}, addresses, ports
}

func service(t corev1.ServiceType, nodePorts ...int32) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "s", UID: "u"}, Spec: corev1.ServiceSpec{Type: t}}
	for i, p := range nodePorts {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Port: int32(80 + i), NodePort: p})
	}
	return s
}

func TestCreate(t *testing.T) {
	headless := service(corev1.ServiceTypeClusterIP, 0)
	headless.Spec.ClusterIP = corev1.ClusterIPNone
	local := service(corev1.ServiceTypeLoadBalancer, 0)
	local.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	for _, c := range []struct {
		name  string
		s     *corev1.Service
		ip    string
		ports []int32 // as stored
		used  int     // node ports taken
	}{
		{"cluster IP", service(corev1.ServiceTypeClusterIP, 0), "10.43.0.2", []int32{0}, 0},
		{"headless", headless, "None", []int32{0}, 0},
		{"external name", service(corev1.ServiceTypeExternalName), "", nil, 0},
		{"node ports", service(corev1.ServiceTypeNodePort, 0, 0), "10.43.0.2", []int32{30000, 30001}, 2},
		{"asked-for ports go first", service(corev1.ServiceTypeNodePort, 0, 30000), "10.43.0.2", []int32{30001, 30000}, 2},
		{"one port for two protocols", service(corev1.ServiceTypeNodePort, 30002, 30002), "10.43.0.2", []int32{30002, 30002}, 1},
		{"health check", local, "10.43.0.2", []int32{30000}, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, addresses, ports := newAllocator()
			done, err := a.create(t.Context(), c.s, &metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			var got []int32
			for _, p := range c.s.Spec.Ports {
				got = append(got, p.NodePort)
			}
			if c.s.Spec.ClusterIP != c.ip || !slices.Equal(got, c.ports) || len(ports.owner) != c.used {
				t.Errorf("IP %q, ports %v, %d taken", c.s.Spec.ClusterIP, got, len(ports.owner))
			}
			done(t.Context(), false)
			if len(addresses.owner)+len(ports.owner) != 0 {
				t.Errorf("after a failed write: %v %v are taken", addresses.owner, ports.owner)
			}
		})
	}
}

func TestCreateRefusesWhatIsTaken(t *testing.T) {
	a, addresses, ports := newAllocator()
	ports.owner[30001] = "another"
	_, err := a.create(t.Context(), service(corev1.ServiceTypeNodePort, 0, 30001), &metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) || err.(apierrors.APIStatus).Status().Details.Causes[0].Field != "spec.ports[1].nodePort" {
		t.Errorf("got %v", err)
	}
	if len(addresses.owner) != 0 || len(ports.owner) != 1 {
		t.Errorf("the failed create keeps %v %v", addresses.owner, ports.owner)
	}
}

func TestDryRunTakesNothing(t *testing.T) {
	a, addresses, _ := newAllocator()
	if _, err := a.create(t.Context(), service(corev1.ServiceTypeClusterIP), &metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Fatal(err)
	}
	if len(addresses.owner) != 0 {
		t.Errorf("taken: %v", addresses.owner)
	}
}

func TestUpdateAndDeleteGiveBack(t *testing.T) {
	a, addresses, ports := newAllocator()
	old := service(corev1.ServiceTypeNodePort, 0, 0)
	done, err := a.create(t.Context(), old, &metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	done(t.Context(), true)

	fewer := old.DeepCopy()
	fewer.Spec.Ports = fewer.Spec.Ports[:1]
	done, err = a.update(t.Context(), fewer, old, &metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(ports.owner) != 2 {
		t.Error("a port was given back before the write")
	}
	done(t.Context(), true)
	if len(ports.owner) != 1 || len(addresses.owner) != 1 {
		t.Errorf("after dropping a port: %v %v", ports.owner, addresses.owner)
	}

	named := fewer.DeepCopy()
	named.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "x"}
	done, err = a.update(t.Context(), named, fewer, &metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	done(t.Context(), false)
	if len(ports.owner) != 1 || len(addresses.owner) != 1 {
		t.Errorf("a failed write gave back: %v %v", ports.owner, addresses.owner)
	}
	a.deleted(fewer, &metav1.DeleteOptions{})
	if len(ports.owner)+len(addresses.owner) != 0 {
		t.Errorf("after the delete: %v %v", ports.owner, addresses.owner)
	}
}
