package translate

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// A request belongs to the most specific listener of its port. A route at another listener of the
// Gateway is not served for it, also when the route names that hostname.
func TestListenerIsolation(t *testing.T) {
	w := world{gateways: map[types.NamespacedName]*gatewayv1.Gateway{key("a", "g"): gatewayOf(t, `
  - {name: any, port: 80, protocol: HTTP}
  - {name: wide, port: 80, protocol: HTTP, hostname: "*.example.com"}
  - {name: narrow, port: 80, protocol: HTTP, hostname: "*.foo.example.com"}
  - {name: one, port: 80, protocol: HTTP, hostname: abc.foo.example.com}
  - {name: closed, port: 80, protocol: UDP, hostname: closed.org}
  - {name: elsewhere, port: 8080, protocol: HTTP, hostname: bar.com}
`)}}
	all := `["bar.com", "closed.org", "*.example.com", "*.foo.example.com", "abc.foo.example.com"]`
	for _, c := range []struct{ listener, hostnames, places string }{
		{"any", all, "80:bar.com,closed.org"},
		{"any", "[]", "80:"},
		{"any", `["*.com"]`, "80:*.com"},
		{"any", `["abc.foo.example.com"]`, ""},
		{"wide", all, "80:*.example.com"},
		{"wide", `["a.example.com", "a.foo.example.com"]`, "80:a.example.com"},
		{"narrow", all, "80:*.foo.example.com"},
		{"one", all, "80:abc.foo.example.com"},
	} {
		t.Run(c.listener+" "+c.hostnames, func(t *testing.T) {
			r := read[gatewayv1.HTTPRoute](t,
				"metadata: {name: r, namespace: a}\nspec:\n  parentRefs: [{name: g, sectionName: "+c.listener+
					"}]\n  hostnames: "+c.hostnames)
			got := TranslateHTTPRoute(w, ports, r)
			var places []string
			for _, p := range got.Model.Places {
				places = append(places, itoa(p.Port)+":"+strings.Join(p.Hosts, ","))
			}
			if strings.Join(places, " ") != c.places {
				t.Errorf("places %v, want %s", places, c.places)
			}
			if len(got.Attached) != 1 || got.Parents[0].Conditions[0].Reason != string(gatewayv1.RouteReasonAccepted) {
				t.Errorf("attached %v, %s", got.Attached, reasons(got.Parents[0].Conditions))
			}
		})
	}
}
