package services

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/storage"
	"github.com/barque/barque/raftstore"
)

func policy(p corev1.IPFamilyPolicy) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.IPFamilyPolicy = &p }
}

func families(f ...corev1.IPFamily) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.IPFamilies = f }
}

func ports(p ...corev1.ServicePort) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.Ports = p }
}

func local(s *corev1.Service) {
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
}

func unselected(s *corev1.Service) { s.Spec.Selector = nil }

// nodePorts returns the node ports of a Service, in the order of its ports.
func nodePorts(s *corev1.Service) []int32 {
	var out []int32
	for _, p := range s.Spec.Ports {
		out = append(out, p.NodePort)
	}
	return out
}

// cause is the field of the first cause of an error, or its code.
func cause(err error) string {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil || len(status.Status().Details.Causes) == 0 {
		return fmt.Sprint(err)
	}
	return status.Status().Details.Causes[0].Field
}

const (
	v4 = corev1.IPv4Protocol
	v6 = corev1.IPv6Protocol
)

func TestCreate(t *testing.T) {
	nodePort, loadBalancer := typed(corev1.ServiceTypeNodePort), typed(corev1.ServiceTypeLoadBalancer)
	for name, c := range map[string]struct {
		with     []func(*corev1.Service)
		ips      int
		families []corev1.IPFamily
		ports    int    // node ports that are taken
		refused  string // field
	}{
		"cluster IP": {nil, 1, []corev1.IPFamily{v4}, 0, ""},
		"headless":   {[]func(*corev1.Service){at("None")}, 0, []corev1.IPFamily{v4}, 0, ""},
		"headless, no selector": {[]func(*corev1.Service){at("None"), unselected}, 0, []corev1.IPFamily{v4, v6}, 0,
			""},
		"external name":         {[]func(*corev1.Service){typed(corev1.ServiceTypeExternalName)}, 0, nil, 0, ""},
		"asked for":             {[]func(*corev1.Service){at("10.43.0.9")}, 1, []corev1.IPFamily{v4}, 0, ""},
		"with leading zeros":    {[]func(*corev1.Service){at("010.043.000.009")}, 0, nil, 0, "spec.clusterIPs[0]"},
		"outside":               {[]func(*corev1.Service){at("192.0.2.1")}, 0, nil, 0, "spec.clusterIPs"},
		"the network's":         {[]func(*corev1.Service){at("10.43.0.0")}, 0, nil, 0, "spec.clusterIPs"},
		"the broadcast address": {[]func(*corev1.Service){at("10.43.0.15")}, 0, nil, 0, "spec.clusterIPs"},
		"that of kubernetes":    {[]func(*corev1.Service){at("10.43.0.1")}, 0, nil, 0, "spec.clusterIPs"},
		"taken":                 {[]func(*corev1.Service){at("10.43.0.7")}, 0, nil, 0, "spec.clusterIPs"},
		"a gateway's":           {[]func(*corev1.Service){at("10.43.0.8")}, 0, nil, 0, "spec.clusterIPs"},
		"other family":          {[]func(*corev1.Service){families(v6)}, 0, nil, 0, "spec.ipFamilies[0]"},
		"address of the other":  {[]func(*corev1.Service){at("fd00::1")}, 0, nil, 0, "spec.clusterIPs[0]"},
		"both, required": {[]func(*corev1.Service){policy(corev1.IPFamilyPolicyRequireDualStack)}, 0, nil, 0,
			"spec.ipFamilyPolicy"},
		"both, preferred": {[]func(*corev1.Service){policy(corev1.IPFamilyPolicyPreferDualStack)}, 1,
			[]corev1.IPFamily{v4}, 0, ""},
		"both, without a policy": {[]func(*corev1.Service){families(v4, v6)}, 0, nil, 0, "spec.ipFamilyPolicy"},
		"node ports": {[]func(*corev1.Service){nodePort, ports(port("a", 80, "", 0), port("b", 81, "", 0))},
			1, []corev1.IPFamily{v4}, 2, ""},
		"one for two protocols": {
			[]func(*corev1.Service){nodePort, ports(port("a", 53, "TCP", 0), port("b", 53, "UDP", 0))}, 1,
			[]corev1.IPFamily{v4}, 1, ""},
		"asked for and shared": {
			[]func(*corev1.Service){nodePort, ports(port("a", 53, "TCP", 0), port("b", 53, "UDP", 30003))}, 1,
			[]corev1.IPFamily{v4}, 1, ""},
		"taken port": {
			[]func(*corev1.Service){nodePort, ports(port("a", 80, "", 0), port("b", 81, "", 30001))}, 0, nil, 0,
			"spec.ports[1].nodePort"},
		"port outside": {[]func(*corev1.Service){nodePort, ports(port("a", 80, "", 31000))}, 0, nil, 0,
			"spec.ports[0].nodePort"},
		"health check": {[]func(*corev1.Service){loadBalancer, local}, 1, []corev1.IPFamily{v4}, 2, ""},
		"no ports for balancers": {
			[]func(*corev1.Service){loadBalancer,
				func(s *corev1.Service) { s.Spec.AllocateLoadBalancerNodePorts = ptr.To(false) }}, 1,
			[]corev1.IPFamily{v4}, 0, ""},
	} {
		for _, dryRun := range [][]string{nil, {metav1.DryRunAll}} {
			t.Run(fmt.Sprint(name, dryRun), func(t *testing.T) {
				s := alone(t)
				if _, err := s.create(t.Context(),
					service("first", nodePort, at("10.43.0.7"), ports(port("", 80, "", 30001)))); err != nil {
					t.Fatal(err)
				}
				gateway := &networkingv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Name: "10.43.0.8"},
					Spec: networkingv1.IPAddressSpec{
						ParentRef: &networkingv1.ParentReference{Group: "gateway.networking.k8s.io",
							Resource: "gateways",
							Name:     "g", Namespace: "ns"}}}
				if _, err := s.ips.Create(request.WithNamespace(t.Context(), ""), gateway, nil,
					&metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
				got, err := s.create(t.Context(), service("s", c.with...), dryRun...)
				if c.refused != "" {
					if !apierrors.IsInvalid(err) || cause(err) != c.refused {
						t.Errorf("got %v, want %s to be refused", err, c.refused)
					}
					got = nil
				} else if err != nil {
					t.Fatal(err)
				}
				if got != nil {
					h := holdingsOf(got)
					if len(h.addresses) != c.ips || len(h.ports) != c.ports ||
						!slices.Equal(got.Spec.IPFamilies, c.families) {
						t.Errorf("got %v, %v, node ports %v", got.Spec.ClusterIPs, got.Spec.IPFamilies, nodePorts(got))
					}
				}
				seen := s.wantConsistent(t)
				if stored := len(seen.services) == 2; stored != (got != nil && dryRun == nil) {
					t.Errorf("stored: %v", stored)
				}
			})
		}
	}
}

func TestDualStack(t *testing.T) {
	s := alone(t, dualStack)
	ctx := t.Context()
	for i, c := range []struct { // first those that request an address
		name     string
		with     []func(*corev1.Service)
		families []corev1.IPFamily
	}{
		{"by an address", []func(*corev1.Service){at("fd00:43::7")}, []corev1.IPFamily{v6}},
		{"by both",
			[]func(*corev1.Service){at("fd00:43::8", "10.43.0.8"), policy(corev1.IPFamilyPolicyRequireDualStack)},
			[]corev1.IPFamily{v6, v4}},
		{"default", nil, []corev1.IPFamily{v4}},
		{"second only", []func(*corev1.Service){families(v6)}, []corev1.IPFamily{v6}},
		{"preferred", []func(*corev1.Service){policy(corev1.IPFamilyPolicyPreferDualStack)}, []corev1.IPFamily{v4, v6}},
		{"required", []func(*corev1.Service){policy(corev1.IPFamilyPolicyRequireDualStack), families(v6)},
			[]corev1.IPFamily{v6, v4}},
	} {
		got, err := s.create(ctx, service(fmt.Sprint("f", i), c.with...))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if !slices.Equal(got.Spec.IPFamilies, c.families) || len(got.Spec.ClusterIPs) != len(c.families) ||
			got.Spec.ClusterIP != got.Spec.ClusterIPs[0] {
			t.Errorf("%s: %v of %v", c.name, got.Spec.ClusterIPs, got.Spec.IPFamilies)
		}
		for i, ip := range got.Spec.ClusterIPs {
			if a, _ := parseAddress(ip); familyOf(a) != got.Spec.IPFamilies[i] {
				t.Errorf("%s: %s is no %s", c.name, ip, got.Spec.IPFamilies[i])
			}
		}
	}
	s.wantConsistent(t)

	if _, err := s.create(ctx, service("s")); err != nil {
		t.Fatal(err)
	}
	both, err := s.update(ctx, "s", policy(corev1.IPFamilyPolicyPreferDualStack))
	if err != nil || len(both.Spec.ClusterIPs) != 2 || !slices.Equal(both.Spec.IPFamilies, []corev1.IPFamily{v4, v6}) {
		t.Errorf("after an update to both families: %+v, %v", both, err)
	}
	if _, err := s.update(ctx, "s",
		func(o *corev1.Service) { o.Spec.ClusterIPs, o.Spec.IPFamilies = o.Spec.ClusterIPs[:1], nil }); cause(
		err) != "spec.ipFamilyPolicy" {
		t.Errorf("the second address is gone without a policy: %v", err)
	}
	s.wantConsistent(t)
	single, err := s.update(ctx, "s", policy(corev1.IPFamilyPolicySingleStack))
	if err != nil || !slices.Equal(single.Spec.ClusterIPs, both.Spec.ClusterIPs[:1]) ||
		!slices.Equal(single.Spec.IPFamilies, []corev1.IPFamily{v4}) {
		t.Errorf("after an update to one family: %+v, %v", single, err)
	}
	s.wantConsistent(t)
}

// A cluster that gets its second family leaves the Services that would have liked it as they are.
func TestPreferredFamiliesStay(t *testing.T) {
	one := alone(t)
	if _, err := one.create(t.Context(), service("s", policy(corev1.IPFamilyPolicyPreferDualStack))); err != nil {
		t.Fatal(err)
	}
	two := newServer(t, one.backend, dualStack)
	got, err := two.update(t.Context(), "s", func(o *corev1.Service) { o.Labels = map[string]string{"a": "b"} })
	if err != nil || len(got.Spec.ClusterIPs) != 1 {
		t.Errorf("after an update of something else: %+v, %v", got, err)
	}
	got, err = two.update(t.Context(), "s", policy(corev1.IPFamilyPolicyRequireDualStack))
	if err != nil || len(got.Spec.ClusterIPs) != 2 {
		t.Errorf("after an update to both: %+v, %v", got, err)
	}
	two.wantConsistent(t)
}

func TestUpdate(t *testing.T) {
	nodePort, clusterIP, external := typed(corev1.ServiceTypeNodePort), typed(corev1.ServiceTypeClusterIP),
		typed(corev1.ServiceTypeExternalName)
	two := ports(port("a", 80, "", 30001), port("b", 81, "", 30002))
	for name, c := range map[string]struct {
		old    []func(*corev1.Service)
		change func(*corev1.Service)
		ips    int
		ports  []int32 // that it has; 0 stands for any
	}{
		"nothing": {[]func(*corev1.Service){nodePort, two}, func(*corev1.Service) {}, 1, []int32{30001, 30002}},
		"replaced": {[]func(*corev1.Service){nodePort, two, at("10.43.0.9")}, func(s *corev1.Service) {
			s.Spec = service("s", nodePort, ports(port("b", 82, "", 0), port("c", 80, "", 0))).Spec
		}, 1, []int32{30002, 0}},
		"moved port": {[]func(*corev1.Service){nodePort, two}, func(s *corev1.Service) {
			s.Spec.Ports = []corev1.ServicePort{port("a", 80, "", 0), port("b", 81, "", 30001)}
		}, 1, []int32{0, 30001}},
		"one port less": {[]func(*corev1.Service){nodePort, two},
			func(s *corev1.Service) { s.Spec.Ports = s.Spec.Ports[:1] }, 1, []int32{30001}},
		"to cluster IP":    {[]func(*corev1.Service){nodePort, two}, clusterIP, 1, []int32{}},
		"to external name": {[]func(*corev1.Service){nodePort, two}, external, 0, []int32{}},
		"to node port":     {nil, nodePort, 1, []int32{0}},
		"from external": {[]func(*corev1.Service){external},
			func(s *corev1.Service) { s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeNodePort, "" }, 1,
			[]int32{0}},
		"from headless": {[]func(*corev1.Service){at("None")},
			func(s *corev1.Service) { s.Labels = map[string]string{"x": "y"} }, 0, []int32{}},
		"needs a check": {[]func(*corev1.Service){typed(corev1.ServiceTypeLoadBalancer)}, local, 1, []int32{0, 0}},
		"no check now": {[]func(*corev1.Service){typed(corev1.ServiceTypeLoadBalancer), local},
			func(s *corev1.Service) {
				s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
			}, 1, []int32{0}},
	} {
		t.Run(name, func(t *testing.T) {
			s := alone(t)
			old, err := s.create(t.Context(), service("s", c.old...))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.update(t.Context(), "s", c.change, metav1.DryRunAll); err != nil {
				t.Fatal("dry run: ", err)
			}
			s.wantConsistent(t)
			got, err := s.update(t.Context(), "s", c.change)
			if err != nil {
				t.Fatal(err)
			}
			h := holdingsOf(got)
			if len(h.addresses) != c.ips || len(h.ports) != len(c.ports) {
				t.Errorf("has %v and %v", h.addresses, h.ports)
			}
			for i, want := range c.ports {
				if want != 0 && got.Spec.Ports[i].NodePort != want {
					t.Errorf("node ports %v, want %v", nodePorts(got), c.ports)
				}
			}
			if len(holdingsOf(old).addresses) == 1 && c.ips == 1 && got.Spec.ClusterIP != old.Spec.ClusterIP {
				t.Errorf("the address was %s and is %s", old.Spec.ClusterIP, got.Spec.ClusterIP)
			}
			s.wantConsistent(t)
		})
	}
}

// The values of a Service are free when it is gone, with every way of deletion.
func TestDeleteFrees(t *testing.T) {
	s := alone(t)
	ctx := t.Context()
	for name, with := range map[string]func(*corev1.Service){
		"plain":     func(*corev1.Service) {},
		"finalizer": func(o *corev1.Service) { o.Finalizers = []string{"example.com/f"} },
	} {
		if _, err := s.create(ctx,
			service(name, typed(corev1.ServiceTypeNodePort), at("10.43.0.9"), ports(port("", 80, "", 30005)),
				with)); err != nil {
			t.Fatal(name, err)
		}
		if err := s.delete(ctx, name); err != nil {
			t.Fatal(err)
		}
		if name == "finalizer" {
			if seen := s.wantConsistent(t); len(seen.addresses) != 1 {
				t.Error("a Service that is being deleted has lost its address")
			}
			if _, err := s.update(ctx, name, func(o *corev1.Service) { o.Finalizers = nil }); err != nil {
				t.Fatal(err)
			}
		}
		if seen := s.wantConsistent(t); len(seen.services)+len(seen.addresses) != 0 {
			t.Errorf("%s: %d Services and %d IPAddresses are left", name, len(seen.services), len(seen.addresses))
		}
	}
}

// The addresses of the API and of cluster DNS are reserved.
func TestReservedAddresses(t *testing.T) {
	s := alone(t)
	ctx := t.Context()
	for address, whose := range map[string]string{"10.43.0.1": "default/kubernetes",
		"10.43.0.10": "kube-system/kube-dns"} {
		if _, err := s.create(ctx, service("asks", at(address))); err == nil ||
			!strings.Contains(err.Error(), "it is that of the Service "+whose) {
			t.Errorf("for %s: %v", address, err)
		}
	}
	for range 11 { // all there are
		if _, err := s.create(ctx, service(fmt.Sprint("s", len(s.wantConsistent(t).services)))); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.create(ctx, service("last")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.create(ctx, service("more")); !apierrors.IsInternalError(err) ||
		!strings.Contains(err.Error(), "range is full") {
		t.Errorf("of a full range: %v", err)
	}
	seen := s.wantConsistent(t)
	for address, whose := range s.reserved {
		if _, taken := seen.addresses[address]; taken {
			t.Errorf("somebody has the address of %s", whose)
		}
	}
}

func TestServiceCIDRs(t *testing.T) {
	s := alone(t)
	ctx := t.Context()
	s.addCIDR(t, "more", "10.50.0.0/29")
	if got, err := s.create(ctx, service("asked", at("10.50.0.6"))); err != nil || got.Spec.ClusterIP != "10.50.0.6" {
		t.Errorf("an address of another ServiceCIDR: %v", err)
	}
	unready := s.addCIDR(t, "unready", "10.60.0.0/28")
	unready.Status.Conditions = []metav1.Condition{
		{Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionFalse, Reason: "Terminating",
			LastTransitionTime: metav1.Now()}}
	s.writeCIDR(t, unready)
	if _, err := s.create(ctx, service("unready", at("10.60.0.6"))); cause(err) != "spec.clusterIPs" {
		t.Errorf("an address of a ServiceCIDR that is not ready: %v", err)
	}
	for i := range 12 + 5 {
		if _, err := s.create(ctx, service(fmt.Sprint("s", i))); err != nil {
			t.Fatal(i, err)
		}
	}
	if _, err := s.create(ctx, service("full")); err == nil {
		t.Error("both ranges are full")
	}
	unready.Status.Conditions[0].Status = metav1.ConditionTrue
	s.writeCIDR(t, unready)
	if _, err := s.create(ctx, service("now-ready")); err != nil {
		t.Error(err)
	}
	s.wantConsistent(t)

	// The default one counts as it is written down, once it is.
	s.addCIDR(t, DefaultCIDR, "10.70.0.0/28")
	if err := s.delete(ctx, "s0"); err != nil {
		t.Fatal(err)
	}
	if got, err := s.create(ctx, service("in-default")); err != nil ||
		!strings.HasPrefix(got.Spec.ClusterIP, "10.70.0.") {
		t.Errorf("got %v, %v", got, err)
	}
}

// writeCIDR writes a ServiceCIDR with its status, past the API.
func (s *server) writeCIDR(t *testing.T, o *networkingv1.ServiceCIDR) {
	t.Helper()
	put, err := s.cfg.ServiceCIDRs.Put(t.Context(), o.Name, o.DeepCopy())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.backend.Commit(t.Context(), raftstore.Txn{Ops: []raftstore.Op{put}}); err != nil {
		t.Fatal(err)
	}
}

// overtaken is a backend at which another write comes in between.
type overtaken struct {
	storage.Backend
	by func() // before the next write of a Service
}

func (o *overtaken) Commit(ctx context.Context, txn raftstore.Txn) (raftstore.Result, error) {
	if by := o.by; by != nil && len(txn.Require) > 1 {
		o.by = nil
		by()
	}
	return o.Backend.Commit(ctx, txn)
}

// An address is not given from a ServiceCIDR whose deletion has begun since it was chosen. If the
// server had chosen it, it chooses another one.
func TestNoAddressFromAServiceCIDRThatGoes(t *testing.T) {
	for _, wanted := range []string{"", "10.50.0.6"} {
		store := raftstore.NewInMemory(raftstore.Options{})
		t.Cleanup(func() { _ = store.Close() })
		backend := &overtaken{Backend: store}
		s := newServer(t, backend)
		if wanted == "" {
			s.addCIDR(t, DefaultCIDR, "10.60.0.0/32") // has no address
		}
		going := s.addCIDR(t, "going", "10.50.0.0/28")
		backend.by = func() {
			deleting(going)
			s.writeCIDR(t, going)
			s.addCIDR(t, "other", "10.70.0.0/28")
		}
		o := service("s")
		if wanted != "" {
			at(wanted)(o)
		}
		got, err := s.create(t.Context(), o)
		if wanted != "" && cause(err) != "spec.clusterIPs" {
			t.Errorf("with %s: %v", wanted, err)
		}
		if wanted == "" && (err != nil || !strings.HasPrefix(got.Spec.ClusterIP, "10.70.0.")) {
			t.Errorf("got %+v, %v", got, err)
		}
		if backend.by != nil {
			t.Error("nothing came in between")
		}
		s.wantConsistent(t)
	}
}

// A value that another server takes in the last moment is replaced, unless the client wants it, and
// admission does not run again: it has charged quotas.
func TestOvertaken(t *testing.T) {
	for name, change := range map[string]func(*corev1.Service){
		"chosen": func(*corev1.Service) {}, "address": at("10.43.0.7"), "port": ports(port("", 80, "", 30007)),
	} {
		for _, by := range []string{"create", "update"} {
			t.Run(name+" "+by, func(t *testing.T) {
				store := raftstore.NewInMemory(raftstore.Options{})
				t.Cleanup(func() { _ = store.Close() })
				backend := &overtaken{Backend: store}
				// Half of the free values are taken in between.
				s, other := newServer(t, backend, few), newServer(t, store, few)
				if by == "update" {
					if _, err := s.create(t.Context(),
						service("s", typed(corev1.ServiceTypeExternalName))); err != nil {
						t.Fatal(err)
					}
				}
				backend.by = func() {
					for i := range 4 {
						o := service(fmt.Sprint("o", i), typed(corev1.ServiceTypeNodePort),
							at(fmt.Sprint("10.43.0.", 2+2*i)), ports(port("", 80, "", int32(30000+2*i))))
						if i == 3 {
							at("10.43.0.7")(o)
							o.Spec.Ports[0].NodePort = 30007
						}
						if _, err := other.create(t.Context(), o); err != nil {
							t.Error(err)
						}
					}
				}
				asked := 0
				admit := func(context.Context, runtime.Object) error { asked++; return nil }
				o := s.defaulted(service("s", typed(corev1.ServiceTypeNodePort), change))
				var out runtime.Object
				var err error
				if by == "create" {
					out, err = s.services.Create(inNamespace(t.Context()), o, admit, &metav1.CreateOptions{})
				} else {
					out, _, err = s.services.Update(inNamespace(t.Context()), "s", rest.DefaultUpdatedObjectInfo(o),
						nil,
						func(ctx context.Context, o, _ runtime.Object) error { return admit(ctx, o) }, false,
						&metav1.UpdateOptions{})
				}
				if name != "chosen" && !apierrors.IsInvalid(err) {
					t.Errorf("got %v, %v", out, err)
				}
				if name == "chosen" && err != nil {
					t.Error(err)
				}
				if asked != 1 {
					t.Errorf("admission was asked %d times", asked)
				}
				s.wantConsistent(t)
			})
		}
	}
}

// few has eight node ports.
func few(c *Config) {
	c.FirstPort, c.LastPort = 30000, 30007
}

// Writers on several servers want all of a small range at once. Each gets a value of its own as
// long as there are some.
func TestServersDoNotFight(t *testing.T) {
	store := raftstore.NewInMemory(raftstore.Options{})
	t.Cleanup(func() { _ = store.Close() })
	var wg sync.WaitGroup
	for n := range 4 {
		s := newServer(t, store)
		for w := range 3 {
			wg.Go(func() {
				name := fmt.Sprintf("s%d-%d", n, w)
				for range 25 {
					if _, err := s.create(t.Context(), service(name, typed(corev1.ServiceTypeNodePort))); err != nil {
						t.Error(err)
						return
					}
					if err := s.delete(t.Context(), name); err != nil {
						t.Error(err)
					}
				}
				if _, err := s.create(t.Context(), service(name, typed(corev1.ServiceTypeNodePort))); err != nil {
					t.Error(err)
				}
			})
		}
	}
	wg.Wait()
	if seen := newServer(t, store).wantConsistent(t); len(seen.services) != 12 {
		t.Errorf("%d Services", len(seen.services))
	}
}
