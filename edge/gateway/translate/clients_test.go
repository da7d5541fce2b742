package translate

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/barque/barque/edge/gateway/model"
)

// withTLS is a Gateway with two listeners of HTTPS and one of HTTP, and the rest of its spec.
func withTLS(t *testing.T, tls string) *gatewayv1.Gateway {
	return gatewayOf(t, `  - {name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: good}]}}
  - {name: other, port: 8080, protocol: HTTPS, hostname: b.example.com, tls: {certificateRefs: [{name: good}]}}
  - {name: http, port: 80, protocol: HTTP}
  tls: `+tls+"\n")
}

// validation is one with ConfigMaps, and further fields.
func validation(refs string, more ...string) string {
	return "{validation: {caCertificateRefs: [" + refs + "]" + strings.Join(more, "") + "}}"
}

// clientWorld has ConfigMaps and Secrets of which some are bad, and grants of the namespace b.
func clientWorld(t *testing.T) world {
	return world{
		bad: map[types.NamespacedName]error{key("a", "absent"): errors.New("gone"),
			key("a", "bad"): errors.New("no key")},
		grants: map[string][]*gatewayv1.ReferenceGrant{"b": {read[gatewayv1.ReferenceGrant](t, `
spec:
  from: [{group: gateway.networking.k8s.io, kind: Gateway, namespace: a}]
  to: [{group: '', kind: ConfigMap, name: shared}, {group: '', kind: Secret, name: shared}]
`)}},
	}
}

// TestFrontendConditions: the requirements for clients at each listener, and its conditions.
func TestFrontendConditions(t *testing.T) {
	required := func(names ...types.NamespacedName) *model.Clients { return &model.Clients{Authorities: names} }
	refused := func(reason string) string {
		return "Accepted=False/NoValidCACertificate Conflicted=False/NoConflicts ResolvedRefs=False/" + reason +
			" Programmed=False/Invalid"
	}
	inPart := strings.Replace(accepted, "ResolvedRefs=True/ResolvedRefs", "ResolvedRefs=False/InvalidCACertificateRef",
		1)
	shared := "{group: '', kind: ConfigMap, name: shared, namespace: b}"
	private := "{group: '', kind: ConfigMap, name: private, namespace: b}"
	perPort := func(port, validation string) string {
		return ", perPort: [{port: " + port + ", tls: " + validation + "}]"
	}
	for _, c := range []struct {
		name, frontend string
		https, other   *model.Clients
		first, second  string // conditions of the two
	}{
		{"all ports", "default: " + validation(ca), required(key("a", "ca")), required(key("a", "ca")),
			accepted, accepted},
		{"no requirement", "default: {}", nil, nil, accepted, accepted},
		{"one port", "default: {}" + perPort("8080", validation(ca)), nil, required(key("a", "ca")),
			accepted, accepted},
		{"all ports but one", "default: " + validation(ca) + perPort("8080", "{}"), required(key("a", "ca")), nil,
			accepted, accepted},
		{"the port of HTTP", "default: {}" + perPort("80", validation(absent)), nil, nil, accepted, accepted},
		{"optional", "default: " + validation(ca, ", mode: AllowInsecureFallback"),
			&model.Clients{Authorities: []types.NamespacedName{key("a", "ca")}, Optional: true},
			&model.Clients{Authorities: []types.NamespacedName{key("a", "ca")}, Optional: true}, accepted, accepted},
		{"no ConfigMap", "default: " + validation(absent), required(), required(),
			refused("InvalidCACertificateRef"), refused("InvalidCACertificateRef")},
		{"no ConfigMap, optional", "default: {}" + perPort("443", validation(absent, ", mode: AllowInsecureFallback")),
			&model.Clients{Optional: true}, nil, refused("InvalidCACertificateRef"), accepted},
		{"one ConfigMap of two", "default: " + validation(absent+", "+ca), required(key("a", "ca")),
			required(key("a", "ca")), inPart, inPart},
		{"another kind", "default: {}" + perPort("443", validation(secret)), required(), nil,
			refused("InvalidCACertificateKind"), accepted},
		{"with a grant", "default: " + validation(shared), required(key("b", "shared")), required(key("b", "shared")),
			accepted, accepted},
		{"without a grant", "default: {}" + perPort("8080", validation(private)), nil, required(), accepted,
			refused("RefNotPermitted")},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := TranslateGateway(clientWorld(t), ports, withTLS(t, "{frontend: {"+c.frontend+"}}"))
			for i, want := range []struct {
				clients    *model.Clients
				conditions string
			}{{c.https, c.first}, {c.other, c.second}, {nil, accepted}} {
				l := &got.Listeners[i]
				if !reflect.DeepEqual(l.Model.Clients, want.clients) {
					t.Errorf("%s: got %+v, want %+v", l.Name, l.Model.Clients, want.clients)
				}
				if have := reasons(l.Conditions); have != want.conditions {
					t.Errorf("%s:\n got %s\nwant %s", l.Name, have, want.conditions)
				}
				if l.Serves != strings.HasSuffix(want.conditions, "Programmed=True/Programmed") {
					t.Errorf("%s: serves %v", l.Name, l.Serves)
				}
			}
		})
	}
}

// TestNoValidCAComesBeforeThePort: the reason is the missing CA, also at a port that listeners may
// not have. A mode that is not supported comes first: no route can attach then.
func TestNoValidCAComesBeforeThePort(t *testing.T) {
	for listener, want := range map[string]string{
		"{name: l, port: 22, protocol: HTTPS, tls: {certificateRefs: [{name: good}]}}": "NoValidCACertificate",
		"{name: l, port: 443, protocol: HTTPS, tls: {mode: Passthrough}}":              "UnsupportedValue",
	} {
		g := gatewayOf(t, "  - "+listener+"\n  tls: {frontend: {default: "+validation(absent)+"}}\n")
		got := TranslateGateway(clientWorld(t), ports, g).Listeners[0].Conditions[0]
		if got.Reason != want {
			t.Errorf("%s: %s", listener, got.Reason)
		}
	}
}

// TestSetsHaveTheFrontendOfTheirGateway: a listener of a ListenerSet is no way around the
// requirements.
func TestSetsHaveTheFrontendOfTheirGateway(t *testing.T) {
	g := setGateway(t, "All",
		"  - {name: l, port: 80, protocol: HTTP}\n  tls: {frontend: {default: "+validation(ca)+"}}\n")
	s := setOf(t, "b", "s", 1, "  - {name: l, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: good}]}}\n")
	w := world{sets: []*gatewayv1.ListenerSet{s},
		gateways: map[types.NamespacedName]*gatewayv1.Gateway{key("a", "g"): g}}
	want := &model.Clients{Authorities: []types.NamespacedName{key("a", "ca")}}
	if got := TranslateListenerSet(w, ports, g, s).Listeners[0].Model.Clients; !reflect.DeepEqual(got, want) {
		t.Errorf("the listener: %+v", got)
	}
	r := TranslateHTTPRoute(w, ports, read[gatewayv1.HTTPRoute](t,
		"metadata: {name: r, namespace: b}\nspec: {parentRefs: [{kind: ListenerSet, name: s}]}"))
	if len(r.Model.Places) != 1 || !reflect.DeepEqual(r.Model.Places[0].Clients, want) {
		t.Errorf("the route: %+v", r.Model.Places)
	}
}

// TestClientConditions: the conditions of a Gateway with spec.tls.
func TestClientConditions(t *testing.T) {
	const good = "Accepted=True/Accepted Programmed=True/Programmed "
	shown := func(ref string) string { return "{backend: {clientCertificateRef: " + ref + "}}" }
	for _, c := range []struct {
		name, tls, want, secret string
	}{
		{"nothing", "{}", good + "ResolvedRefs=True/ResolvedRefs", ""},
		{"a Secret", shown("{name: good}"), good + "ResolvedRefs=True/ResolvedRefs", "a/good"},
		{"a Secret with a grant", shown("{name: shared, namespace: b}"), good + "ResolvedRefs=True/ResolvedRefs",
			"b/shared"},
		{"a Secret without a grant", shown("{name: private, namespace: b}"),
			good + "ResolvedRefs=False/RefNotPermitted", ""},
		{"no key in the Secret", shown("{name: bad}"), good + "ResolvedRefs=False/InvalidClientCertificateRef",
			"a/bad"},
		{"another kind", shown("{kind: ConfigMap, name: good}"),
			good + "ResolvedRefs=False/InvalidClientCertificateRef", ""},
		{"another group", shown("{group: example.com, name: good}"),
			good + "ResolvedRefs=False/InvalidClientCertificateRef", ""},
		{"clients", "{frontend: {default: " + validation(ca) + "}}", good + "ResolvedRefs=True/ResolvedRefs", ""},
		{"clients with a bad CA", "{frontend: {default: " + validation(ca+", "+absent) + "}}",
			good + "ResolvedRefs=False/ListenersNotResolved", ""},
		{"clients without a CA", "{frontend: {default: " + validation(absent) + "}}",
			"Accepted=True/ListenersNotValid Programmed=True/Programmed ResolvedRefs=False/ListenersNotResolved", ""},
		{"optional", "{frontend: {default: " + validation(ca, ", mode: AllowInsecureFallback") + "}}",
			good + "ResolvedRefs=True/ResolvedRefs InsecureFrontendValidationMode=True/ConfigurationChanged", ""},
		{"optional at a port",
			"{frontend: {default: {}, perPort: [{port: 9, tls: " +
				validation(ca, ", mode: AllowInsecureFallback") + "}]}}",
			good + "ResolvedRefs=True/ResolvedRefs InsecureFrontendValidationMode=True/ConfigurationChanged", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, g := clientWorld(t), withTLS(t, c.tls)
			got := TranslateGateway(w, ports, g)
			if have := reasons(got.Conditions(nil, Missing{})); have != c.want {
				t.Errorf("\n got %s\nwant %s", have, c.want)
			}
			want := []types.NamespacedName{key("a", "good")} // of the listeners
			if c.secret != "" && c.secret != "a/good" {
				namespace, name, _ := strings.Cut(c.secret, "/")
				want = append(want, key(namespace, name))
			}
			if have := Secrets(w, g); !slices.Equal(have, want) {
				t.Errorf("the gateway may read %v, want %v", have, want)
			}
			w.gateways = map[types.NamespacedName]*gatewayv1.Gateway{key("a", "g"): g}
			r := TranslateHTTPRoute(w, ports, read[gatewayv1.HTTPRoute](t,
				"metadata: {name: r, namespace: a}\nspec: {parentRefs: [{name: g, sectionName: http}]}"))
			if have := r.Model.Places[0].Shown; have.Name != "" && have.String() != c.secret ||
				have.Name == "" && c.secret != "" {
				t.Errorf("backends are shown %s, want %q", have, c.secret)
			}
		})
	}
}

// TestGatewayAuthorities: the gateway may read ConfigMaps that a served Gateway names and may use,
// and so many of them.
func TestGatewayAuthorities(t *testing.T) {
	w := clientWorld(t)
	g := withTLS(t, "{frontend: {default: "+validation(ca+", "+secret+", "+absent+
		", {group: '', kind: ConfigMap, name: private, namespace: b}")+
		", perPort: [{port: 443, tls: "+validation("{group: '', kind: ConfigMap, name: shared, namespace: b}, "+ca)+
		"}]}}")
	want := []types.NamespacedName{key("a", "ca"), key("a", "absent"), key("b", "shared")}
	if have := GatewayAuthorities(w, g); !slices.Equal(have, want) {
		t.Errorf("got %v, want %v", have, want)
	}
	other := g.DeepCopy()
	other.Spec.GatewayClassName = "other"
	if have := GatewayAuthorities(w, other); len(have) > 0 {
		t.Errorf("of another class: %v", have)
	}
	refused := g.DeepCopy()
	refused.Spec.Infrastructure = &gatewayv1.GatewayInfrastructure{ParametersRef: &gatewayv1.LocalParametersReference{}}
	if have := GatewayAuthorities(w, refused); len(have) > 0 {
		t.Errorf("of a Gateway that is refused: %v", have)
	}
	var refs []string
	for i := range MostAuthorities + 1 {
		refs = append(refs, fmt.Sprintf("{group: '', kind: ConfigMap, name: c%d}", i))
	}
	many := withTLS(t, "{frontend: {default: "+validation(strings.Join(refs, ", "))+"}}")
	if have := GatewayAuthorities(w, many); len(have) != MostAuthorities {
		t.Errorf("%d ConfigMaps, want %d", len(have), MostAuthorities)
	}
	l := TranslateGateway(w, ports, many).Listeners[0]
	if len(l.Model.Clients.Authorities) != MostAuthorities || l.resolved ||
		!strings.Contains(l.Conditions[2].Message, "a/c100 is none of the first") {
		t.Errorf("%d authorities, %+v", len(l.Model.Clients.Authorities), l.Conditions[2])
	}
}

// FuzzClients: whatever a Gateway says about its clients, a listener of HTTPS with a requirement
// has it, and nothing is read without a right to it.
func FuzzClients(f *testing.F) {
	f.Add("", "ConfigMap", "b", "shared", "AllowValidOnly", int32(443), "Secret", "b", "private")
	f.Add("", "ConfigMap", "", "ca", "AllowInsecureFallback", int32(0), "", "", "good")
	f.Add("x", "Secret", "b", "", "", int32(-1), "ConfigMap", "b", "shared")
	f.Fuzz(func(t *testing.T, group, kind, namespace, name, mode string, port int32, shownKind, shownIn, shown string) {
		w := clientWorld(t)
		g := withTLS(t, "{}")
		ref := gatewayv1.ObjectReference{Group: gatewayv1.Group(group), Kind: gatewayv1.Kind(kind),
			Name: gatewayv1.ObjectName(name), Namespace: (*gatewayv1.Namespace)(&namespace)}
		config := gatewayv1.TLSConfig{Validation: &gatewayv1.FrontendTLSValidation{
			CACertificateRefs: []gatewayv1.ObjectReference{ref}, Mode: gatewayv1.FrontendValidationModeType(mode)}}
		g.Spec.TLS = &gatewayv1.GatewayTLSConfig{
			Frontend: &gatewayv1.FrontendTLSConfig{Default: config,
				PerPort: []gatewayv1.TLSPortConfig{{Port: port, TLS: config}}},
			Backend: &gatewayv1.GatewayBackendTLS{ClientCertificateRef: &gatewayv1.SecretObjectReference{
				Kind: (*gatewayv1.Kind)(&shownKind), Namespace: (*gatewayv1.Namespace)(&shownIn),
				Name: gatewayv1.ObjectName(shown)}},
		}
		for _, l := range TranslateGateway(w, ports, g).Listeners {
			if l.Model.Serve == model.HTTPS && l.Model.Clients == nil {
				t.Errorf("the listener %s wants nothing of its clients", l.Name)
			}
			if l.Serves && l.Model.Clients != nil && len(l.Model.Clients.Authorities) == 0 {
				t.Errorf("the listener %s serves without a CA", l.Name)
			}
		}
		for _, n := range GatewayAuthorities(w, g) {
			if n.Namespace != "a" && n != key("b", "shared") {
				t.Errorf("the ConfigMap %s may be read", n)
			}
		}
		for _, n := range Secrets(w, g) {
			if n.Namespace != "a" && n != key("b", "shared") {
				t.Errorf("the Secret %s may be read", n)
			}
		}
	})
}

// TestIngressClientsAreRefused: an Ingress that wants certificates of clients is not served, and
// says what does it.
func TestIngressClientsAreRefused(t *testing.T) {
	in := read[networkingv1.Ingress](t, `
metadata:
  annotations:
    nginx.ingress.kubernetes.io/auth-tls-secret: a/ca
    nginx.ingress.kubernetes.io/auth-tls-verify-depth: "1"
`)
	a := readAnnotations(in)
	if !a.refused || len(a.problems) != 1 || !strings.Contains(a.problems[0], "spec.tls.frontend of a Gateway") {
		t.Errorf("%v, %q", a.refused, a.problems)
	}
}
