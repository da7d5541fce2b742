package pool

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/barque/barque/internal/balancers"
)

func pool(name string, change func(*Pool), ranges ...string) Pool {
	p := Pool{Name: name}
	for _, text := range ranges {
		r, err := ParseRange(text)
		if err != nil {
			panic(err)
		}
		p.Ranges = append(p.Ranges, r)
	}
	if change != nil {
		change(&p)
	}
	return p
}

func service(name string, change ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}},
	}}
	for _, c := range change {
		c(s)
	}
	return s
}

// has gives a Service addresses of pools.
func has(ips ...string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Status.Conditions = []metav1.Condition{{Type: balancers.PoolCondition, Status: metav1.ConditionTrue}}
		for _, ip := range ips {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress,
				balancers.Ingress(netip.MustParseAddr(ip), balancers.Wanted(s)))
		}
	}
}

func annotated(key, value string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		if s.Annotations == nil {
			s.Annotations = map[string]string{}
		}
		s.Annotations[key] = value
	}
}

func on(port int32) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Spec.Ports = []corev1.ServicePort{{Port: port, Protocol: corev1.ProtocolTCP}}
	}
}

func dual(policy corev1.IPFamilyPolicy) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Spec.IPFamilies, s.Spec.IPFamilyPolicy = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}, &policy
	}
}

func local(s *corev1.Service) {
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
}

func selecting(app string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.Selector = map[string]string{"app": app} }
}

func TestParseRange(t *testing.T) {
	for text, want := range map[string]string{
		"192.0.2.0/30":            "192.0.2.0-192.0.2.3",
		"192.0.2.7/32":            "192.0.2.7-192.0.2.7",
		"192.0.2.10-192.0.2.20":   "192.0.2.10-192.0.2.20",
		"192.0.2.10 - 192.0.2.20": "192.0.2.10-192.0.2.20",
		"2001:db8::/127":          "2001:db8::-2001:db8::1",
		"192.0.2.5/24":            "has bits behind its prefix; write 192.0.2.0/24 for the whole network, or 192.0.2.5/32",
		"192.0.2.9-192.0.2.1":     "ends before it begins",
		"192.0.2.9-2001:db8::":    "both ends must be of one family",
		"192.0.2.9":               "neither a CIDR",
		"x-192.0.2.1":             `"x" is no address`,
		"192.0.2.1-":              `"" is no address`,
		"::ffff:192.0.2.0/120":    "IPv4 address in IPv6 notation",
		"fe80::1%eth0-fe80::2":    "without a zone",
	} {
		r, err := ParseRange(text)
		if got := r.String(); err == nil && got != want || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %s, %v; want %s", text, got, err, want)
		}
	}
}

func TestChoose(t *testing.T) {
	share := annotated(balancers.ShareAnnotation, "k")
	ask := func(ips string) func(*corev1.Service) { return annotated(balancers.AddressesAnnotation, ips) }
	from := func(pools string) func(*corev1.Service) { return annotated(balancers.PoolAnnotation, pools) }
	manual := func(p *Pool) { p.Manual = true }
	faulty := func(p *Pool) { p.Faulty = true }
	selector := func(text string) labels.Selector {
		s, err := labels.Parse(text)
		if err != nil {
			panic(err)
		}
		return s
	}
	four := pool("four", nil, "192.0.2.0/30")
	type services = []*corev1.Service
	for name, c := range map[string]struct {
		s      *corev1.Service
		pools  []Pool
		others services
		want   string // the addresses, and the error behind a ";"
	}{
		"the first": {service("a"), []Pool{four}, nil, "192.0.2.0"},
		"the lowest free": {service("a"), []Pool{four},
			services{service("b", has("192.0.2.0")), service("c", has("192.0.2.2"))}, "192.0.2.1"},
		"it keeps": {service("a", has("192.0.2.3")), []Pool{four}, nil, "192.0.2.3"},
		"itself is no other": {service("a", has("192.0.2.0")), []Pool{four}, services{service("a", has("192.0.2.0"))},
			"192.0.2.0"},
		"it moves": {service("a", has("198.51.100.1")), []Pool{four}, nil, "192.0.2.0"},
		"a faulty pool keeps": {service("a", has("192.0.2.3")), []Pool{pool("f", faulty, "192.0.2.0/30")}, nil,
			"192.0.2.3"},
		"a faulty pool gives nothing": {service("a"), []Pool{pool("f", faulty, "192.0.2.0/30")}, nil,
			";NoPool no AddressPool with IPv4 addresses is ready and for this Service"},
		"full": {service("a"), []Pool{pool("one", nil, "192.0.2.0/32")}, services{service("b", has("192.0.2.0"))},
			";PoolExhausted no IPv4 address is free in the pool one; add addresses to it, or make another AddressPool"},
		"of a foreign status": {service("a"), []Pool{pool("one", nil, "192.0.2.0/32")},
			services{service("b", has("192.0.2.0"), func(s *corev1.Service) { s.Status.Conditions = nil })},
			";PoolExhausted no IPv4 address is free in the pool one; add addresses to it, or make another AddressPool"},
		"the next pool": {service("a"),
			[]Pool{pool("one", nil, "192.0.2.0/32"), pool("two", nil, "198.51.100.0/32")},
			services{service("b", has("192.0.2.0"))}, "198.51.100.0"},
		"priority": {service("a"),
			[]Pool{four, pool("first", func(p *Pool) { p.Priority = 1 }, "198.51.100.0/30")}, nil, "198.51.100.0"},
		"manual": {service("a"), []Pool{pool("m", manual, "192.0.2.0/30")}, nil,
			";NoPool no AddressPool with IPv4 addresses is ready and for this Service"},
		"manual, named": {service("a", from("m")), []Pool{four, pool("m", manual, "198.51.100.0/30")}, nil,
			"198.51.100.0"},
		"manual, asked": {service("a", ask("198.51.100.2")), []Pool{four, pool("m", manual, "198.51.100.0/30")},
			nil, "198.51.100.2"},
		"named, it moves": {service("a", from("m"), has("192.0.2.1")),
			[]Pool{four, pool("m", manual, "198.51.100.0/30")}, nil, "198.51.100.0"},
		"named, none": {service("a", from("x")), []Pool{four}, nil,
			";NoPool no AddressPool x with IPv4 addresses is ready and for this Service"},
		"selected": {service("a"),
			[]Pool{pool("s", func(p *Pool) { p.Services = selector("app=x") }, "192.0.2.0/30")}, nil,
			";NoPool no AddressPool with IPv4 addresses is ready and for this Service"},
		"namespace": {service("a"),
			[]Pool{pool("s", func(p *Pool) { p.Namespaces = selector("team=x") }, "192.0.2.0/30"),
				pool("t", func(p *Pool) { p.Namespaces = selector("team=y") }, "198.51.100.0/30")}, nil,
			"198.51.100.0"},
		"asked": {service("a", ask("192.0.2.2")), []Pool{four}, nil, "192.0.2.2"},
		"asked by the field": {service("a", func(s *corev1.Service) { s.Spec.LoadBalancerIP = "192.0.2.2" }),
			[]Pool{four}, nil, "192.0.2.2"},
		"asked, in use": {service("a", ask("192.0.2.2")), []Pool{four}, services{service("b", has("192.0.2.2"))},
			";AddressInUse the address 192.0.2.2 is in use by the Service ns/b"},
		"asked, a node's": {service("a", ask("192.0.2.1")), []Pool{four}, nil,
			";AddressInUse the address 192.0.2.1 is that of the node n1"},
		"asked, it keeps": {service("a", has("192.0.2.0"), ask("192.0.2.2")), []Pool{four},
			services{service("b", has("192.0.2.2"))},
			"192.0.2.0;AddressInUse the address 192.0.2.2 is in use by the Service ns/b"},
		"asked, elsewhere": {service("a", ask("203.0.113.1")), []Pool{four}, nil,
			";AddressNotInPool the requested address 203.0.113.1 is in no AddressPool that is for this Service"},
		"asked twice": {service("a", ask("192.0.2.1,192.0.2.2")), []Pool{four}, nil,
			";InvalidRequest the annotation barque.io/load-balancer-ips asks for two addresses of the family IPv4: a Service gets one"},
		"asked nonsense": {service("a", ask("x")), []Pool{four}, nil,
			`;InvalidRequest the annotation barque.io/load-balancer-ips: "x" is no IP address`},
		"another family": {service("a", ask("2001:db8::1")), []Pool{four}, nil,
			";InvalidRequest the annotation barque.io/load-balancer-ips asks for 2001:db8::1, and IPv6 is not among the Service's ipFamilies"},
		"both families": {service("a", dual(corev1.IPFamilyPolicyRequireDualStack)),
			[]Pool{pool("d", nil, "192.0.2.0/30", "2001:db8::/64")}, nil, "192.0.2.0 2001:db8::"},
		"both asked": {service("a", dual(corev1.IPFamilyPolicyPreferDualStack), ask("2001:db8::7, 192.0.2.2")),
			[]Pool{pool("d", nil, "192.0.2.0/30", "2001:db8::/64")}, nil, "192.0.2.2 2001:db8::7"},
		"both required": {service("a", dual(corev1.IPFamilyPolicyRequireDualStack)), []Pool{four}, nil,
			";NoPool no AddressPool with IPv6 addresses is ready and for this Service"},
		"both preferred": {service("a", dual(corev1.IPFamilyPolicyPreferDualStack)), []Pool{four}, nil,
			"192.0.2.0"},
		"shared": {service("a", share), []Pool{four},
			services{service("b", on(443), has("192.0.2.2"), share)}, "192.0.2.2"},
		"not shared": {service("a"), []Pool{four}, services{service("b", on(443), has("192.0.2.0"), share)},
			"192.0.2.2"},
		"one port": {service("a", share), []Pool{four}, services{service("b", has("192.0.2.2"), share)},
			"192.0.2.0"},
		"one port, asked": {service("a", share, ask("192.0.2.2")), []Pool{four},
			services{service("b", has("192.0.2.2"), share)},
			";AddressInUse the port 80/TCP of the address 192.0.2.2 is in use by the Service ns/b, which shares it"},
		"another key": {service("a", annotated(balancers.ShareAnnotation, "l"), ask("192.0.2.2")), []Pool{four},
			services{service("b", on(443), has("192.0.2.2"), share)},
			";AddressInUse the address 192.0.2.2 is in use by the Service ns/b, whose annotation barque.io/allow-shared-ip is not l"},
		"another policy": {service("a", share, local, selecting("x"), ask("192.0.2.2")), []Pool{four},
			services{service("b", on(443), has("192.0.2.2"), share)},
			";AddressInUse the address 192.0.2.2 is in use by the Service ns/b; to share it, both need the same externalTrafficPolicy, and with Local the same selector"},
		"local, shared": {service("a", share, local, selecting("x")), []Pool{four},
			services{service("b", on(443), has("192.0.2.2"), share, local, selecting("x"))}, "192.0.2.2"},
		"local, other pods": {service("a", share, local, selecting("x")), []Pool{four},
			services{service("b", on(443), has("192.0.2.2"), share, local, selecting("y"))}, "192.0.2.0"},
	} {
		t.Run(name, func(t *testing.T) {
			in := Cluster{Pools: c.pools, Services: c.others,
				Reserved: map[netip.Addr]string{netip.MustParseAddr("192.0.2.1"): "the node n1"}}
			if name == "the lowest free" {
				in.Reserved = nil
			}
			choice, err := Choose(c.s, labels.Set{"team": "y"}, in)
			if got := told(choice, err); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// told is a choice and its error as one text.
func told(c Choice, err error) string {
	var addresses []string
	for _, a := range c.Addresses {
		addresses = append(addresses, a.String())
	}
	out := strings.Join(addresses, " ")
	var r *Refusal
	if errors.As(err, &r) {
		out += ";" + string(r.Reason) + " " + r.Message
	}
	return out
}

// TestChooseProperties has random Services choose one after the other, and change, in pools that
// are too small. No address is ever that of two Services that do not share it, a second choice
// changes nothing, and an address is refused only when none is free.
func TestChooseProperties(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 35))
		pools := []Pool{pool("a", nil, "192.0.2.0/30", "2001:db8::/126"),
			pool("b", func(p *Pool) { p.Priority, p.Manual = int32(rng.IntN(3)), rng.IntN(4) == 0 }, "198.51.100.0/31",
				"2001:db8:1::/127")}
		all := map[string]*corev1.Service{}
		for range 60 {
			name := fmt.Sprint("s", rng.IntN(9))
			if rng.IntN(5) == 0 {
				delete(all, name)
				continue
			}
			s := random(rng, name)
			if old := all[name]; old != nil {
				s.Status = old.Status
			}
			in := Cluster{Pools: pools}
			for _, o := range all {
				in.Services = append(in.Services, o)
			}
			choice, err := Choose(s, nil, in)
			if rng.IntN(2) == 0 {
				slices.Reverse(in.Services)
			}
			if again, againErr := Choose(s, nil, in); told(again, againErr) != told(choice, err) {
				t.Fatalf("seed %d: the order of Services matters: %s, then %s", seed, told(choice, err),
					told(again, againErr))
			}
			had := balancers.HeldBy(s)
			s.Status = corev1.ServiceStatus{}
			var ips []string
			for _, a := range choice.Addresses {
				ips = append(ips, a.String())
			}
			has(ips...)(s)
			all[name] = s
			check(t, seed, all)
			if second, secondErr := Choose(s, nil, in); told(second, secondErr) != told(choice, err) {
				t.Fatalf("seed %d: %s has %s, and then %s", seed, name, told(choice, err), told(second, secondErr))
			}
			if err == nil && len(s.Annotations) == 0 && len(had) > 0 && len(choice.Addresses) > 0 &&
				had[0].Address.Is4() && had[0].Address != choice.Addresses[0] && alone(all, had[0].Address) {
				t.Fatalf("seed %d: %s has moved from %v to %v without need", seed, name, had[0].Address,
					choice.Addresses[0])
			}
		}
	}
}

func alone(all map[string]*corev1.Service, a netip.Addr) bool {
	for _, s := range all {
		if slices.ContainsFunc(balancers.HeldBy(s), func(h balancers.Held) bool { return h.Address == a }) {
			return false
		}
	}
	return true
}

func random(rng *rand.Rand, name string) *corev1.Service {
	s := service(name, on(80+rng.Int32N(3)))
	if rng.IntN(3) == 0 {
		dual(
			[]corev1.IPFamilyPolicy{corev1.IPFamilyPolicyPreferDualStack,
				corev1.IPFamilyPolicyRequireDualStack}[rng.IntN(2)])(s)
	}
	if rng.IntN(3) == 0 {
		annotated(balancers.ShareAnnotation, []string{"k", "l"}[rng.IntN(2)])(s)
	}
	if rng.IntN(4) == 0 {
		annotated(balancers.AddressesAnnotation, fmt.Sprintf("192.0.2.%d", rng.IntN(4)))(s)
	}
	if rng.IntN(4) == 0 {
		local(s)
		selecting([]string{"x", "y"}[rng.IntN(2)])(s)
	}
	return s
}

func check(t *testing.T, seed uint64, all map[string]*corev1.Service) {
	t.Helper()
	for name, a := range all {
		for other, b := range all {
			if name >= other {
				continue
			}
			for _, x := range balancers.HeldBy(a) {
				for _, y := range balancers.HeldBy(b) {
					if x.Address != y.Address {
						continue
					}
					both := slices.ContainsFunc(x.Ports,
						func(p balancers.Port) bool { return slices.Contains(y.Ports, p) })
					if both || a.Annotations[balancers.ShareAnnotation] == "" ||
						b.Annotations[balancers.ShareAnnotation] == "" {
						t.Fatalf("seed %d: %s and %s have %v", seed, name, other, x.Address)
					}
				}
			}
		}
	}
}

func TestJudge(t *testing.T) {
	object := func(name string, age int, addresses ...string) *Object {
		return &Object{
			ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Unix(int64(1000-age), 0))},
			Spec:       Spec{Addresses: addresses}}
	}
	off := object("off", 1, "203.0.113.0/30")
	off.Spec.AutoAssign = ptr.To(false)
	off.Spec.ServiceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
	got := map[string]string{}
	for _, j := range Judge([]*Object{
		object("young", 1, "192.0.2.8-192.0.2.20"), object("old", 9, "192.0.2.0/28"),
		object("twice", 5, "198.51.100.0/24", "198.51.100.9/32"),
		object("pods", 5, "10.42.1.0/24"), object("bad", 5, "x", "2001:db8::/120"), off,
	}, map[netip.Prefix]string{netip.MustParsePrefix("10.42.0.0/16"): "pods"}) {
		got[j.Pool.Name] = j.Reason + ": " + j.Message
		if j.Pool.Faulty != (j.Reason != IsReady) {
			t.Errorf("%s: faulty is %t", j.Pool.Name, j.Pool.Faulty)
		}
		if j.Pool.Name == "off" &&
			(!j.Pool.Manual || !j.Pool.Services.Matches(labels.Set{"a": "b"}) ||
				j.Pool.Services.Matches(labels.Set{})) {
			t.Errorf("off is %+v", j.Pool)
		}
	}
	for name, want := range map[string]string{
		"old":   "Ready: The pool gives addresses",
		"off":   "Ready: The pool gives addresses",
		"young": "Overlaps: 192.0.2.8-192.0.2.20 overlaps 192.0.2.0-192.0.2.15 of the pool old, which is older",
		"twice": "Overlaps: 198.51.100.9-198.51.100.9 overlaps 198.51.100.0-198.51.100.255 of the same pool",
		"pods":  "ClusterRange: 10.42.1.0-10.42.1.255 overlaps 10.42.0.0/16, the addresses of pods",
		"bad":   `InvalidSpec: "x" is neither a CIDR such as 192.0.2.0/28 nor a range such as 192.0.2.10-192.0.2.20`,
	} {
		if got[name] != want {
			t.Errorf("%s: got %s, want %s", name, got[name], want)
		}
	}
}

func TestCount(t *testing.T) {
	p := pool("p", nil, "192.0.2.0/29", "2001:db8::/127")
	services := []*corev1.Service{service("a", has("192.0.2.1", "2001:db8::")), service("b", has("192.0.2.1")),
		service("c", has("198.51.100.1"))}
	reserved := map[netip.Addr]string{netip.MustParseAddr("192.0.2.7"): "a node",
		netip.MustParseAddr("203.0.113.1"): "a node"}
	if used, free := Count(p, services, reserved); used != 2 || free != 7 {
		t.Errorf("%d used, %d free", used, free)
	}
	p.Ranges[1] = Range{netip.MustParseAddr("2001:db8::"), netip.MustParseAddr("2001:db8:ffff::")}
	if used, free := Count(p, services, nil); used != 2 || free != 1<<63-1 {
		t.Errorf("%d used, %d free", used, free)
	}
}

// The example is a pool that gives addresses.
func TestExample(t *testing.T) {
	text, err := os.ReadFile("../../examples/address-pool.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var objects []*Object
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		o := &Object{}
		if err := yaml.UnmarshalStrict([]byte(document), o); err != nil {
			t.Fatal(err)
		}
		objects = append(objects, o)
	}
	for _, j := range Judge(objects, nil) {
		if j.Reason != IsReady || j.Pool.Size() == 0 {
			t.Errorf("%s: %s", j.Pool.Name, j.Message)
		}
	}
	if len(objects) != 2 {
		t.Errorf("%d pools", len(objects))
	}
}

// The definition is all that the cluster lays down, and describes just the fields that are read.
func TestDefinition(t *testing.T) {
	var d apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(Definition, &d); err != nil {
		t.Fatal(err)
	}
	if got := d.Spec.Group + "/" + d.Spec.Versions[0].Name + " " +
		d.Spec.Names.Plural; got != Resource.GroupVersion().String()+" "+Resource.Resource {
		t.Errorf("it defines %s", got)
	}
	spec := d.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties
	for i := range reflect.TypeFor[Spec]().NumField() {
		name, _, _ := strings.Cut(reflect.TypeFor[Spec]().Field(i).Tag.Get("json"), ",")
		if _, ok := spec[name]; !ok {
			t.Errorf("the definition lacks %s", name)
		}
		delete(spec, name)
	}
	for name := range spec {
		t.Errorf("nothing reads %s", name)
	}
}
