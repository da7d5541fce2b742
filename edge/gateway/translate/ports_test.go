package translate

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestExactPathHasNoGroups: the groups of other paths' expressions are empty in the rewrite of an
// exact path, as in ingress-nginx.
func TestExactPathHasNoGroups(t *testing.T) {
	w := world{
		services: map[types.NamespacedName]*corev1.Service{key("a", "s"): service(80), key("a", "none"): service(1)}}
	got := TranslateIngress(w, ports, ingressOf(t, map[string]string{"rewrite-target": "/app/$2"}))
	for _, r := range got.Model.Rules {
		if path := r.Action.Filters.Rewrite.Path; r.Matches[0].Path == "/y" &&
			(path.Full == nil || *path.Full != "/app/") {
			t.Errorf("%+v", path)
		}
	}
}

// TestPortsOfServices: nothing is served at a port that a Service has, and the object says so.
func TestPortsOfServices(t *testing.T) {
	w := world{
		services: map[types.NamespacedName]*corev1.Service{key("a", "s"): service(80), key("a", "none"): service(1)}}
	for name, c := range map[string]struct {
		taken     map[uint16]string
		listeners int
		lacks     int
	}{
		"none":         {nil, 4, 0},
		"plain HTTP":   {map[uint16]string{80: "the Service b/web"}, 1, 1},
		"TLS":          {map[uint16]string{443: "the Service b/web"}, 3, 1},
		"both":         {map[uint16]string{80: "the Service b/web", 443: "the Service b/web"}, 0, 2},
		"another port": {map[uint16]string{8080: "the Service b/web"}, 4, 0},
	} {
		t.Run(name, func(t *testing.T) {
			with := ports
			with.Taken = c.taken
			got := TranslateIngress(w, with, ingressOf(t, nil))
			if len(got.Listeners) != c.listeners || len(got.Model.Places) != c.listeners || len(got.Taken) != c.lacks {
				t.Errorf("%d listeners, %d places, %q", len(got.Listeners), len(got.Model.Places), got.Taken)
			}
			for _, text := range got.Taken {
				if !strings.Contains(text, "in use by the Service b/web") {
					t.Error(text)
				}
			}
			if needs := IngressPorts(with, ingressOf(t, nil)); !slices.Equal(needs, []uint16{80, 443}) {
				t.Errorf("it needs %v, whoever has them", needs)
			}
		})
	}
	if needs := IngressPorts(ports, ingressOf(t, map[string]string{"server-snippet": "x"})); needs != nil {
		t.Errorf("an Ingress that is not served needs %v", needs)
	}
	with := ports
	with.Taken = map[uint16]string{80: "the Service b/web"}
	got := TranslateGateway(w, with,
		gatewayOf(t, "  - {name: l, port: 80, protocol: HTTP}\n  - {name: m, port: 8080, protocol: HTTP}"))
	want := "Accepted=False/PortUnavailable Conflicted=False/NoConflicts ResolvedRefs=True/ResolvedRefs Programmed=False/Invalid"
	if have := reasons(got.Listeners[0].Conditions); have != want ||
		!strings.Contains(got.Listeners[0].Conditions[0].Message, "the Service b/web") {
		t.Errorf("%s: %s", have, got.Listeners[0].Conditions[0].Message)
	}
	if got.Listeners[0].Serves || !got.Listeners[1].Serves {
		t.Error("the listener without its port serves, or the other one does not")
	}
}
