package translate

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kvalidation "k8s.io/apimachinery/pkg/util/validation"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/barque/barque/edge/gateway/model"
	"github.com/barque/barque/internal/balancers"
)

// poolClass is a class whose Gateways have addresses of a pool.
func poolClass(name string) *gatewayv1.GatewayClass {
	return &gatewayv1.GatewayClass{ObjectMeta: metav1.ObjectMeta{Name: "pooled"}, Spec: gatewayv1.GatewayClassSpec{
		ControllerName: GatewayController,
		ParametersRef:  &gatewayv1.ParametersReference{Group: "edge.barque.io", Kind: "AddressPool", Name: name},
	}}
}

// withAddresses is a Gateway of the namespace a with a listener at port 80.
func withAddresses(t *testing.T, more string) *gatewayv1.Gateway {
	return read[gatewayv1.Gateway](t, "metadata: {name: g, namespace: a, uid: u}\nspec:\n"+
		"  listeners: [{name: l, port: 80, protocol: HTTP}]\n"+more)
}

func TestRequested(t *testing.T) {
	odd := poolClass("lan")
	odd.Spec.ParametersRef.Kind = "ConfigMap"
	w := world{classes: map[string]*gatewayv1.GatewayClass{"pooled": poolClass("lan"), "odd": odd}}
	addresses := func(all ...string) (out []netip.Addr) {
		for _, a := range all {
			out = append(out, netip.MustParseAddr(a))
		}
		return out
	}
	for _, c := range []struct {
		name, spec string
		want       Request
		own        bool
	}{
		{"nothing", "  gatewayClassName: barque", Request{More: true}, false},
		{"no value", "  gatewayClassName: barque\n  addresses: [{type: IPAddress}]", Request{More: true}, false},
		{"labels alone", "  gatewayClassName: barque\n  infrastructure: {labels: {a: b}}", Request{More: true}, false},
		{"an address", "  gatewayClassName: barque\n  addresses: [{value: 192.0.2.1}]",
			Request{Addresses: addresses("192.0.2.1")}, true},
		{"an address, and any other", "  gatewayClassName: barque\n  addresses: [{value: 192.0.2.1}, {}]",
			Request{Addresses: addresses("192.0.2.1"), More: true}, true},
		{"both families", "  gatewayClassName: barque\n  addresses: [{value: '2001:db8::1'}, {value: 192.0.2.1}]",
			Request{Addresses: addresses("2001:db8::1", "192.0.2.1")}, true},
		{"a pool", "  gatewayClassName: barque\n  infrastructure: {annotations: {barque.io/address-pool: lan}}",
			Request{More: true, Pools: "lan"}, true},
		{"the annotation of Services", "  gatewayClassName: barque\n  infrastructure: {annotations: " +
			"{barque.io/load-balancer-ips: '192.0.2.1, 2001:db8::1'}}",
			Request{Addresses: addresses("192.0.2.1", "2001:db8::1")}, true},
		{"the pool of the class", "  gatewayClassName: pooled\n  addresses: [{}]", Request{More: true, Pools: "lan"},
			true},
		{"another pool than the class", "  gatewayClassName: pooled\n" +
			"  infrastructure: {annotations: {barque.io/address-pool: other}}", Request{More: true, Pools: "other"}, true},
		{"a class with other parameters", "  gatewayClassName: odd",
			Request{More: true, Problem: "spec.parametersRef of the GatewayClass odd names no AddressPool"}, true},
		{"no address", "  gatewayClassName: barque\n  addresses: [{value: one}]",
			Request{Problem: `spec.addresses: "one" is no IP address`}, true},
		{"two of a family", "  gatewayClassName: barque\n  addresses: [{value: 192.0.2.1}, {value: 192.0.2.2}]",
			Request{Addresses: addresses("192.0.2.1"), Problem: "spec.addresses names two addresses of the family IPv4, " +
				"192.0.2.2 among them: a Gateway gets one of each family"}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, own := Requested(w, withAddresses(t, c.spec))
			if own != c.own || !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %+v, %v, want %+v, %v", got, own, c.want, c.own)
			}
		})
	}
}

// FuzzRequested: whatever a Gateway names, it asks for one address of each family at most, and for
// none that has a zone.
func FuzzRequested(f *testing.F) {
	f.Add("192.0.2.1", "2001:db8::1", "lan")
	f.Add("::ffff:192.0.2.1", "192.0.2.1", "")
	f.Add("fe80::1%eth0", "1.2.3.4,5.6.7.8", ",")
	f.Fuzz(func(t *testing.T, one, two, pool string) {
		g := withAddresses(t, "  gatewayClassName: barque")
		g.Spec.Addresses = []gatewayv1.GatewaySpecAddress{{Value: one}, {Value: two}}
		g.Spec.Infrastructure = &gatewayv1.GatewayInfrastructure{
			Annotations: map[gatewayv1.AnnotationKey]gatewayv1.AnnotationValue{
				balancers.PoolAnnotation:      gatewayv1.AnnotationValue(pool),
				balancers.AddressesAnnotation: gatewayv1.AnnotationValue(two)}}
		got, own := Requested(world{}, g)
		if !own && len(got.Addresses) > 0 {
			t.Errorf("%+v of a Gateway at the nodes' addresses", got)
		}
		families := map[bool]int{}
		for _, a := range got.Addresses {
			if families[a.Is4()]++; families[a.Is4()] > 1 || a.Zone() != "" || a.Is4In6() {
				t.Errorf("%+v", got)
			}
		}
	})
}

func TestServiceName(t *testing.T) {
	long := strings.Repeat("long.", 30) + "name"
	seen := map[string]bool{}
	for _, c := range []struct{ name, class, want string }{
		{"web", "barque", "web-barque"},
		{"1web", "barque", ""}, {"web.example", "barque", ""}, {"web-example", "barque", ""}, {long, "barque", ""},
		{long + "s", "barque", ""}, {long, "other", ""},
	} {
		g := &gatewayv1.Gateway{ObjectMeta: metav1.ObjectMeta{Name: c.name, Namespace: "a"}}
		g.Spec.GatewayClassName = gatewayv1.ObjectName(c.class)
		got := ServiceName(g).Name
		if wrong := kvalidation.IsDNS1035Label(got); len(wrong) > 0 || seen[got] || c.want != "" && got != c.want {
			t.Errorf("%s: %s, %v", c.name, got, wrong)
		}
		seen[got] = true
		s := Service(g, Request{}, []int32{80}, nil)
		for key, value := range s.Labels {
			wrong := append(kvalidation.IsQualifiedName(key), kvalidation.IsValidLabelValue(value)...)
			if len(wrong) > 0 {
				t.Errorf("%s: the label %s=%s: %v", c.name, key, value, wrong)
			}
		}
		for key := range s.Annotations {
			if wrong := kvalidation.IsQualifiedName(key); len(wrong) > 0 {
				t.Errorf("%s: the annotation %s: %v", c.name, key, wrong)
			}
		}
	}
}

// TestServicePorts: they are those of the listeners of the Gateway and of the sets that it allows,
// whether they have a certificate or not.
func TestServicePorts(t *testing.T) {
	g := setGateway(t, "All", "  - {name: one, port: 443, protocol: HTTPS, tls: {}}\n"+
		"  - {name: two, port: 443, protocol: HTTPS, hostname: two, tls: {}}\n  - {name: odd, port: 80, protocol: UDP}\n"+
		"  - {name: far, port: 22, protocol: HTTP}\n")
	w := world{sets: []*gatewayv1.ListenerSet{setOf(t, "b", "s", 1, "  - {name: more, port: 8080, protocol: HTTP}\n")}}
	if got := ServicePorts(w, ports, g); !slices.Equal(got, []int32{443, 8080}) {
		t.Error(got)
	}
	g.Spec.AllowedListeners = nil
	if got := ServicePorts(w, ports, g); !slices.Equal(got, []int32{443}) {
		t.Errorf("without sets: %v", got)
	}
}

// TestService: the Service has the Gateway's metadata. Those of others stay, and earlier ones of
// the Gateway go.
func TestService(t *testing.T) {
	g := withAddresses(t, "  gatewayClassName: barque\n  infrastructure:\n    labels: {team: x, old: y}\n"+
		"    annotations: {barque.io/address-pool: lan, note: z, gone: z}\n")
	request, _ := Requested(world{}, g)
	first := Service(g, request, []int32{80, 443}, nil)
	if first.Name != "g-barque" || first.Namespace != "a" || !metav1.IsControlledBy(first, g) ||
		first.OwnerReferences[0].BlockOwnerDeletion != nil {
		t.Errorf("%+v", first.ObjectMeta)
	}
	if !balancers.OfGateway(first) || first.Labels["team"] != "x" ||
		first.Labels[gatewayv1.GatewayNameLabelKey] != "g" ||
		first.Annotations["note"] != "z" || first.Annotations[balancers.PoolAnnotation] != "lan" {
		t.Errorf("labels %v, annotations %v", first.Labels, first.Annotations)
	}
	if p := first.Spec.Ports; len(p) != 2 || p[0].Name != "port-80" || p[1].Port != 443 ||
		len(first.Spec.Selector) > 0 {
		t.Errorf("%+v", first.Spec)
	}
	first.ResourceVersion, first.Spec.ClusterIP = "7", "10.0.0.1" // of the API
	if again := Service(g, request, []int32{80, 443}, first); !reflect.DeepEqual(again, first) {
		t.Errorf("without a change:\n%+v\n%+v", again, first)
	}
	first.Labels["other"], first.Annotations["other"] = "1", "1"
	first.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24"}
	delete(g.Spec.Infrastructure.Labels, "old")
	delete(g.Spec.Infrastructure.Annotations, "gone")
	g.Spec.Infrastructure.Labels[balancers.ProxyLabel] = "else"
	next := Service(g, request, []int32{80}, first)
	if next.Labels["old"] != "" || next.Annotations["gone"] != "" || next.Labels["other"] != "1" ||
		next.Annotations["other"] != "1" || next.Labels["team"] != "x" || !balancers.OfGateway(next) {
		t.Errorf("labels %v, annotations %v", next.Labels, next.Annotations)
	}
	if len(next.Spec.Ports) != 1 || next.Spec.LoadBalancerSourceRanges != nil || next.Spec.ClusterIP != "10.0.0.1" {
		t.Errorf("%+v", next.Spec)
	}
	if Renewed(first, next) {
		t.Error("it would be made anew without need")
	}
}

// TestFamilies: the families of a Service are those of the named addresses. The API lets no Service
// change them.
func TestFamilies(t *testing.T) {
	four, six := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	made := func(r Request) *corev1.Service { return Service(withAddresses(t, ""), r, []int32{80}, nil) }
	for _, c := range []struct {
		name    string
		request Request
		want    string
	}{
		{"a pool", Request{More: true, Pools: "lan"}, "PreferDualStack []"},
		{"one", Request{Addresses: []netip.Addr{six}}, "SingleStack [IPv6]"},
		{"one and any", Request{Addresses: []netip.Addr{six}, More: true}, "PreferDualStack [IPv6]"},
		{"both", Request{Addresses: []netip.Addr{six, four}}, "RequireDualStack [IPv6 IPv4]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := made(c.request)
			if got := fmt.Sprint(*s.Spec.IPFamilyPolicy, " ", s.Spec.IPFamilies); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
	have := made(Request{More: true, Pools: "lan"})
	have.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol} // of the API
	for _, c := range []struct {
		name    string
		request Request
		renewed bool
	}{
		{"the same", Request{More: true, Pools: "lan"}, false},
		{"a named one of the first family", Request{Addresses: []netip.Addr{four}, More: true}, false},
		{"a named one of the second", Request{Addresses: []netip.Addr{six}, More: true}, true},
		{"one only", Request{Addresses: []netip.Addr{four}}, true},
	} {
		if got := Renewed(have, Service(withAddresses(t, ""), c.request, []int32{80}, have)); got != c.renewed {
			t.Errorf("%s: made anew: %v", c.name, got)
		}
	}
}

// given is the Service of a Gateway with an address of a pool.
func given(g *gatewayv1.Gateway, address string, numbers ...int32) *corev1.Service {
	s := Service(g, Request{}, numbers, nil)
	s.Status.Conditions = []metav1.Condition{{Type: balancers.PoolCondition, Status: metav1.ConditionTrue}}
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{
		balancers.Ingress(netip.MustParseAddr(address), balancers.Wanted(s))}
	return s
}

// TestOwnAddresses: Gateways with different addresses do not conflict, whatever they have on a
// port. One without an address yet is served nowhere.
func TestOwnAddresses(t *testing.T) {
	one, two := withAddresses(t, "  gatewayClassName: barque\n  addresses: [{value: 192.0.2.1}]"),
		withAddresses(t, "  gatewayClassName: barque\n  addresses: [{value: 192.0.2.2}]")
	two.Name, two.UID = "h", "v"
	two.Spec.Listeners[0].Protocol = gatewayv1.HTTPSProtocolType
	two.Spec.Listeners[0].TLS = &gatewayv1.ListenerTLSConfig{
		CertificateRefs: []gatewayv1.SecretObjectReference{{Name: "c"}}}
	w := world{
		gateways: map[types.NamespacedName]*gatewayv1.Gateway{key("a", "g"): one, key("a", "h"): two},
		services: map[types.NamespacedName]*corev1.Service{key("a", "g-barque"): given(one, "192.0.2.1", 80)},
	}
	taken := ports
	taken.Taken = map[uint16]string{80: "the Service default/web"}
	taken.Modes = Modes(w, ports, []*gatewayv1.Gateway{two, one})
	if taken.Modes[80] {
		t.Error("a Gateway with its own address decides how connections of the nodes' port begin")
	}
	route := &gatewayv1.HTTPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "r"}}
	route.Spec.ParentRefs = []gatewayv1.ParentReference{{Name: "g"}, {Name: "h"}}
	for _, c := range []struct {
		name  string
		of    *gatewayv1.Gateway
		want  []netip.Addr
		waits bool
	}{
		{"with an address", one, []netip.Addr{netip.MustParseAddr("192.0.2.1")}, false},
		{"without one yet", two, nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := TranslateGateway(w, taken, c.of)
			l := got.Listeners[0]
			if have := reasons(l.Conditions); !l.Serves || l.Waits != c.waits || !strings.Contains(have,
				"Accepted=True/Accepted Conflicted=False/NoConflicts") || !slices.Equal(l.Model.Addresses, c.want) {
				t.Errorf("%s: %+v", have, l)
			}
		})
	}
	want := []model.Place{{Port: 80, Hosts: []string{""}, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}}
	if got := TranslateHTTPRoute(w, taken, route); !reflect.DeepEqual(got.Model.Places, want) {
		t.Errorf("places %+v, want %+v", got.Model.Places, want)
	}
	// A port that the Service does not have yet, and a Service of somebody else.
	one.Spec.Listeners[0].Port = 8080
	if l := TranslateGateway(w, taken, one).Listeners[0]; !l.Waits {
		t.Errorf("at a port without an address: %+v", l)
	}
	one.Spec.Listeners[0].Port, one.UID = 80, "other"
	if l := TranslateGateway(w, taken, one).Listeners[0]; !l.Waits {
		t.Errorf("at the address of another Gateway's Service: %+v", l)
	}
}

// TestClassStatus: a class may name a pool, and nothing else.
func TestClassStatus(t *testing.T) {
	namespaced, group := poolClass("lan"), poolClass("lan")
	namespaced.Spec.ParametersRef.Namespace = new(gatewayv1.Namespace)
	group.Spec.ParametersRef.Group = ""
	for _, c := range []struct {
		name  string
		class *gatewayv1.GatewayClass
		want  string
	}{
		{"plain", &gatewayv1.GatewayClass{}, "Accepted=True/Accepted"},
		{"a pool", poolClass("lan"), "Accepted=True/Accepted"},
		{"a missing pool", poolClass("none"), "Accepted=False/InvalidParameters"},
		{"a namespace", namespaced, "Accepted=False/InvalidParameters"},
		{"another group", group, "Accepted=False/InvalidParameters"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := ClassStatus(c.class, func(pool string) bool { return pool == "lan" })
			if have := reasons(got); have != c.want {
				t.Errorf("got %s, want %s", have, c.want)
			}
		})
	}
}
