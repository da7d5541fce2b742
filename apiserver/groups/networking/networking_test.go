package networking

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/barque/barque/apiserver/groups/grouptest"
)

const meta = "metadata: {name: x, namespace: default, resourceVersion: '1'}\n"

func TestValidateIngress(t *testing.T) {
	ctx := context.Background()
	path := func(s string) string { return "spec: {rules: [{http: {paths: [" + s + "]}}]}" }
	const (
		backend = "backend: {service: {name: a, port: {number: 80}}}"
		at      = "spec.rules[0].http.paths[0]"
	)
	for name, c := range map[string]struct {
		ingress string
		want    []string
	}{
		"paths": {
			path(
				"{path: /, pathType: Prefix, " + backend + "}, {path: /a, pathType: Exact, " + backend +
					"}, {pathType: ImplementationSpecific, " + backend + "}"), nil},
		"default, class, TLS": {
			`spec: {ingressClassName: web, defaultBackend: {service: {name: 1a, port: {name: http}}},
  tls: [{hosts: ['*.example.com', example.com], secretName: s}]}`, nil},
		"hosts": {"spec: {rules: [{host: '*.example.com'}, {host: example.com}, {}]}", nil},
		"resource": {"spec: {defaultBackend: {resource: {apiGroup: example.com, kind: Bucket, name: b}}}",
			nil},
		"nothing": {"spec: {}", []string{grouptest.Invalid + "spec"}},
		"class": {"spec: {ingressClassName: A_b, rules: [{}]}",
			[]string{grouptest.Invalid + "spec.ingressClassName"}},
		"IP as host": {"spec: {rules: [{host: 10.0.0.1}]}", []string{grouptest.Invalid + "spec.rules[0].host"}},
		"host": {"spec: {rules: [{host: A}, {host: 'a.*'}]}",
			[]string{grouptest.Invalid + "spec.rules[0].host", grouptest.Invalid + "spec.rules[1].host"}},
		"TLS": {"spec: {rules: [{}], tls: [{hosts: [A, '*'], secretName: A}]}",
			[]string{grouptest.Invalid + "spec.tls[0].hosts[0]", grouptest.Invalid + "spec.tls[0].hosts[1]",
				grouptest.Invalid + "spec.tls[0].secretName"}},
		"no paths": {"spec: {rules: [{http: {paths: []}}]}",
			[]string{grouptest.Missing + "spec.rules[0].http.paths"}},
		"no path type": {path("{path: /, " + backend + "}"), []string{grouptest.Missing + at + ".pathType"}},
		"path type": {path("{path: /, pathType: Regex, " + backend + "}"),
			[]string{grouptest.Unknown + at + ".pathType"}},
		"relative": {path("{path: a, pathType: Prefix, " + backend + "}"),
			[]string{grouptest.Invalid + at + ".path"}},
		"relative specific": {path("{path: a, pathType: ImplementationSpecific, " + backend + "}"),
			[]string{grouptest.Invalid + at + ".path"}},
		"path parts": {
			path(
				"{path: '/a//b', pathType: Exact, " + backend + "}, {path: '/a/..', pathType: Exact, " + backend + "}"),
			[]string{grouptest.Invalid + at + ".path", grouptest.Invalid + "spec.rules[0].http.paths[1].path"}},
		"no backend": {path("{path: /, pathType: Exact}"), []string{grouptest.Invalid + at + ".backend"}},
		"two backends": {"spec: {defaultBackend: {service: {name: a}, resource: {kind: B, name: b}}}",
			[]string{grouptest.Invalid + "spec.defaultBackend"}},
		"service": {"spec: {defaultBackend: {service: {port: {number: 70000}}}}",
			[]string{grouptest.Missing + "spec.defaultBackend.service.name",
				grouptest.Invalid + "spec.defaultBackend.service.port.number"}},
		"service name": {"spec: {defaultBackend: {service: {name: A, port: {name: A_}}}}",
			[]string{grouptest.Invalid + "spec.defaultBackend.service.name",
				grouptest.Invalid + "spec.defaultBackend.service.port.name",
				grouptest.Invalid + "spec.defaultBackend.service.port.name"}},
		"no port": {"spec: {defaultBackend: {service: {name: a}}}",
			[]string{grouptest.Missing + "spec.defaultBackend"}},
		"two ports": {"spec: {defaultBackend: {service: {name: a, port: {name: a, number: 1}}}}",
			[]string{grouptest.Invalid + "spec.defaultBackend"}},
		"bad resource": {"spec: {defaultBackend: {resource: {apiGroup: A}}}",
			[]string{grouptest.Invalid + "spec.defaultBackend.resource.apiGroup",
				grouptest.Missing + "spec.defaultBackend.resource.kind",
				grouptest.Missing + "spec.defaultBackend.resource.name"}},
	} {
		t.Run(name, func(t *testing.T) {
			i := grouptest.Parse[networkingv1.Ingress](t, meta+c.ingress)
			grouptest.WantErrors(t, validateIngress(ctx, i, nil), c.want...)
			grouptest.WantErrors(t, validateIngress(ctx, i, i), c.want...)
		})
	}
	two := grouptest.Parse[networkingv1.Ingress](t, `
metadata: {name: x, namespace: default, resourceVersion: '1', annotations: {kubernetes.io/ingress.class: a}}
spec: {ingressClassName: b, rules: [{}]}`)
	grouptest.WantErrors(t, validateIngress(ctx, two, nil), grouptest.Invalid+"annotations.kubernetes.io/ingress.class")
	grouptest.WantErrors(t, validateIngress(ctx, two, two))
	if w := ingressWarnings(ctx, two, nil); len(w) != 0 {
		t.Errorf("warnings with a class: %q", w)
	}
	two.Spec.IngressClassName = nil
	if w := ingressWarnings(ctx, two, nil); len(w) != 1 || !strings.Contains(w[0], "deprecated") {
		t.Errorf("warnings without a class: %q", w)
	}
}

func TestIngressStatus(t *testing.T) {
	ctx := context.Background()
	good := grouptest.Parse[networkingv1.Ingress](t,
		"status: {loadBalancer: {ingress: [{ip: 10.0.0.1}, {hostname: a.example.com}, {ip: 'fd00::0001'}]}}")
	grouptest.WantErrors(t, validateIngressStatus(ctx, good, nil))
	if w := ingressStatusWarnings(ctx, good, nil); len(w) != 1 ||
		!strings.Contains(w[0], "status.loadBalancer.ingress[2]") {
		t.Errorf("warnings: %q", w)
	}
	bad := grouptest.Parse[networkingv1.Ingress](t,
		"status: {loadBalancer: {ingress: [{ip: 10.0.0.01}, {hostname: 10.0.0.1}, {hostname: A}]}}")
	grouptest.WantErrors(t, validateIngressStatus(ctx, bad, nil), grouptest.Invalid+"status.loadBalancer.ingress[0].ip",
		grouptest.Invalid+"status.loadBalancer.ingress[1].hostname",
		grouptest.Invalid+"status.loadBalancer.ingress[2].hostname")
}

func TestIngressRow(t *testing.T) {
	i := grouptest.Parse[networkingv1.Ingress](t, meta+`
spec: {ingressClassName: web, tls: [{}], rules: [{host: a}, {}, {host: b}, {host: c}, {host: d}]}
status: {loadBalancer: {ingress: [{ip: 10.0.0.2}, {hostname: h}, {ip: 10.0.0.1}, {ip: 10.0.0.2}]}}`)
	i.CreationTimestamp = grouptest.Ago(time.Hour)
	grouptest.WantRow(t, ingresses(), i, "x", "web", "a,b,c + 2 more...", "10.0.0.1,10.0.0.2,h", "80, 443", "60m")
	grouptest.WantRow(t, ingresses(), grouptest.Parse[networkingv1.Ingress](t, meta+"spec: {rules: [{}]}"),
		"x", "<none>", "*", "", "80", "<unknown>")
	if got := formatHosts([]networkingv1.IngressRule{{Host: "a"}, {Host: "b"}, {Host: "c"}}); got != "a,b,c" {
		t.Errorf("three hosts print as %q", got)
	}
}

func TestIngressClass(t *testing.T) {
	ctx := context.Background()
	const parameters = "spec: {controller: example.com/c, parameters: "
	for name, c := range map[string]struct {
		class string
		want  []string
	}{
		"good":          {"spec: {controller: example.com/c}", nil},
		"cluster":       {parameters + "{apiGroup: example.com, kind: K, name: p}}", nil},
		"namespaced":    {parameters + "{kind: K, name: p, scope: Namespace, namespace: ns}}", nil},
		"controller":    {"spec: {controller: c}", []string{grouptest.Invalid + "spec.controller"}},
		"no controller": {"spec: {}", []string{grouptest.Missing + "spec.controller"}},
		"long": {"spec: {controller: example.com/" + strings.Repeat("a", 240) + "}",
			[]string{grouptest.TooLong + "spec.controller"}},
		"reference": {parameters + "{apiGroup: A, kind: a/b}}",
			[]string{grouptest.Invalid + "spec.parameters.apiGroup", grouptest.Invalid + "spec.parameters.kind",
				grouptest.Missing + "spec.parameters.name"}},
		"scope": {parameters + "{kind: K, name: p, scope: Node}}",
			[]string{grouptest.Unknown + "spec.parameters.scope"}},
		"no namespace": {parameters + "{kind: K, name: p, scope: Namespace}}",
			[]string{grouptest.Missing + "spec.parameters.namespace"}},
		"namespace": {parameters + "{kind: K, name: p, scope: Namespace, namespace: A}}",
			[]string{grouptest.Invalid + "spec.parameters.namespace"}},
		"cluster and ns": {parameters + "{kind: K, name: p, namespace: a}}",
			[]string{grouptest.Forbidden + "spec.parameters.namespace"}},
	} {
		t.Run(name, func(t *testing.T) {
			class := grouptest.Parse[networkingv1.IngressClass](t, "metadata: {name: x}\n"+c.class)
			defaultIngressClass(class)
			grouptest.WantErrors(t, validateIngressClass(ctx, class, nil), c.want...)
		})
	}
	old := grouptest.Parse[networkingv1.IngressClass](t,
		"metadata: {name: x, resourceVersion: '1', annotations: {ingressclass.kubernetes.io/is-default-class: 'true'}}\n"+
			parameters+"{apiGroup: example.com, kind: K, name: p}}")
	defaultIngressClass(old)
	grouptest.WantRow(t, ingressClasses(), old, "x (default)", "example.com/c", "K.example.com/p", "<unknown>")
	if got := formatParameters(nil); got != "<none>" {
		t.Errorf("no parameters print as %q", got)
	}
	class := old.DeepCopy()
	class.Spec.Parameters = nil
	grouptest.WantErrors(t, validateIngressClass(ctx, class, old))
	class.Spec.Controller = "example.com/d"
	grouptest.WantErrors(t, validateIngressClass(ctx, class, old), grouptest.Invalid+"spec.controller")
}

func TestDefaultPolicy(t *testing.T) {
	for in, want := range map[string]string{
		"spec: {}": "spec: {podSelector: {}, policyTypes: [Ingress]}",
		"spec: {egress: [{ports: [{port: 53}]}]}":                                  "spec: {policyTypes: [Ingress, Egress], egress: [{ports: [{port: 53, protocol: TCP}]}]}",
		"spec: {policyTypes: [Egress], ingress: [{ports: [{protocol: UDP}, {}]}]}": "spec: {policyTypes: [Egress], ingress: [{ports: [{protocol: UDP}, {protocol: TCP}]}]}",
	} {
		got := grouptest.Parse[networkingv1.NetworkPolicy](t, in)
		defaultPolicy(got)
		if diff := cmp.Diff(grouptest.Parse[networkingv1.NetworkPolicy](t, want), got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", in, diff)
		}
	}
}

func TestValidatePolicy(t *testing.T) {
	ctx := context.Background()
	for name, c := range map[string]struct {
		spec string
		want []string
	}{
		"deny all": {"podSelector: {}, policyTypes: [Ingress, Egress]", nil},
		"rules": {
			"podSelector: {matchLabels: {a: b}}, ingress: [{ports: [{port: 80, endPort: 90}, {port: http}], from: [{podSelector: {}, namespaceSelector: {}}]}], egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}]}]", nil},
		"selector": {"podSelector: {matchLabels: {'a b': b}}",
			[]string{grouptest.Invalid + "spec.podSelector.matchLabels"}},
		"types":       {"policyTypes: [Up]", []string{grouptest.Unknown + "spec.policyTypes[0]"}},
		"three types": {"policyTypes: [Ingress, Egress, Up]", []string{grouptest.Invalid + "spec.policyTypes"}},
		"protocol": {"ingress: [{ports: [{protocol: ICMP}]}]",
			[]string{grouptest.Unknown + "spec.ingress[0].ports[0].protocol"}},
		"port": {"egress: [{ports: [{port: 0}, {port: A_b}]}]",
			[]string{grouptest.Invalid + "spec.egress[0].ports[0].port",
				grouptest.Invalid + "spec.egress[0].ports[1].port"}},
		"end alone": {"egress: [{ports: [{endPort: 5}]}]",
			[]string{grouptest.Invalid + "spec.egress[0].ports[0].endPort"}},
		"end of name": {"egress: [{ports: [{port: http, endPort: 5}]}]",
			[]string{grouptest.Invalid + "spec.egress[0].ports[0].endPort"}},
		"end before": {"egress: [{ports: [{port: 80, endPort: 5}]}]",
			[]string{grouptest.Invalid + "spec.egress[0].ports[0].endPort"}},
		"end too high": {"egress: [{ports: [{port: 80, endPort: 70000}]}]",
			[]string{grouptest.Invalid + "spec.egress[0].ports[0].endPort"}},
		"no peer": {"ingress: [{from: [{}]}]", []string{grouptest.Missing + "spec.ingress[0].from[0]"}},
		"two peers": {"ingress: [{from: [{podSelector: {}, ipBlock: {cidr: 10.0.0.0/8}}]}]",
			[]string{grouptest.Forbidden + "spec.ingress[0].from[0]"}},
		"peer selector": {
			"ingress: [{from: [{podSelector: {matchLabels: {a: 'b c'}}, namespaceSelector: {matchExpressions: [{key: a, operator: Is}]}}]}]", []string{grouptest.Invalid + "spec.ingress[0].from[0].podSelector.matchLabels", grouptest.Invalid + "spec.ingress[0].from[0].namespaceSelector.matchExpressions[0].operator"}},
		"no CIDR": {"egress: [{to: [{ipBlock: {except: [10.0.0.0/8]}}]}]",
			[]string{grouptest.Missing + "spec.egress[0].to[0].ipBlock.cidr"}},
		"CIDR": {"egress: [{to: [{ipBlock: {cidr: 10.0.0.0}}, {ipBlock: {cidr: 10.0.0.01/8}}]}]",
			[]string{grouptest.Invalid + "spec.egress[0].to[0].ipBlock.cidr",
				grouptest.Invalid + "spec.egress[0].to[1].ipBlock.cidr"}},
		"except": {"egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8, except: [x, 11.0.0.0/16, 10.0.0.0/8]}}]}]",
			[]string{grouptest.Invalid + "spec.egress[0].to[0].ipBlock.except[0]",
				grouptest.Invalid + "spec.egress[0].to[0].ipBlock.except[1]",
				grouptest.Invalid + "spec.egress[0].to[0].ipBlock.except[2]"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := grouptest.Parse[networkingv1.NetworkPolicy](t, meta+"spec: {"+c.spec+"}")
			defaultPolicy(p)
			grouptest.WantErrors(t, validatePolicy(ctx, p, nil), c.want...)
			grouptest.WantErrors(t, validatePolicy(ctx, p, p), c.want...)
		})
	}
}

func TestPolicyRowAndWarnings(t *testing.T) {
	p := grouptest.Parse[networkingv1.NetworkPolicy](t, meta+`
spec: {podSelector: {matchLabels: {a: b}}, ingress: [{from: [{podSelector: {}}, {ipBlock: {cidr: 'fd00::0/8'}}]}], egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8, except: ['10.0.0.5/24']}}]}]}`)
	grouptest.WantRow(t, networkPolicies(), p, "x", "a=b", "<unknown>")
	grouptest.WantRow(t, networkPolicies(), grouptest.Parse[networkingv1.NetworkPolicy](t, meta), "x", "<none>",
		"<unknown>")
	w := policyWarnings(context.Background(), p, nil)
	if len(w) != 2 || !strings.HasPrefix(w[0], "spec.ingress[0].from[1].ipBlock.cidr") ||
		!strings.HasPrefix(w[1], "spec.egress[0].to[0].ipBlock.except[0]") {
		t.Errorf("warnings: %q", w)
	}
}
