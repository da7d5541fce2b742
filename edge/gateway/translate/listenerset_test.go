package translate

import (
	"maps"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/barque/barque/edge/gateway/model"
)

// setOf returns a set of the Gateway a/g, made at a second.
func setOf(t *testing.T, namespace, name string, second int64, listeners string) *gatewayv1.ListenerSet {
	s := read[gatewayv1.ListenerSet](t,
		"metadata: {name: "+name+", namespace: "+namespace+
			"}\nspec:\n  parentRef: {name: g, namespace: a}\n  listeners:\n"+listeners)
	s.CreationTimestamp = metav1.Unix(second, 0)
	return s
}

// setGateway is a Gateway that allows sets.
func setGateway(t *testing.T, from, listeners string) *gatewayv1.Gateway {
	return gatewayOf(t, listeners+"  allowedListeners: {namespaces: {from: "+from+"}}\n")
}

const accepted = "Accepted=True/Accepted Conflicted=False/NoConflicts ResolvedRefs=True/ResolvedRefs Programmed=True/Programmed"

func conflicted(reason string) string {
	return "Accepted=False/" + reason + " Conflicted=True/" + reason +
		" ResolvedRefs=True/ResolvedRefs Programmed=False/" + reason
}

// TestListenerSets: the listeners of the Gateway count first, then those of older sets.
func TestListenerSets(t *testing.T) {
	gateway := setGateway(t, "Same", "  - {name: one, port: 80, protocol: HTTP, hostname: one.example.com}\n")
	older := setOf(t, "a", "older", 1, `
  - {name: two, port: 80, protocol: HTTP, hostname: two.example.com}
  - {name: one, port: 80, protocol: HTTP, hostname: One.example.com}
  - {name: tcp, port: 80, protocol: TCP}
  - {name: udp, port: 80, protocol: UDP}
`)
	newer := setOf(t, "a", "newer", 2, "  - {name: two, port: 80, protocol: HTTP, hostname: two.example.com}\n")
	foreign := setOf(t, "b", "foreign", 0, "  - {name: two, port: 80, protocol: HTTP, hostname: two.example.com}\n")
	w := world{gateways: map[types.NamespacedName]*gatewayv1.Gateway{key("a", "g"): gateway},
		sets: []*gatewayv1.ListenerSet{newer, older, foreign}}
	none := "Accepted=False/UnsupportedProtocol Conflicted=False/NoConflicts ResolvedRefs=True/ResolvedRefs Programmed=False/Invalid"
	want := map[string]struct {
		set       string
		listeners []string
	}{
		"older": {"Accepted=True/ListenersNotValid Programmed=True/Programmed",
			[]string{accepted, conflicted("HostnameConflict"), conflicted("ProtocolConflict"), none}},
		"newer": {"Accepted=False/ListenersNotValid Programmed=False/ListenersNotValid",
			[]string{conflicted("HostnameConflict")}},
		"foreign": {"Accepted=False/NotAllowed Programmed=False/NotAllowed", nil},
	}
	sets := TranslateListenerSets(w, ports, gateway)
	if len(sets) != len(want) {
		t.Fatalf("%d sets, want %d", len(sets), len(want))
	}
	for i := range sets {
		s := &sets[i]
		t.Run(s.Set.Name, func(t *testing.T) {
			one := TranslateListenerSet(w, ports, gateway, s.Set)
			for _, got := range []*ListenerSet{s, &one} {
				if have := reasons(got.Conditions(Missing{})); have != want[s.Set.Name].set {
					t.Errorf("got %s, want %s", have, want[s.Set.Name].set)
				}
				var listeners []string
				for _, l := range got.Listeners {
					listeners = append(listeners, reasons(l.Conditions))
				}
				if !slices.Equal(listeners, want[s.Set.Name].listeners) {
					t.Errorf("\n got %s\nwant %s", strings.Join(listeners, "\n     "),
						strings.Join(want[s.Set.Name].listeners, "\n     "))
				}
			}
		})
	}
	// The Gateway's own listener has no conflict.
	translated := TranslateGateway(w, ports, gateway)
	if have := reasons(translated.Listeners[0].Conditions); have != accepted {
		t.Error(have)
	}
	if have := reasons(
		sets[1].Conditions(Missing{Reason: gatewayv1.GatewayReasonAddressNotAssigned})); have != "Accepted=True/ListenersNotValid Programmed=False/ParentNotProgrammed" {
		t.Errorf("without a node: %s", have)
	}
}

// TestListenerSetOfARefusedGateway: a set is not served where its Gateway is not.
func TestListenerSetOfARefusedGateway(t *testing.T) {
	gateway := setGateway(t, "All", "  - {name: one, port: 80, protocol: HTTP}\n")
	gateway.Spec.Addresses = []gatewayv1.GatewaySpecAddress{{Type: ptr.To(gatewayv1.HostnameAddressType)}}
	set := setOf(t, "b", "s", 1, "  - {name: two, port: 80, protocol: HTTP, hostname: two.example.com}\n")
	got := TranslateListenerSet(world{sets: []*gatewayv1.ListenerSet{set}}, ports, gateway, set)
	if have := reasons(
		got.Conditions(Missing{})); have != "Accepted=False/ParentNotAccepted Programmed=False/ParentNotProgrammed" ||
		len(got.Listeners) > 0 {
		t.Errorf("%s with %d listeners", have, len(got.Listeners))
	}
}

// TestGatewayOfValidSets: a Gateway and its sets are one list of listeners.
func TestGatewayOfValidSets(t *testing.T) {
	gateway := setGateway(t, "All", "  - {name: one, port: 22, protocol: HTTP}\n")
	set := setOf(t, "b", "s", 1, "  - {name: two, port: 80, protocol: HTTP}\n")
	w := world{sets: []*gatewayv1.ListenerSet{set}}
	translated := TranslateGateway(w, ports, gateway)
	const want = "Accepted=True/ListenersNotValid Programmed=True/Programmed ResolvedRefs=True/ResolvedRefs"
	if have := reasons(translated.Conditions(TranslateListenerSets(w, ports, gateway), Missing{})); have != want {
		t.Error(have)
	}
}

// TestPortOfAListenerSet: a set shares the ports of all Gateways, and is as old as its Gateway at
// most.
func TestPortOfAListenerSet(t *testing.T) {
	gateway, other := setGateway(t, "All", "  - {name: one, port: 80, protocol: HTTP}\n"),
		gatewayOf(t, "  - {name: l, port: 8080, protocol: HTTP}\n")
	set := setOf(t, "b", "s", 1, "  - {name: two, port: 8080, protocol: HTTPS, tls: {}}\n")
	other.Name, other.CreationTimestamp, gateway.CreationTimestamp = "other", metav1.Unix(3, 0), metav1.Unix(2, 0)
	w := world{sets: []*gatewayv1.ListenerSet{set}}
	both := []*gatewayv1.Gateway{other, gateway}
	if modes := Modes(w, ports, both); !modes[8080] {
		t.Error("the older set lost its port")
	}
	gateway.CreationTimestamp = metav1.Unix(4, 0)
	if modes := Modes(w, ports, both); modes[8080] {
		t.Error("a set was older than its Gateway")
	}
	gateway.CreationTimestamp, gateway.Spec.AllowedListeners = metav1.Unix(2, 0), nil
	if modes := Modes(w, ports, both); modes[8080] {
		t.Error("a set that its Gateway does not allow got a port")
	}
}

func TestRoutesOfAListenerSet(t *testing.T) {
	gateway := setGateway(t, "Selector, selector: {matchLabels: {team: x}}",
		"  - {name: one, port: 80, protocol: HTTP, hostname: one.example.com, allowedRoutes: {namespaces: {from: All}}}\n")
	set := setOf(t, "b", "s", 1, "  - {name: two, port: 80, protocol: HTTP, hostname: two.example.com}\n")
	refused := setOf(t, "c", "s", 1,
		"  - {name: three, port: 80, protocol: HTTP, hostname: three.example.com, allowedRoutes: {namespaces: {from: All}}}\n")
	w := world{
		gateways: map[types.NamespacedName]*gatewayv1.Gateway{key("a", "g"): gateway},
		sets:     []*gatewayv1.ListenerSet{set, refused}, labels: map[string]map[string]string{"b": {"team": "x"}},
	}
	for _, c := range []struct{ name, namespace, parents, want, places string }{
		{"to the set", "b", "[{kind: ListenerSet, name: s}]", "Accepted=True/Accepted", "two.example.com"},
		{"to a listener of the set", "b", "[{kind: ListenerSet, name: s, sectionName: two, port: 80}]",
			"Accepted=True/Accepted", "two.example.com"},
		{"to no listener of the set", "b", "[{kind: ListenerSet, name: s, sectionName: one}]",
			"Accepted=False/NoMatchingParent", ""},
		{"to the Gateway only", "b", "[{name: g, namespace: a}]", "Accepted=True/Accepted", "one.example.com"},
		{"to the set's listener by the Gateway", "b", "[{name: g, namespace: a, sectionName: two}]",
			"Accepted=False/NoMatchingParent", ""},
		{"of another namespace", "a", "[{kind: ListenerSet, name: s, namespace: b}]",
			"Accepted=False/NotAllowedByListeners", ""},
		{"to a set that is not allowed", "c", "[{kind: ListenerSet, name: s}]", "Accepted=False/NoMatchingParent", ""},
		{"to both", "b", "[{kind: ListenerSet, name: s}, {name: g, namespace: a}]",
			"Accepted=True/Accepted Accepted=True/Accepted", "two.example.com one.example.com"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := TranslateHTTPRoute(w, ports,
				read[gatewayv1.HTTPRoute](t,
					"metadata: {name: r, namespace: "+c.namespace+"}\nspec: {parentRefs: "+c.parents+"}"))
			var have, places []string
			for _, p := range got.Parents {
				have = append(have, reasons(p.Conditions[:1]))
			}
			for _, p := range got.Model.Places {
				places = append(places, p.Hosts...)
			}
			if strings.Join(have, " ") != c.want || strings.Join(places, " ") != c.places {
				t.Errorf("got %s at %s, want %s at %s", have, places, c.want, c.places)
			}
			if (len(got.Gateways) == 1) != (c.places != "") {
				t.Errorf("Gateways %v", got.Gateways)
			}
		})
	}
}

// TestSecretsOfAListenerSet: grants to the Gateway are not grants to the set, and a set that is not
// allowed reads nothing.
func TestSecretsOfAListenerSet(t *testing.T) {
	grant := func(kind string) *gatewayv1.ReferenceGrant {
		return read[gatewayv1.ReferenceGrant](t,
			"spec: {from: [{group: gateway.networking.k8s.io, kind: "+kind+
				", namespace: b}], to: [{group: '', kind: Secret}]}")
	}
	set := setOf(t, "b", "s", 1,
		"  - {name: two, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: own}, {name: shared, namespace: c}]}}\n")
	gateway := setGateway(t, "All", "  - {name: one, port: 80, protocol: HTTP}\n")
	w := world{gateways: map[types.NamespacedName]*gatewayv1.Gateway{key("a", "g"): gateway},
		grants: map[string][]*gatewayv1.ReferenceGrant{"c": {grant("Gateway")}}}
	if got := SetSecrets(w, set); !slices.Equal(got, []types.NamespacedName{key("b", "own")}) {
		t.Errorf("with a grant to Gateways: %v", got)
	}
	w.grants["c"] = []*gatewayv1.ReferenceGrant{grant("ListenerSet")}
	if got := SetSecrets(w, set); !slices.Equal(got, []types.NamespacedName{key("b", "own"), key("c", "shared")}) {
		t.Errorf("with a grant: %v", got)
	}
	gateway.Spec.AllowedListeners = nil
	if got := SetSecrets(w, set); got != nil {
		t.Errorf("not allowed: %v", got)
	}
	set.Spec.ParentRef.Name = "none"
	if got := SetSecrets(w, set); got != nil {
		t.Errorf("without a Gateway: %v", got)
	}
}

// TestTLSRoutePlaces: the listener says who ends TLS.
func TestTLSRoutePlaces(t *testing.T) {
	w := world{gateways: map[types.NamespacedName]*gatewayv1.Gateway{key("a", "g"): gatewayOf(t, `
  - {name: pass, port: 443, protocol: TLS, hostname: pass.example.com, tls: {mode: Passthrough}}
  - {name: end, port: 443, protocol: TLS, hostname: end.example.com, tls: {mode: Terminate, certificateRefs: [{name: cert}]}}
`)}}
	got := TranslateTLSRoute(w, ports,
		read[gatewayv1.TLSRoute](t,
			"metadata: {name: r, namespace: a}\nspec: {parentRefs: [{name: g}], hostnames: ['*.example.com']}"))
	want := map[string]model.Serve{"pass.example.com": model.Passthrough, "end.example.com": model.Terminate}
	for _, p := range got.Model.Places {
		if serve, ok := want[p.Hosts[0]]; !ok || p.Serve != serve {
			t.Errorf("%+v", p)
		}
		delete(want, p.Hosts[0])
	}
	if len(want) > 0 {
		t.Errorf("no place for %v", want)
	}
}

// A listener is as old as its object, and one of a set is not older than its Gateway: the proxy
// lets the older of one name count.
func TestListenersAreAsOldAsTheirObjects(t *testing.T) {
	gateway := setGateway(t, "Same", "  - {name: one, port: 80, protocol: HTTP, hostname: one.example.com}\n")
	gateway.CreationTimestamp = metav1.Unix(5, 0)
	before := setOf(t, "a", "before", 1, "  - {name: l, port: 80, protocol: HTTP, hostname: two.example.com}\n")
	after := setOf(t, "a", "after", 9, "  - {name: l, port: 80, protocol: HTTP, hostname: three.example.com}\n")
	w := world{gateways: map[types.NamespacedName]*gatewayv1.Gateway{key("a", "g"): gateway},
		sets: []*gatewayv1.ListenerSet{before, after}}
	ingress := ingressOf(t, nil)
	ingress.CreationTimestamp = metav1.Unix(7, 0)
	got := map[string]int64{
		"gateway": TranslateGateway(w, ports, gateway).Listeners[0].Model.Created.Unix(),
		"before":  TranslateListenerSet(w, ports, gateway, before).Listeners[0].Model.Created.Unix(),
		"after":   TranslateListenerSet(w, ports, gateway, after).Listeners[0].Model.Created.Unix(),
	}
	for _, l := range TranslateIngress(world{}, ports, ingress).Listeners {
		got["ingress, port "+itoa(l.Port)] = l.Created.Unix()
	}
	want := map[string]int64{"gateway": 5, "before": 5, "after": 9, "ingress, port 80": 7, "ingress, port 443": 7}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
