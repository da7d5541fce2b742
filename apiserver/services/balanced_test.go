package services

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/barque/barque/internal/balancers"
	"github.com/barque/barque/raftstore"
)

// balance changes a status, as a load balancer does.
func (s *server) balance(ctx context.Context, name string, change func(*corev1.Service)) (*corev1.Service, error) {
	info := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		o := old.DeepCopyObject().(*corev1.Service)
		change(o)
		return o, nil
	})
	out, _, err := s.status.Update(inNamespace(ctx), name, info, nil, nil, false, &metav1.UpdateOptions{})
	if err != nil {
		return nil, err
	}
	return out.(*corev1.Service), nil
}

// given makes a status with addresses that Barque has given, with all ports of the Service.
func given(condition string, ips ...string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Status = corev1.ServiceStatus{
			Conditions: []metav1.Condition{{Type: condition, Status: metav1.ConditionTrue, Reason: "Assigned"}}}
		for _, ip := range ips {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress,
				balancers.Ingress(netip.MustParseAddr(ip), balancers.Wanted(s)))
		}
	}
}

// randomStatus gives a Service a few of a few addresses, of both kinds.
func randomStatus(rng *rand.Rand, s *corev1.Service) {
	condition := []string{balancers.PoolCondition, balancers.PoolCondition, balancers.NodesCondition}[rng.IntN(3)]
	var ips []string
	for i := range 3 {
		if rng.IntN(3) == 0 {
			ips = append(ips, fmt.Sprintf("192.0.2.%d", i+1))
		}
	}
	if s.Annotations = nil; rng.IntN(2) == 0 {
		s.Annotations = map[string]string{balancers.ShareAnnotation: "key"}
	}
	given(condition, ips...)(s)
}

func balancer(ports ...corev1.ServicePort) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		if len(ports) > 0 {
			s.Spec.Ports = ports
		}
	}
}

func sharing(key string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Annotations = map[string]string{balancers.ShareAnnotation: key} }
}

// want makes Services and gives them statuses in turn. The last one is to be refused for a cause,
// or to get it for "".
func wantLast(t *testing.T, cause string, statuses []func(*corev1.Service), services ...*corev1.Service) {
	t.Helper()
	s := alone(t)
	for i, o := range services {
		if _, err := s.create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		_, err := s.balance(t.Context(), o.Name, statuses[i])
		switch last := i == len(services)-1; {
		case last && cause != "":
			if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), cause) {
				t.Errorf("got %v, want %q", err, cause)
			}
		case err != nil:
			t.Errorf("%s: %v", o.Name, err)
		}
	}
	s.wantConsistent(t)
}

func TestAddressesOutside(t *testing.T) {
	pool, nodes := given(balancers.PoolCondition, "192.0.2.1"), given(balancers.NodesCondition, "192.0.2.1")
	foreign := func(s *corev1.Service) {
		pool(s)
		s.Status.Conditions = nil
	}
	http, https := port("http", 80, corev1.ProtocolTCP, 0), port("https", 443, corev1.ProtocolTCP, 0)
	quic := port("quic", 80, corev1.ProtocolUDP, 0)
	local := func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal }
	other := func(s *corev1.Service) { s.Spec.Selector = map[string]string{"b": "c"} }
	type list = []func(*corev1.Service)
	for name, c := range map[string]struct {
		cause    string
		statuses list
		a, b     list
	}{
		"one address for two": {"the address 192.0.2.1 is in use by the Service ns/a", list{pool, pool},
			list{balancer(http)}, list{balancer(https)}},
		"another address": {"", list{pool, given(balancers.PoolCondition, "192.0.2.2")}, list{balancer(http)},
			list{balancer(http)}},
		"shared": {"", list{pool, pool}, list{balancer(http), sharing("k")},
			list{balancer(https), sharing("k")}},
		"shared protocols": {"", list{pool, pool}, list{balancer(http), sharing("k")},
			list{balancer(quic), sharing("k")}},
		"shared port": {"the port 80/TCP of the address 192.0.2.1 is in use by the Service ns/a",
			list{pool, pool}, list{balancer(http), sharing("k")}, list{balancer(http), sharing("k")}},
		"another key": {"in use by the Service ns/a", list{pool, pool}, list{balancer(http), sharing("k")},
			list{balancer(https), sharing("l")}},
		"another policy": {"in use by the Service ns/a", list{pool, pool}, list{balancer(http), sharing("k")},
			list{balancer(https), sharing("k"), local}},
		"local, the same": {"", list{pool, pool}, list{balancer(http), sharing("k"), local},
			list{balancer(https), sharing("k"), local}},
		"local, others": {"in use by the Service ns/a", list{pool, pool},
			list{balancer(http), sharing("k"), local}, list{balancer(https), sharing("k"), local, other}},
		"nodes, other ports": {"", list{nodes, nodes}, list{balancer(http)}, list{balancer(https)}},
		"nodes, one port": {"the port 80/TCP of the nodes is in use by the Service ns/a", list{nodes, nodes},
			list{balancer(http)}, list{balancer(http)}},
		"nodes, protocols": {"", list{nodes, nodes}, list{balancer(http)}, list{balancer(quic)}},
		"of others":        {"", list{foreign, foreign}, list{balancer(http)}, list{balancer(http)}},
	} {
		t.Run(name, func(t *testing.T) { wantLast(t, c.cause, c.statuses, service("a", c.a...), service("b", c.b...)) })
	}
}

// What a Service loses, by whichever write, another one can have at once.
func TestAddressesOutsideAreFreed(t *testing.T) {
	for name, loses := range map[string]func(context.Context, *server) error{
		"deleted": func(ctx context.Context, s *server) error { return s.delete(ctx, "a") },
		"another type": func(ctx context.Context, s *server) error {
			_, err := s.update(ctx, "a", typed(corev1.ServiceTypeClusterIP))
			return err
		},
		"another status": func(ctx context.Context, s *server) error {
			_, err := s.balance(ctx, "a", func(o *corev1.Service) { o.Status = corev1.ServiceStatus{} })
			return err
		},
	} {
		for _, condition := range []string{balancers.PoolCondition, balancers.NodesCondition} {
			t.Run(name+" "+condition, func(t *testing.T) {
				s := alone(t)
				for _, n := range []string{"a", "b"} {
					if _, err := s.create(t.Context(), service(n, balancer())); err != nil {
						t.Fatal(err)
					}
				}
				if _, err := s.balance(t.Context(), "a", given(condition, "192.0.2.1")); err != nil {
					t.Fatal(err)
				}
				if _, err := s.balance(t.Context(), "b", given(condition, "192.0.2.1")); err == nil {
					t.Fatal("two Services have it")
				}
				owner := ""
				if condition == balancers.PoolCondition {
					owner = "ns/a"
				}
				s.wantOwner(t, "192.0.2.1", owner)
				if err := loses(t.Context(), s); err != nil {
					t.Fatal(err)
				}
				s.wantOwner(t, "192.0.2.1", "")
				if _, err := s.balance(t.Context(), "b", given(condition, "192.0.2.1")); err != nil {
					t.Error(err)
				}
				s.wantConsistent(t)
			})
		}
	}
}

// wantOwner looks for the Service that has an address of a pool.
func (s *server) wantOwner(t *testing.T, address, want string) {
	t.Helper()
	view, err := s.backend.View(t.Context(), raftstore.ViewOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if owner, err := BalancedOwner(view, netip.MustParseAddr(address)); err != nil || owner != want {
		t.Errorf("%s belongs to %q, %v; want %q", address, owner, err, want)
	}
}

// Repair gives a Service the reservation that it lacks, and frees one without a Service after a
// while.
func TestRepairOfAddressesOutside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := alone(t)
		for _, o := range []*corev1.Service{service("a", balancer(port("x", 80, "", 0)), sharing("k")),
			service("b", balancer(port("y", 81, "", 0)), sharing("k")), service("c", balancer())} {
			if _, err := s.create(t.Context(), o); err != nil {
				t.Fatal(err)
			}
		}
		for name, status := range map[string]func(*corev1.Service){
			"a": given(balancers.PoolCondition, "192.0.2.1"), "b": given(balancers.PoolCondition, "192.0.2.1"),
			"c": given(balancers.NodesCondition, "192.0.2.9"),
		} {
			if _, err := s.balance(t.Context(), name, status); err != nil {
				t.Fatal(err)
			}
		}
		view, err := s.backend.View(t.Context(), raftstore.ViewOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var txn raftstore.Txn
		for _, prefix := range []string{balancedPrefix, takenPrefix} {
			each(view, prefix, func(item raftstore.Item) {
				txn.Ops = append(txn.Ops, raftstore.Op{Kind: raftstore.Delete, Key: item.Key})
			})
		}
		gone := []byte(`{"owners":{"ns/gone/1":["80/TCP"]}}`)
		txn.Ops = append(txn.Ops, raftstore.Op{Kind: raftstore.Put, Key: balancedPrefix + "192.0.2.7", Value: gone},
			raftstore.Op{Kind: raftstore.Put, Key: takenPrefix + "99/TCP", Value: []byte("ns/gone/1")})
		if len(txn.Ops) != 4 {
			t.Fatalf("%d operations", len(txn.Ops))
		}
		if _, err := s.backend.Commit(t.Context(), txn); err != nil {
			t.Fatal(err)
		}
		r := &repair{a: s.Allocator, now: time.Now, recorder: silent{}, logger: quiet}
		var errs []error
		for range 3 {
			errs = append(errs, r.once(t.Context()))
			<-time.After(leakAge)
		}
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		s.wantConsistent(t)
	})
}
