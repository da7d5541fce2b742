package translate

import (
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

func policyOf(t *testing.T, name string, second int64, spec string) *gatewayv1.BackendTLSPolicy {
	p := read[gatewayv1.BackendTLSPolicy](t, "metadata: {name: "+name+", namespace: a}\nspec: "+spec)
	p.CreationTimestamp = metav1.Unix(second, 0)
	return p
}

// withCA are the requirements of a policy for a target, with ConfigMaps.
func withCA(target, refs string) string {
	return "{targetRefs: [{group: '', kind: Service, " + target +
		"}], validation: {hostname: h.example.com, caCertificateRefs: [" + refs + "]}}"
}

const (
	ca     = "{group: '', kind: ConfigMap, name: ca}"
	absent = "{group: '', kind: ConfigMap, name: absent}"
	secret = "{group: '', kind: Secret, name: ca}"
)

func TestPolicyConditions(t *testing.T) {
	for _, c := range []struct{ name, spec, want, invalid string }{
		{"good", withCA("name: s", ca), "Accepted=True/Accepted ResolvedRefs=True/ResolvedRefs", ""},
		{"a port", withCA("name: s, sectionName: http", ca), "Accepted=True/Accepted ResolvedRefs=True/ResolvedRefs",
			""},
		{"no such port", withCA("name: s, sectionName: other", ca),
			"Accepted=False/TargetNotFound ResolvedRefs=True/ResolvedRefs", ""},
		{"no such Service", withCA("name: none", ca), "Accepted=False/TargetNotFound ResolvedRefs=True/ResolvedRefs",
			""},
		{"no ConfigMap", withCA("name: s", absent),
			"Accepted=False/NoValidCACertificate ResolvedRefs=False/InvalidCACertificateRef",
			"the ConfigMap a/absent: gone"},
		{"one ConfigMap of two", withCA("name: s", ca+", "+absent),
			"Accepted=True/Accepted ResolvedRefs=False/InvalidCACertificateRef", ""},
		{"another kind", withCA("name: s", secret),
			"Accepted=False/NoValidCACertificate ResolvedRefs=False/InvalidKind",
			"ca is a Secret; only ConfigMaps are supported"},
		{"of the system",
			"{targetRefs: [{group: '', kind: Service, name: s}], validation: {hostname: h, wellKnownCACertificates: System}}",
			"Accepted=True/Accepted ResolvedRefs=True/ResolvedRefs", ""},
		{"of somebody",
			"{targetRefs: [{group: '', kind: Service, name: s}], validation: {hostname: h, wellKnownCACertificates: x.org/y}}",
			"Accepted=False/Invalid ResolvedRefs=True/ResolvedRefs",
			`wellKnownCACertificates "x.org/y" is not supported; System is`},
		{"options",
			"{targetRefs: [{group: '', kind: Service, name: s}], validation: {hostname: h, wellKnownCACertificates: System}, options: {x.org/y: z}}",
			"Accepted=False/Invalid ResolvedRefs=True/ResolvedRefs", "options are not supported"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := policyOf(t, "p", 1, c.spec)
			w := world{
				services: map[types.NamespacedName]*corev1.Service{key("a", "s"): service(80)},
				bad:      map[types.NamespacedName]error{key("a", "absent"): errors.New("gone")},
				policies: []*gatewayv1.BackendTLSPolicy{p},
			}
			got := TranslatePolicy(w, p)
			if have := reasons(got.Conditions); have != c.want || got.Verify.Invalid != c.invalid {
				t.Errorf("got %s, %q\nwant %s, %q", have, got.Verify.Invalid, c.want, c.invalid)
			}
		})
	}
}

// TestFirstPolicy: the policy for the port counts before that for the Service, and of two for the
// same the older one.
func TestFirstPolicy(t *testing.T) {
	named := func(name string, second int64, target string) *gatewayv1.BackendTLSPolicy {
		return policyOf(t, name, second,
			"{targetRefs: [{group: '', kind: Service, "+target+"}], validation: {hostname: "+name+
				", wellKnownCACertificates: System}}")
	}
	whole, later, port, foreign := named("whole", 1, "name: s"), named("later", 2, "name: s"),
		named("port", 3, "name: s, sectionName: other"), named("foreign", 0, "name: t")
	s := service(80)
	s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Port: 81, Name: "other"})
	w := world{
		gateways: map[types.NamespacedName]*gatewayv1.Gateway{
			key("a", "g"): gatewayOf(t, "  - {name: l, port: 80, protocol: HTTP}\n")},
		services: map[types.NamespacedName]*corev1.Service{key("a", "s"): s, key("a", "u"): service(80)},
		policies: []*gatewayv1.BackendTLSPolicy{later, port, foreign, whole},
	}
	for want, of := range map[string]*gatewayv1.BackendTLSPolicy{
		"Accepted=True/Accepted ResolvedRefs=True/ResolvedRefs":    whole,
		"Accepted=False/Conflicted ResolvedRefs=True/ResolvedRefs": later,
	} {
		if have := reasons(TranslatePolicy(w, of).Conditions); have != want {
			t.Errorf("%s: got %s, want %s", of.Name, have, want)
		}
	}
	r := TranslateHTTPRoute(w, ports,
		read[gatewayv1.HTTPRoute](t,
			"metadata: {name: r, namespace: a}\nspec: {parentRefs: [{name: g}], rules: [{backendRefs: [{name: s, port: 80}, {name: s, port: 81}, {name: u, port: 80}]}]}"))
	backends := r.Model.Rules[0].Action.Backends
	if backends[0].Verify.Hostname != "whole" || backends[1].Verify.Hostname != "port" || backends[2].Verify != nil {
		t.Errorf("%+v", backends)
	}
}

func TestPolicyNames(t *testing.T) {
	p := policyOf(t, "p", 1, `
  targetRefs: [{group: '', kind: Service, name: s}, {group: x, kind: Other, name: z}]
  validation:
    hostname: h.example.com
    caCertificateRefs: [{group: '', kind: ConfigMap, name: ca}, {group: '', kind: Secret, name: ca2}]
    subjectAltNames: [{type: Hostname, hostname: A.example.com}, {type: URI, uri: "spiffe://x/Y"}]
`)
	got := TranslatePolicy(world{}, p).Verify
	if !slices.Equal(got.Names, []string{"a.example.com", "spiffe://x/Y"}) ||
		!slices.Equal(got.Authorities, []types.NamespacedName{key("a", "ca")}) {
		t.Errorf("%+v", got)
	}
	if all := Targets(p); !slices.Equal(all, []types.NamespacedName{key("a", "s")}) {
		t.Error(all)
	}
	if all := Authorities(p); !slices.Equal(all, []types.NamespacedName{key("a", "ca")}) {
		t.Error(all)
	}
}
