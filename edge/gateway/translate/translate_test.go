package translate

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/barque/barque/edge/gateway/model"
)

// world is a Cluster of maps.
type world struct {
	classes  map[string]*gatewayv1.GatewayClass // beside that of every cluster
	gateways map[types.NamespacedName]*gatewayv1.Gateway
	sets     []*gatewayv1.ListenerSet
	policies []*gatewayv1.BackendTLSPolicy
	services map[types.NamespacedName]*corev1.Service
	labels   map[string]map[string]string
	grants   map[string][]*gatewayv1.ReferenceGrant
	bad      map[types.NamespacedName]error // Secrets and ConfigMaps
}

func (w world) GatewayClass(name string) *gatewayv1.GatewayClass {
	if c := w.classes[name]; c != nil || name != Class {
		return c
	}
	return &gatewayv1.GatewayClass{Spec: gatewayv1.GatewayClassSpec{ControllerName: GatewayController}}
}
func (w world) Gateway(n types.NamespacedName) *gatewayv1.Gateway { return w.gateways[n] }
func (w world) ListenerSet(n types.NamespacedName) *gatewayv1.ListenerSet {
	i := slices.IndexFunc(w.sets, func(s *gatewayv1.ListenerSet) bool { return nameOf(s) == n })
	if i < 0 {
		return nil
	}
	return w.sets[i]
}
func (w world) ListenerSets(gateway types.NamespacedName) (all []*gatewayv1.ListenerSet) {
	for _, s := range w.sets {
		if parent, ok := Parent(s); ok && parent == gateway {
			all = append(all, s)
		}
	}
	return all
}
func (w world) Policies(service types.NamespacedName) (all []*gatewayv1.BackendTLSPolicy) {
	for _, p := range w.policies {
		if slices.Contains(Targets(p), service) {
			all = append(all, p)
		}
	}
	return all
}
func (w world) Namespace(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: w.labels[name]}}
}
func (w world) Service(n types.NamespacedName) *corev1.Service      { return w.services[n] }
func (w world) Grants(namespace string) []*gatewayv1.ReferenceGrant { return w.grants[namespace] }
func (w world) Certificate(n types.NamespacedName) error            { return w.bad[n] }
func (w world) Authority(n types.NamespacedName) error              { return w.bad[n] }

func key(namespace, name string) types.NamespacedName {
	return types.NamespacedName{Namespace: namespace, Name: name}
}

func service(ports ...int32) *corev1.Service {
	s := &corev1.Service{}
	for _, p := range ports {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Port: p, Name: "http"})
	}
	return s
}

var ports = Ports{HTTP: 80, HTTPS: 443, Allowed: []uint16{80, 443, 8080}, Modes: map[uint16]bool{80: false, 443: true}}

func read[T any](t *testing.T, text string) *T {
	t.Helper()
	of := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), of); err != nil {
		t.Fatal(err)
	}
	return of
}

func gatewayOf(t *testing.T, listeners string) *gatewayv1.Gateway {
	return read[gatewayv1.Gateway](t,
		"metadata: {name: g, namespace: a}\nspec:\n  gatewayClassName: barque\n  listeners:\n"+listeners)
}

// reasons are the conditions as TYPE=STATUS/REASON.
func reasons(all []metav1.Condition) string {
	var text []string
	for _, c := range all {
		text = append(text, c.Type+"="+string(c.Status)+"/"+c.Reason)
	}
	return strings.Join(text, " ")
}

func TestListenerConditions(t *testing.T) {
	grant := read[gatewayv1.ReferenceGrant](t,
		"spec: {from: [{group: gateway.networking.k8s.io, kind: Gateway, namespace: a}], to: [{group: '', kind: Secret, name: shared}]}")
	w := world{grants: map[string][]*gatewayv1.ReferenceGrant{"b": {grant}},
		bad: map[types.NamespacedName]error{key("a", "bad"): errors.New("no key")}}
	for _, c := range []struct{ name, listener, want string }{
		{"plain", "{name: l, port: 80, protocol: HTTP}",
			"Accepted=True/Accepted Conflicted=False/NoConflicts ResolvedRefs=True/ResolvedRefs Programmed=True/Programmed"},
		{"unknown protocol", "{name: l, port: 80, protocol: UDP}",
			"Accepted=False/UnsupportedProtocol Conflicted=False/NoConflicts ResolvedRefs=True/ResolvedRefs Programmed=False/Invalid"},
		{"port of nobody", "{name: l, port: 22, protocol: HTTP}",
			"Accepted=False/PortUnavailable Conflicted=False/NoConflicts ResolvedRefs=True/ResolvedRefs Programmed=False/Invalid"},
		{"other protocol on a port", "{name: l, port: 443, protocol: HTTP}",
			"Accepted=False/ProtocolConflict Conflicted=True/ProtocolConflict ResolvedRefs=True/ResolvedRefs Programmed=False/ProtocolConflict"},
		{"certificate", "{name: l, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: good}]}}",
			"Accepted=True/Accepted Conflicted=False/NoConflicts ResolvedRefs=True/ResolvedRefs Programmed=True/Programmed"},
		{"no certificate", "{name: l, port: 443, protocol: HTTPS, tls: {}}",
			"Accepted=True/Accepted Conflicted=False/NoConflicts ResolvedRefs=False/InvalidCertificateRef Programmed=False/Invalid"},
		{"bad certificate", "{name: l, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: bad}]}}",
			"Accepted=True/Accepted Conflicted=False/NoConflicts ResolvedRefs=False/InvalidCertificateRef Programmed=False/Invalid"},
		{"other namespace with a grant",
			"{name: l, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: shared, namespace: b}]}}",
			"Accepted=True/Accepted Conflicted=False/NoConflicts ResolvedRefs=True/ResolvedRefs Programmed=True/Programmed"},
		{"other namespace without",
			"{name: l, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: private, namespace: b}]}}",
			"Accepted=True/Accepted Conflicted=False/NoConflicts ResolvedRefs=False/RefNotPermitted Programmed=False/Invalid"},
		{"kinds of routes", "{name: l, port: 80, protocol: HTTP, allowedRoutes: {kinds: [{kind: TCPRoute}]}}",
			"Accepted=True/Accepted Conflicted=False/NoConflicts ResolvedRefs=False/InvalidRouteKinds Programmed=False/Invalid"},
		{"TLS that ends here",
			"{name: l, port: 443, protocol: TLS, tls: {mode: Terminate, certificateRefs: [{name: good}]}}",
			"Accepted=True/Accepted Conflicted=False/NoConflicts ResolvedRefs=True/ResolvedRefs Programmed=True/Programmed"},
		{"TLS that ends here without a certificate",
			"{name: l, port: 443, protocol: TLS, tls: {mode: Terminate, certificateRefs: [{name: bad}]}}",
			"Accepted=True/Accepted Conflicted=False/NoConflicts ResolvedRefs=False/InvalidCertificateRef Programmed=False/Invalid"},
		{"TLS that ends nowhere", "{name: l, port: 443, protocol: TLS, tls: {mode: Other}}",
			"Accepted=False/UnsupportedValue Conflicted=False/NoConflicts ResolvedRefs=True/ResolvedRefs Programmed=False/Invalid"},
		{"TLS beside HTTPS of one name",
			"{name: l, port: 443, protocol: TLS, hostname: A.example.com, tls: {mode: Passthrough}}\n  - {name: m, port: 443, protocol: HTTPS, hostname: a.example.com, tls: {certificateRefs: [{name: good}]}}",
			"Accepted=False/HostnameConflict Conflicted=True/HostnameConflict ResolvedRefs=True/ResolvedRefs Programmed=False/HostnameConflict"},
		{"passthrough", "{name: l, port: 443, protocol: TLS, tls: {mode: Passthrough}}",
			"Accepted=True/Accepted Conflicted=False/NoConflicts ResolvedRefs=True/ResolvedRefs Programmed=True/Programmed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := TranslateGateway(w, ports, gatewayOf(t, "  - "+c.listener))
			if have := reasons(got.Listeners[0].Conditions); have != c.want {
				t.Errorf("\n got %s\nwant %s", have, c.want)
			}
		})
	}
}

// A listener whose mode is not supported has no kinds of routes, so none attaches to it.
func TestUnsupportedListenerHasNoKinds(t *testing.T) {
	w := world{gateways: map[types.NamespacedName]*gatewayv1.Gateway{
		key("a", "g"): gatewayOf(t, "  - {name: l, port: 443, protocol: HTTPS, tls: {mode: Passthrough}}"),
	}}
	listener := TranslateGateway(w, ports, w.gateways[key("a", "g")]).Listeners[0]
	if listener.Kinds == nil || len(listener.Kinds) > 0 {
		t.Errorf("kinds %v", listener.Kinds)
	}
	got := TranslateHTTPRoute(w, ports,
		read[gatewayv1.HTTPRoute](t, "metadata: {name: r, namespace: a}\nspec: {parentRefs: [{name: g}]}"))
	if have := got.Parents[0].Conditions[0].Reason; have != string(gatewayv1.RouteReasonNotAllowedByListeners) ||
		len(got.Attached) > 0 {
		t.Errorf("the route: %s, attached %v", have, got.Attached)
	}
}

func TestGatewayConditions(t *testing.T) {
	good, bad := "  - {name: l, port: 80, protocol: HTTP}\n", "  - {name: m, port: 22, protocol: HTTP}\n"
	for _, c := range []struct {
		name, listeners, more string
		missing               Missing
		want                  string
	}{
		{"good", good, "", Missing{}, "Accepted=True/Accepted Programmed=True/Programmed"},
		{"no node", good, "", Missing{Reason: gatewayv1.GatewayReasonAddressNotAssigned}, "Accepted=True/Accepted Programmed=False/AddressNotAssigned"},
		{"in part", good + bad, "", Missing{}, "Accepted=True/ListenersNotValid Programmed=True/Programmed"},
		{"bad", bad, "", Missing{}, "Accepted=False/ListenersNotValid Programmed=False/Invalid"},
		{"address", good, "  addresses: [{value: 192.0.2.1}]\n", Missing{},
			"Accepted=True/Accepted Programmed=True/Programmed"},
		{"address that no pool gives", good, "  addresses: [{value: 192.0.2.1}]\n",
			Missing{Reason: gatewayv1.GatewayReasonAddressNotUsable},
			"Accepted=True/Accepted Programmed=False/AddressNotUsable"},
		{"kind of address", good, "  addresses: [{type: Hostname}, {value: 192.0.2.1}]\n", Missing{},
			"Accepted=False/UnsupportedAddress Programmed=False/Invalid"},
		{"any address", good, "  addresses: [{type: IPAddress}]\n", Missing{},
			"Accepted=True/Accepted Programmed=True/Programmed"},
		{"parameters", good, "  infrastructure: {parametersRef: {group: x, kind: Y, name: z}}\n", Missing{},
			"Accepted=False/InvalidParameters Programmed=False/Invalid"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := TranslateGateway(world{}, ports, gatewayOf(t, c.listeners+c.more))
			if have := reasons(got.Conditions(nil, c.missing)); have != c.want+" ResolvedRefs=True/ResolvedRefs" {
				t.Errorf("got %s, want %s", have, c.want)
			}
		})
	}
}

func TestOldestGatewayDecidesThePort(t *testing.T) {
	older, newer := gatewayOf(t, "  - {name: l, port: 8080, protocol: HTTPS, tls: {}}"),
		gatewayOf(t, "  - {name: l, port: 8080, protocol: HTTP}")
	older.CreationTimestamp, newer.CreationTimestamp = metav1.Unix(1, 0), metav1.Unix(2, 0)
	if modes := Modes(world{}, ports, []*gatewayv1.Gateway{newer, older}); !modes[8080] || modes[80] || !modes[443] {
		t.Error(modes)
	}
}

func TestRouteConditions(t *testing.T) {
	w := world{
		gateways: map[types.NamespacedName]*gatewayv1.Gateway{key("a", "g"): gatewayOf(t, `
  - {name: same, port: 80, protocol: HTTP}
  - {name: star, port: 8080, protocol: HTTP, hostname: "*.example.com", allowedRoutes: {namespaces: {from: All}}}
`)},
		services: map[types.NamespacedName]*corev1.Service{key("a", "s"): service(80), key("b", "s"): service(80)},
	}
	for _, c := range []struct{ name, namespace, spec, want, places string }{
		{"accepted", "a", "parentRefs: [{name: g, sectionName: same}]\nrules: [{backendRefs: [{name: s, port: 80}]}]",
			"Accepted=True/Accepted ResolvedRefs=True/ResolvedRefs", "80:"},
		{"hostname meets", "a",
			"parentRefs: [{name: g, sectionName: star}]\nhostnames: [a.example.com, b.org]\nrules: [{}]",
			"Accepted=True/Accepted ResolvedRefs=True/ResolvedRefs", "8080:a.example.com"},
		{"hostname does not", "a", "parentRefs: [{name: g, sectionName: star}]\nhostnames: [b.org, example.com]",
			"Accepted=False/NoMatchingListenerHostname ResolvedRefs=True/ResolvedRefs", ""},
		{"no such listener", "a", "parentRefs: [{name: g, sectionName: other}]",
			"Accepted=False/NoMatchingParent ResolvedRefs=True/ResolvedRefs", ""},
		{"other namespace", "b", "parentRefs: [{name: g, namespace: a, sectionName: same}]",
			"Accepted=False/NotAllowedByListeners ResolvedRefs=True/ResolvedRefs", ""},
		{"other namespace, allowed", "b", "parentRefs: [{name: g, namespace: a}]",
			"Accepted=True/Accepted ResolvedRefs=True/ResolvedRefs", "8080:*.example.com"},
		{"no Service", "a", "parentRefs: [{name: g, port: 80}]\nrules: [{backendRefs: [{name: none, port: 80}]}]",
			"Accepted=True/Accepted ResolvedRefs=False/BackendNotFound", "80:"},
		{"no grant", "a",
			"parentRefs: [{name: g, port: 80}]\nrules: [{backendRefs: [{name: s, namespace: b, port: 80}]}]",
			"Accepted=True/Accepted ResolvedRefs=False/RefNotPermitted", "80:"},
		{"kind of backend", "a",
			"parentRefs: [{name: g, port: 80}]\nrules: [{backendRefs: [{name: s, kind: Other, port: 80}]}]",
			"Accepted=True/Accepted ResolvedRefs=False/InvalidKind", "80:"},
		{"filter", "a",
			"parentRefs: [{name: g, port: 80}]\nrules: [{filters: [{type: ExtensionRef, extensionRef: {group: x, kind: Y, name: z}}]}]", "Accepted=False/UnsupportedValue ResolvedRefs=True/ResolvedRefs", ""},
		{"pattern", "a",
			"parentRefs: [{name: g, port: 80}]\nrules: [{matches: [{path: {type: RegularExpression, value: '('}}]}]",
			"Accepted=False/UnsupportedValue ResolvedRefs=True/ResolvedRefs", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := read[gatewayv1.HTTPRoute](t,
				"metadata: {name: r, namespace: "+c.namespace+"}\nspec:\n  "+strings.ReplaceAll(c.spec, "\n", "\n  "))
			got := TranslateHTTPRoute(w, ports, r)
			var places []string
			for _, p := range got.Model.Places {
				places = append(places, strings.Join([]string{itoa(p.Port), strings.Join(p.Hosts, ",")}, ":"))
			}
			if have := reasons(got.Parents[0].Conditions); have != c.want || strings.Join(places, " ") != c.places {
				t.Errorf("\n got %s at %v\nwant %s at %s", have, places, c.want, c.places)
			}
		})
	}
}

func itoa(port uint16) string { return map[uint16]string{80: "80", 443: "443", 8080: "8080"}[port] }

func ingressOf(t *testing.T, annotations map[string]string) *networkingv1.Ingress {
	in := read[networkingv1.Ingress](t, `
metadata: {name: i, namespace: a}
spec:
  tls: [{hosts: ["*.example.com"], secretName: cert}]
  defaultBackend: {service: {name: s, port: {number: 80}}}
  rules:
  - host: A.example.com
    http: {paths: [{path: /x, pathType: Prefix, backend: {service: {name: s, port: {name: http}}}}]}
  - host: b.org
    http: {paths: [{path: /y, pathType: Exact, backend: {service: {name: none, port: {number: 1}}}}]}
`)
	in.Annotations = map[string]string{}
	for name, text := range annotations {
		in.Annotations[nginx+name] = text
	}
	return in
}

func TestIngress(t *testing.T) {
	w := world{services: map[types.NamespacedName]*corev1.Service{key("a", "s"): service(80)}}
	got := TranslateIngress(w, ports, ingressOf(t, nil))
	var listeners []string
	for _, l := range got.Listeners {
		listeners = append(listeners, itoa(l.Port)+":"+l.Hostname)
		if l.Port == 443 && !slices.Equal(l.Certificates, []types.NamespacedName{key("a", "cert")}) {
			t.Error(l.Certificates)
		}
	}
	if want := "80:a.example.com 80:b.org 80: 443:a.example.com"; strings.Join(listeners, " ") != want {
		t.Errorf("got %v, want %s", listeners, want)
	}
	if len(got.Problems) != 1 || !strings.Contains(got.Problems[0], "no Service a/none") {
		t.Error(got.Problems)
	}
	for _, p := range got.Model.Places {
		for _, i := range p.Rules {
			path := got.Model.Rules[i].Matches[0].Path
			if want := map[string]string{"a.example.com": "/x", "b.org": "/y", "": ""}[p.Hosts[0]]; path != want {
				t.Errorf("host %q has the path %q", p.Hosts[0], path)
			}
		}
	}
}

func TestAnnotations(t *testing.T) {
	for _, c := range []struct {
		name    string
		given   map[string]string
		problem string
		refused bool
		check   func(a *model.Action) bool
	}{
		{"none", nil, "", false, func(a *model.Action) bool { return a.MaxBody == 0 }},
		{"body", map[string]string{"proxy-body-size": "8m"}, "", false,
			func(a *model.Action) bool { return a.MaxBody == 8<<20 }},
		{"wrong body", map[string]string{"proxy-body-size": "much"}, "proxy-body-size has no effect", false, nil},
		{"unknown", map[string]string{"load-balance": "ewma"}, "load-balance is not known", false, nil},
		{"snippet", map[string]string{"configuration-snippet": "deny all;"}, "is not served", true, nil},
		{"allow", map[string]string{"whitelist-source-range": "10.0.0.0/8, 192.0.2.1"}, "", false,
			func(a *model.Action) bool { return len(a.Access.Allow) == 2 }},
		{"wrong allow", map[string]string{"whitelist-source-range": "office"}, "is not served", true, nil},
		{"basic", map[string]string{"auth-type": "basic", "auth-secret": "users"}, "", false,
			func(a *model.Action) bool { return a.Access.Basic.Secret == key("a", "users") }},
		{"basic of others", map[string]string{"auth-type": "basic", "auth-secret": "b/users"}, "is not served", true,
			nil},
		{"digest", map[string]string{"auth-type": "digest", "auth-secret": "users"}, "is not served", true, nil},
		{"secret alone", map[string]string{"auth-secret": "users"}, "no effect without auth-type", false, nil},
		{"external", map[string]string{"auth-url": "http://auth.a/check"}, "", false,
			func(a *model.Action) bool { return a.Access.External != nil }},
		{"variables", map[string]string{"auth-url": "http://$host/check"}, "is not served", true, nil},
		{"canary", map[string]string{"canary": "true", "canary-weight": "20"}, "", false,
			func(a *model.Action) bool { return a.Canary.Weight == 20 && a.Canary.Total == 100 }},
		{"wrong canary", map[string]string{"canary": "true", "canary-weight": "a fifth"}, "is not served", true, nil},
		{"any site with credentials", map[string]string{"enable-cors": "true"}, "", false,
			func(a *model.Action) bool { return !a.CORS.Credentials }},
		{"cookie", map[string]string{"affinity": "cookie", "session-cookie-name": "a b"}, "affinity has no effect",
			false, nil},
		{"protocol", map[string]string{"backend-protocol": "GRPC"}, "", false,
			func(a *model.Action) bool { return a.GRPC && a.Backends[0].Protocol == model.H2C }},
		{"rewrite", map[string]string{"rewrite-target": "/$1"}, "", false,
			func(a *model.Action) bool { return *a.Filters.Rewrite.Path.Groups == "/$1" }},
		{"redirect", map[string]string{"ssl-redirect": "true"}, "", false,
			func(a *model.Action) bool { return a.Redirect.Scheme == "https" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := world{
				services: map[types.NamespacedName]*corev1.Service{key("a", "s"): service(80),
					key("a", "none"): service(1)}}
			got := TranslateIngress(w, ports, ingressOf(t, c.given))
			if problems := strings.Join(got.Problems, "; "); (problems != "") != (c.problem != "") ||
				!strings.Contains(problems, c.problem) {
				t.Errorf("problems %q, want %q", problems, c.problem)
			}
			if got.Refused != c.refused || c.refused && len(got.Model.Places) > 0 {
				t.Errorf("refused %v at %v", got.Refused, got.Model.Places)
			}
			if c.check != nil && !c.check(&got.Model.Rules[0].Action) {
				t.Errorf("%+v", got.Model.Rules[0].Action)
			}
		})
	}
}

func TestSecretsOfAGateway(t *testing.T) {
	g := gatewayOf(t,
		"  - {name: l, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: own}, {name: others, namespace: b}]}}")
	if got := Secrets(world{}, g); !slices.Equal(got, []types.NamespacedName{key("a", "own")}) {
		t.Error(got)
	}
	g.Spec.GatewayClassName = "another"
	if got := Secrets(world{}, g); got != nil {
		t.Error(got)
	}
}

func TestGRPCMatches(t *testing.T) {
	for _, c := range []struct {
		match *gatewayv1.GRPCMethodMatch
		kind  model.PathKind
		path  string
	}{
		{nil, model.Prefix, "/"},
		{&gatewayv1.GRPCMethodMatch{Service: ptr.To("a.B"), Method: ptr.To("C")}, model.Exact, "/a.B/C"},
		{&gatewayv1.GRPCMethodMatch{Service: ptr.To("a.B")}, model.Prefix, "/a.B"},
		{&gatewayv1.GRPCMethodMatch{Method: ptr.To("C")}, model.Regex, "/[^/]+/(?:C)"},
	} {
		m, err := grpcMatch(&gatewayv1.GRPCRouteMatch{Method: c.match})
		if err != nil || m.Kind != c.kind || m.Path != c.path {
			t.Errorf("%+v: %+v, %v", c.match, m, err)
		}
	}
}

func FuzzAnnotations(f *testing.F) {
	for name := range readers {
		f.Add(name, "true", "")
	}
	f.Add("canary", "true", "1")
	f.Add("whitelist-source-range", "::1/0,", "")
	f.Fuzz(func(t *testing.T, name, text, more string) {
		in := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Annotations: map[string]string{
			nginx + name: text, nginx + "auth-secret": more, nginx + "canary-weight": more,
			nginx + "session-cookie-name": more,
		}}}
		a := readAnnotations(in)
		if basic := a.action.Access.Basic; basic != nil && basic.Secret.Namespace != "a" {
			t.Errorf("a Secret of another namespace: %v", basic.Secret)
		}
		if slices.Contains(protective, name) && text != "" && !a.refused && a.action.Canary == nil && name != "canary" {
			if a.action.Access.Basic == nil && a.action.Access.External == nil &&
				len(a.action.Access.Allow)+len(a.action.Access.Deny) == 0 {
				t.Errorf("%s=%q protects nothing, and the Ingress is served", name, text)
			}
		}
	})
}

// FuzzRoutes: whatever a route says, the translation ends, and its places are those of listeners.
func FuzzRoutes(f *testing.F) {
	f.Add("a.example.com", "/x", "RegularExpression", "X-A", "1", "10s", int32(80))
	f.Add("*.example.com", "(", "PathPrefix", "", "", "", int32(0))
	f.Add("", "//../%2e", "Exact", "Host", ".*", "-1h", int32(-1))
	f.Fuzz(func(t *testing.T, host, path, kind, header, text, timeout string, port int32) {
		w := world{
			gateways: map[types.NamespacedName]*gatewayv1.Gateway{
				key("a", "g"): gatewayOf(t, "  - {name: l, port: 80, protocol: HTTP, hostname: '*.example.com'}\n")},
			services: map[types.NamespacedName]*corev1.Service{key("a", "s"): service(80)},
		}
		pathKind, exact, pattern := gatewayv1.PathMatchType(kind), gatewayv1.HeaderMatchExact,
			gatewayv1.HeaderMatchRegularExpression
		r := &gatewayv1.HTTPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "r"},
			Spec: gatewayv1.HTTPRouteSpec{
				CommonRouteSpec: gatewayv1.CommonRouteSpec{
					ParentRefs: []gatewayv1.ParentReference{{Name: "g"}, {Name: "g", Port: &port}}},
				Hostnames: []gatewayv1.Hostname{gatewayv1.Hostname(host)},
				Rules: []gatewayv1.HTTPRouteRule{{
					Matches: []gatewayv1.HTTPRouteMatch{{
						Path: &gatewayv1.HTTPPathMatch{Type: &pathKind, Value: &path},
						Headers: []gatewayv1.HTTPHeaderMatch{
							{Type: &exact, Name: gatewayv1.HTTPHeaderName(header), Value: text},
							{Type: &pattern, Name: gatewayv1.HTTPHeaderName(text), Value: header},
						},
					}},
					Timeouts: &gatewayv1.HTTPRouteTimeouts{Request: ptr.To(gatewayv1.Duration(timeout))},
					BackendRefs: []gatewayv1.HTTPBackendRef{
						{BackendRef: gatewayv1.BackendRef{
							BackendObjectReference: gatewayv1.BackendObjectReference{Name: "s", Port: &port}}}},
				}},
			}}
		got := TranslateHTTPRoute(w, ports, r)
		for _, p := range got.Model.Places {
			for _, name := range p.Hosts {
				if p.Port != 80 || !strings.HasSuffix(name, ".example.com") {
					t.Errorf("the place %+v is of no listener", p)
				}
			}
		}
		for _, rule := range got.Model.Rules {
			for _, m := range rule.Matches {
				if m.Kind == model.Regex && m.Pattern == nil && len(got.Model.Places) > 0 {
					t.Errorf("a pattern without an expression is served: %+v", m)
				}
			}
		}
	})
}

// TestSecretsOfAnIngress: a hundred, each once, and none of an Ingress that is not served.
// Passwords are not left out.
func TestSecretsOfAnIngress(t *testing.T) {
	in := &networkingv1.Ingress{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "in", Annotations: map[string]string{
			nginx + "auth-type": "basic", nginx + "auth-secret": "users",
		}}}
	for i := range 3 * MostSecrets {
		host := fmt.Sprintf("h%d.example.com", i)
		in.Spec.TLS = append(in.Spec.TLS,
			networkingv1.IngressTLS{Hosts: []string{host}, SecretName: fmt.Sprintf("s%d", i/2)})
		in.Spec.Rules = append(in.Spec.Rules, networkingv1.IngressRule{Host: host})
	}
	certificates, users := IngressSecrets(in)
	if len(certificates) != MostSecrets || certificates[MostSecrets-1].Name != "s99" || len(users) != 1 {
		t.Errorf("%d certificates and %d files of passwords are used", len(certificates), len(users))
	}
	out := TranslateIngress(world{}, Ports{HTTP: 80, HTTPS: 443}, in)
	if !slices.ContainsFunc(out.Problems, func(p string) bool { return strings.Contains(p, "more than 100 Secrets") }) {
		t.Errorf("the problems are %q", out.Problems)
	}
	for i := range out.Listeners {
		for _, c := range out.Listeners[i].Certificates {
			if !slices.Contains(certificates, c) {
				t.Errorf("a listener uses %s, which nobody reads", c)
			}
		}
	}
	in.Annotations[nginx+"configuration-snippet"] = "x"
	if certificates, users := IngressSecrets(in); len(certificates)+len(users) > 0 {
		t.Errorf("of a refused Ingress %d and %d are read", len(certificates), len(users))
	}
}

// TestManySecretsOfAGateway: a hundred, and none of a Gateway that is not served. The listener of a
// further one says so.
func TestManySecretsOfAGateway(t *testing.T) {
	c, ports := world{}, Ports{HTTP: 80, HTTPS: 443, Allowed: []uint16{80, 443}}
	g := &gatewayv1.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "g"},
		Spec: gatewayv1.GatewaySpec{GatewayClassName: "barque"}}
	for i := range 3 {
		tls := &gatewayv1.ListenerTLSConfig{}
		for j := range 60 {
			tls.CertificateRefs = append(tls.CertificateRefs,
				gatewayv1.SecretObjectReference{Name: gatewayv1.ObjectName(fmt.Sprintf("s%d-%d", i, j))})
		}
		hostname := gatewayv1.Hostname(fmt.Sprintf("h%d.example.com", i))
		g.Spec.Listeners = append(g.Spec.Listeners, gatewayv1.Listener{
			Name: gatewayv1.SectionName(fmt.Sprint(i)), Port: 443, Protocol: gatewayv1.HTTPSProtocolType,
			Hostname: &hostname, TLS: tls,
		})
	}
	if got := Secrets(c, g); len(got) != MostSecrets {
		t.Errorf("%d Secrets are read", len(got))
	}
	out := TranslateGateway(c, ports, g)
	for i, want := range []int{60, 40, 0} {
		l := out.Listeners[i]
		resolved := meta.FindStatusCondition(l.Conditions, string(gatewayv1.ListenerConditionResolvedRefs))
		bad := resolved == nil ||
			resolved.Reason == string(gatewayv1.ListenerReasonInvalidCertificateRef) &&
				strings.Contains(resolved.Message, "more than 100 Secrets")
		if len(l.Model.Certificates) != want || bad != (want < 60) || l.Serves != (want > 0) {
			t.Errorf("listener %d: %d certificates, %+v", i, len(l.Model.Certificates), resolved)
		}
	}
	g.Spec.Infrastructure = &gatewayv1.GatewayInfrastructure{ParametersRef: &gatewayv1.LocalParametersReference{}}
	if got := Secrets(c, g); len(got) > 0 {
		t.Errorf("of a refused Gateway %d Secrets are read", len(got))
	}
}
