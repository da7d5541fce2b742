package allocator

import (
	"context"
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/apiserver/storage"
)

func owners(o Owners[int32]) func(context.Context) (Owners[int32], error) {
	return func(context.Context) (Owners[int32], error) { return o, nil }
}

func TestRepair(t *testing.T) {
	const age = time.Minute
	now := time.Unix(0, 0)
	pool := newPorts(t, newBackend(t), 30000, 30099)
	ctx := t.Context()
	for port, owner := range map[int32]string{30001: "ns/kept/1", 30002: "ns/leaked/2", 30003: "ns/old/3"} {
		if err := pool.Reserve(ctx, port, owner); err != nil {
			t.Fatal(err)
		}
	}
	services := Owners[int32]{
		30001: {"ns/kept/1"},
		30003: {"ns/new/4"},          // the reservation names an earlier Service
		30004: {"ns/lost/5"},         // no reservation
		30005: {"ns/a/6", "ns/b/7"},  // two Services
		31000: {"ns/out-of-range/8"}, // the range was larger once
		30006: {},                    // nobody
	}
	repair := NewRepair(pool, age, func() time.Time { return now })
	round := func() Report[int32] {
		t.Helper()
		report, err := repair.Once(ctx, owners(services))
		if err != nil {
			t.Fatal(err)
		}
		return report
	}

	first := round()
	if len(first.Freed) != 0 {
		t.Errorf("freed %v at first sight", first.Freed)
	}
	if !slices.Equal(first.Reserved, []int32{30004}) {
		t.Errorf("reserved %v, want 30004", first.Reserved)
	}
	if len(first.Conflicts) != 2 || first.Conflicts[30003] == nil || first.Conflicts[30005] == nil {
		t.Errorf("conflicts: %v", first.Conflicts)
	}
	if len(first.OutOfRange) != 1 || first.OutOfRange[31000] == nil {
		t.Errorf("out of range: %v", first.OutOfRange)
	}

	now = now.Add(age / 2)
	if early := round(); len(early.Freed) != 0 {
		t.Errorf("freed %v after half the leak age", early.Freed)
	}
	now = now.Add(age / 2)
	if late := round(); !slices.Equal(late.Freed, []int32{30002}) {
		t.Errorf("freed %v, want 30002", late.Freed)
	}
	if after := round(); len(after.Conflicts) != 1 {
		t.Errorf("conflicts after the repair: %v", after.Conflicts)
	}
	if err := pool.Reserve(ctx, 30003, "ns/new/4"); err != nil {
		t.Errorf("the Service that has 30003 does not hold it: %v", err)
	}
	if err := pool.Reserve(ctx, 30001, "ns/other/9"); !errors.Is(err, ErrAllocated) {
		t.Errorf("a kept reservation is gone: %v", err)
	}
}

// TestRepairStartsAnewWhenAReservationChanges: the value that leaked may have been reserved again
// since, by a request that is still under way.
func TestRepairStartsAnewWhenAReservationChanges(t *testing.T) {
	now := time.Unix(0, 0)
	pool := newPorts(t, newBackend(t), 30000, 30099)
	ctx := t.Context()
	repair := NewRepair(pool, time.Minute, func() time.Time { return now })
	reserve := func(owner string) {
		t.Helper()
		if err := pool.Reserve(ctx, 30001, owner); err != nil {
			t.Fatal(err)
		}
	}
	round := func() []int32 {
		t.Helper()
		report, err := repair.Once(ctx, owners(nil))
		if err != nil {
			t.Fatal(err)
		}
		return report.Freed
	}
	reserve("ns/a/1")
	round()
	if err := pool.Release(ctx, 30001, "ns/a/1"); err != nil {
		t.Fatal(err)
	}
	reserve("ns/b/2")
	now = now.Add(time.Hour)
	if freed := round(); len(freed) != 0 {
		t.Errorf("freed %v, which was reserved again", freed)
	}
	now = now.Add(time.Hour)
	if freed := round(); len(freed) != 1 {
		t.Errorf("freed %v, want the leak", freed)
	}
}

func TestRepairIsFenced(t *testing.T) {
	now := time.Unix(0, 0)
	pool := newPorts(t, newBackend(t), 30000, 30099) // always in term 1
	if err := pool.Reserve(t.Context(), 30001, "ns/a/1"); err != nil {
		t.Fatal(err)
	}
	repair := NewRepair(pool, time.Second, func() time.Time { return now })
	old := storage.WithLeaderTerm(t.Context(), 9)
	if _, err := repair.Once(old, owners(nil)); err != nil {
		t.Fatal(err)
	}
	now = now.Add(time.Hour)
	if _, err := repair.Once(old, owners(nil)); err == nil {
		t.Error("a deposed leader freed a reservation")
	}
	if err := pool.Reserve(t.Context(), 30001, "ns/b/2"); !errors.Is(err, ErrAllocated) {
		t.Errorf("the reservation is gone: %v", err)
	}
}

func TestOwnersOf(t *testing.T) {
	services := []corev1.Service{
		{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", UID: "1"},
			Spec: corev1.ServiceSpec{
				ClusterIP: "10.43.0.7", ClusterIPs: []string{"10.43.0.7", "fd00::7"},
				Ports:               []corev1.ServicePort{{Port: 53, Protocol: "UDP", NodePort: 30053}, {Port: 53, Protocol: "TCP", NodePort: 30053}, {Port: 80}},
				HealthCheckNodePort: 30100,
			},
		},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "headless", UID: "2"}, Spec: corev1.ServiceSpec{ClusterIP: "None", ClusterIPs: []string{"None"}}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "same", UID: "3"}, Spec: corev1.ServiceSpec{ClusterIP: "10.43.0.7"}},
	}
	addresses, ports := OwnersOf(services)
	if want := (Owners[netip.Addr]{addr("10.43.0.7"): {"ns/a/1", "ns/same/3"}, addr("fd00::7"): {"ns/a/1"}}); !reflect.DeepEqual(addresses, want) {
		t.Errorf("addresses: %v, want %v", addresses, want)
	}
	if want := (Owners[int32]{30053: {"ns/a/1"}, 30100: {"ns/a/1"}}); !reflect.DeepEqual(ports, want) {
		t.Errorf("ports: %v, want %v", ports, want)
	}
}
