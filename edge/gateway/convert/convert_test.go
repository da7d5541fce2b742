package convert

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/barque/barque/edge/gateway/model"
	"github.com/barque/barque/edge/gateway/translate"
)

// world is the cluster in which the converted objects are translated again.
type world struct {
	known
	gateways map[types.NamespacedName]*gatewayv1.Gateway
}

func (w world) GatewayClass(name string) *gatewayv1.GatewayClass {
	return &gatewayv1.GatewayClass{Spec: gatewayv1.GatewayClassSpec{ControllerName: translate.GatewayController}}
}
func (w world) Gateway(n types.NamespacedName) *gatewayv1.Gateway { return w.gateways[n] }
func (world) Certificate(types.NamespacedName) error              { return nil }
func (world) Policies(types.NamespacedName) []*gatewayv1.BackendTLSPolicy {
	return nil
}

func read(t *testing.T, text string) Input {
	t.Helper()
	var in Input
	if err := in.Read(strings.NewReader(text), ""); err != nil {
		t.Fatal(err)
	}
	return in
}

const base = `
apiVersion: v1
kind: Service
metadata: {namespace: a, name: s}
spec: {ports: [{name: http, port: 80}, {name: admin, port: 8080}]}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {namespace: a, name: i, labels: {app: web}}
spec:
  ingressClassName: barque
  tls: [{hosts: [tls.example.com], secretName: cert}]
  rules:
  - host: plain.example.com
    http: &http
      paths:
      - {path: 'PATH', pathType: ImplementationSpecific, backend: {service: {name: s, port: {name: http}}}}
      - {path: /exact, pathType: Exact, backend: {service: {name: s, port: {number: 8080}}}}
  - host: tls.example.com
    http: *http
`

func ingress(t *testing.T, path string, annotations map[string]string) Input {
	t.Helper()
	in := read(t, strings.ReplaceAll(base, "PATH", path))
	in.Ingresses[0].Annotations = map[string]string{}
	for name, text := range annotations {
		in.Ingresses[0].Annotations["nginx.ingress.kubernetes.io/"+name] = text
	}
	return in
}

// samples are paths of requests.
var samples = []string{"/", "/foo", "/foo/", "/foo/bar", "/foo/bar/baz", "/foobar", "/exact", "/exact/x", "/a/b",
	"/v12/x"}

// outcomes are what a route does with requests for the samples, at each of its places.
func outcomes(cluster known, r *model.Route) (all []string) {
	for _, p := range r.Places {
		indexes := p.Rules
		if indexes == nil {
			for i := range r.Rules {
				indexes = append(indexes, i)
			}
		}
		for _, host := range p.Hosts {
			for _, i := range indexes {
				for _, m := range r.Rules[i].Matches {
					for _, path := range samples {
						if matches(&m, path) {
							all = append(all,
								fmt.Sprintf("%d %d %s%s %v: %s", p.Port, p.Serve, host, path, m.Headers,
									outcome(cluster, &m, &r.Rules[i].Action, path)))
						}
					}
				}
			}
		}
	}
	return all
}

func matches(m *model.Match, path string) bool {
	switch prefix := strings.TrimSuffix(m.Path, "/"); m.Kind {
	case model.Exact:
		return m.Path == path
	case model.Regex:
		return m.Pattern.MatchString(path)
	default:
		return path == prefix || strings.HasPrefix(path, prefix+"/")
	}
}

// outcome describes an action without the form in which the model has it.
func outcome(cluster known, m *model.Match, a *model.Action, path string) string {
	cors := ""
	if a.CORS != nil {
		cors = fmt.Sprintf("%+v", *a.CORS)
	}
	if d := a.Redirect; d != nil {
		to := d.URL
		if to == "" {
			u := url.URL{Scheme: d.Scheme, Host: d.Hostname, Path: changed(m, &d.Path, path)}
			if d.Port != 0 {
				u.Host += fmt.Sprintf(":%d", d.Port)
			}
			to = u.String()
		} else if u, _ := url.Parse(to); u.Path == "" {
			to += "/"
		}
		return fmt.Sprintf("%s %d %s", cors, d.Code, to)
	}
	host := ""
	if a.Filters.Rewrite != nil {
		host, path = a.Filters.Rewrite.Hostname, changed(m, &a.Filters.Rewrite.Path, path)
	}
	var headers []string
	for _, h := range a.Filters.Request.Set {
		if h.Name == "Host" {
			host = h.Value
		} else {
			headers = append(headers, h.Name+"="+h.Value)
		}
	}
	var backends []string
	for _, b := range a.Backends {
		port := b.Port
		for _, p := range cluster.Service(b.Service).Spec.Ports {
			if b.PortName != "" && p.Name == b.PortName {
				port = p.Port
			}
		}
		backends = append(backends, fmt.Sprintf("%s:%d*%d%s", b.Service, port, b.Weight, b.Invalid))
	}
	return fmt.Sprintf("%s host %q path %q headers %v to %v", cors, host, path, headers, backends)
}

// changed is a path after a change, as the specifications of both have it.
func changed(m *model.Match, c *model.PathChange, path string) string {
	switch {
	case c.Full != nil:
		return *c.Full
	case c.Groups != nil && m.Kind == model.Regex:
		found := m.Pattern.FindStringSubmatchIndex(path)
		return string(m.Pattern.ExpandString(nil, *c.Groups, path, found))
	case c.Groups != nil:
		return *c.Groups
	case c.Prefix != nil:
		rest := strings.TrimPrefix(path, strings.TrimSuffix(m.Path, "/"))
		if rest == "" {
			return *c.Prefix
		}
		return strings.TrimSuffix(*c.Prefix, "/") + rest
	}
	return path
}

// TestModelsAgree: the gateway does with the printed objects what it does with the Ingress.
func TestModelsAgree(t *testing.T) {
	tested := map[string]bool{}
	for name, c := range map[string]struct {
		path        string
		annotations map[string]string
	}{
		"none":                 {"/foo", nil},
		"the root":             {"/", nil},
		"rest":                 {"/foo(/|$)(.*)", map[string]string{"rewrite-target": "/$2"}},
		"rest with a prefix":   {"/foo(/|$)(.*)", map[string]string{"rewrite-target": "/app/$2"}},
		"all of it":            {"/(.*)", map[string]string{"rewrite-target": "/$1"}},
		"fixed":                {"/foo", map[string]string{"rewrite-target": "/app"}},
		"expression":           {"/v[0-9]+", map[string]string{"use-regex": "true"}},
		"expression to an end": {"/foo/[a-z]+$", map[string]string{"use-regex": "true"}},
		"choice":               {"/foo|/v[0-9]+", map[string]string{"use-regex": "true"}},
		"no expression":        {"/foo", map[string]string{"use-regex": "false"}},
		"to TLS":               {"/foo", map[string]string{"ssl-redirect": "true"}},
		"to TLS always":        {"/foo", map[string]string{"force-ssl-redirect": "true"}},
		"not to TLS":           {"/foo", map[string]string{"ssl-redirect": "false"}},
		"moved":                {"/foo", map[string]string{"permanent-redirect": "https://new.example.com:8443/there"}},
		"moved, with a code": {"/foo",
			map[string]string{"permanent-redirect": "https://new.example.com", "permanent-redirect-code": "308"}},
		"moved for now": {"/foo", map[string]string{"temporal-redirect": "http://new.example.com/"}},
		"vhost":         {"/foo", map[string]string{"upstream-vhost": "inner.example.com"}},
		"vhost and rewrite": {"/foo",
			map[string]string{"upstream-vhost": "inner.example.com", "rewrite-target": "/app"}},
		"prefix": {"/foo", map[string]string{"x-forwarded-prefix": "/foo"}},
		"CORS":   {"/foo", map[string]string{"enable-cors": "true"}},
		"CORS, own": {"/foo",
			map[string]string{"enable-cors": "true",
				"cors-allow-origin":  "https://a.example.com, https://*.example.org",
				"cors-allow-methods": "GET, PUT", "cors-allow-headers": "X-One", "cors-expose-headers": "X-Two",
				"cors-max-age": "60"}},
		"no CORS":            {"/foo", map[string]string{"enable-cors": "false"}},
		"protocol":           {"/foo", map[string]string{"backend-protocol": "HTTP"}},
		"no limit of a body": {"/foo", map[string]string{"proxy-body-size": "0"}},
		"nginx's own":        {"/foo", map[string]string{"proxy-buffering": "off"}},
		"no canary":          {"/foo", map[string]string{"canary": "false"}},
		"no time-out of that": {"/foo",
			map[string]string{"proxy-read-timeout": "0", "proxy-send-timeout": "0", "proxy-connect-timeout": "0"}},
	} {
		for annotation := range c.annotations {
			tested[annotation] = true
		}
		t.Run(name, func(t *testing.T) {
			in := ingress(t, c.path, c.annotations)
			w := world{known: known{services: in.services()}, gateways: map[types.NamespacedName]*gatewayv1.Gateway{}}
			before := translate.TranslateIngress(w, ports, in.Ingresses[0])
			if len(before.Problems) > 0 {
				t.Fatal(before.Problems)
			}
			got := Convert(in, translate.Class)
			if got.Lost() {
				t.Fatalf("lost: %v", got.Losses())
			}
			for _, g := range got.Gateways {
				w.gateways[types.NamespacedName{Namespace: g.Namespace, Name: g.Name}] = g
				for _, l := range translate.TranslateGateway(w, ports, g).Listeners {
					if !l.Serves {
						t.Errorf("listener %s: %v", l.Name, l.Conditions)
					}
				}
			}
			var after []string
			for _, r := range got.Ingresses[0].Routes {
				translated := translate.TranslateHTTPRoute(w, ports, r)
				for _, p := range translated.Parents {
					for _, c := range p.Conditions {
						if c.Status != "True" {
							t.Errorf("route %s: %+v", r.Name, c)
						}
					}
				}
				after = append(after, outcomes(w.known, translated.Model)...)
			}
			want := outcomes(w.known, before.Model)
			slices.Sort(want)
			slices.Sort(after)
			if !slices.Equal(want, after) {
				t.Errorf("the Ingress:\n%s\nthe Gateway:\n%s", strings.Join(want, "\n"), strings.Join(after, "\n"))
			}
		})
	}
	// An annotation that translate learns is either compared here, or a loss below.
	for _, annotation := range translate.Read() {
		if _, loses := losing[annotation]; !tested[annotation] && !loses {
			t.Errorf("nothing is known of the conversion of %s", annotation)
		}
	}
}

// losing are annotations without an equivalent: a value, and whether the Ingress is left out.
var losing = map[string]struct {
	path    string
	more    map[string]string
	value   string
	leftOut bool
}{
	"proxy-body-size":        {value: "8m"},
	"proxy-connect-timeout":  {value: "5"},
	"proxy-read-timeout":     {value: "5"},
	"proxy-send-timeout":     {value: "5"},
	"affinity":               {value: "cookie"},
	"backend-protocol":       {value: "GRPC"},
	"whitelist-source-range": {value: "192.0.2.0/24", leftOut: true},
	"allowlist-source-range": {value: "192.0.2.0/24", leftOut: true},
	"denylist-source-range":  {value: "192.0.2.0/24", leftOut: true},
	"auth-type":              {value: "basic", more: map[string]string{"auth-secret": "users"}, leftOut: true},
	"auth-url":               {value: "http://auth.example.com/check", leftOut: true},
	"rewrite-target":         {path: "/([^/]+)/(.*)", value: "/$2?tenant=$1", leftOut: true},
	"permanent-redirect":     {value: "https://new.example.com/?a=b", leftOut: true},
	"upstream-vhost":         {value: "192.0.2.1"},
	"enable-cors":            {value: "true", more: map[string]string{"cors-allow-methods": "GET, PURGE"}},
	"configuration-snippet":  {value: "deny all;", leftOut: true},
	"limit-rps":              {value: "5", leftOut: true},
	"load-balance":           {value: "ewma"},
	"canary": {value: "true", more: map[string]string{"canary-weight": "10"},
		leftOut: true}, // of no other Ingress
}

// TestLosses: no annotation without an equivalent is dropped silently, and none that protects is
// dropped at all.
func TestLosses(t *testing.T) {
	for annotation, c := range losing {
		t.Run(annotation, func(t *testing.T) {
			annotations := map[string]string{annotation: c.value}
			for name, text := range c.more {
				annotations[name] = text
			}
			path := c.path
			if path == "" {
				path = "/foo"
			}
			got := Convert(ingress(t, path, annotations), translate.Class)
			if !got.Lost() || got.Ingresses[0].LeftOut != c.leftOut ||
				(len(got.Ingresses[0].Routes) == 0) != c.leftOut {
				t.Errorf("left out: %v, %d routes, %v", got.Ingresses[0].LeftOut, len(got.Ingresses[0].Routes),
					got.Losses())
			}
			names := strings.Join(got.Losses(), "\n")
			if !strings.Contains(names, "nginx.ingress.kubernetes.io/"+annotation) && annotation != "canary" &&
				annotation != "enable-cors" {
				t.Errorf("%s is not named: %s", annotation, names)
			}
		})
	}
}

// TestCanary: a canary's backends go into the rules of the Ingress that it takes requests from.
func TestCanary(t *testing.T) {
	canary := func(annotations map[string]string) Input {
		in := ingress(t, "/foo", nil)
		of := in.Ingresses[0].DeepCopy()
		of.Name = "new"
		of.Annotations = map[string]string{"nginx.ingress.kubernetes.io/canary": "true"}
		for name, text := range annotations {
			of.Annotations["nginx.ingress.kubernetes.io/"+name] = text
		}
		for i := range of.Spec.Rules {
			of.Spec.Rules[i].HTTP.Paths = slices.Clone(of.Spec.Rules[i].HTTP.Paths[:1])
			of.Spec.Rules[i].HTTP.Paths[0].Backend.Service = &networkingv1.IngressServiceBackend{Name: "s2",
				Port: networkingv1.ServiceBackendPort{Number: 81}}
		}
		in.Ingresses = append([]*networkingv1.Ingress{of}, in.Ingresses...)
		return in
	}
	for name, c := range map[string]struct {
		annotations map[string]string
		want        string
		loses       bool
	}{
		"weight": {map[string]string{"canary-weight": "20"}, "/foo: s*80 s2*20", false},
		"total":  {map[string]string{"canary-weight": "2", "canary-weight-total": "4"}, "/foo: s*2 s2*2", false},
		"header": {map[string]string{"canary-by-header": "X-New"},
			"/foo: s*1; /foo X-New=always: s2*1; /foo X-New=never: s*1", false},
		"value": {
			map[string]string{"canary-by-header": "X-New", "canary-by-header-value": "yes", "canary-weight": "50"},
			"/foo: s*50 s2*50; /foo X-New=yes: s2*1", false},
		"pattern": {map[string]string{"canary-by-header": "X-New", "canary-by-header-pattern": "^y"},
			"/foo: s*1; /foo X-New=.*(?:^y).*: s2*1", false},
		"cookie":    {map[string]string{"canary-by-cookie": "new"}, "/foo: s*1", true},
		"nothing":   {nil, "/foo: s*1", false},
		"all of it": {map[string]string{"canary-weight": "100"}, "/foo: s*0 s2*100", false},
		"too much":  {map[string]string{"canary-weight": "200"}, "/foo: s*0 s2*100", false},
		"header first": {map[string]string{"canary-by-header": "X-New", "canary-weight": "10"},
			"/foo: s*90 s2*10; /foo X-New=always: s2*1; /foo X-New=never: s*1", false},
	} {
		t.Run(name, func(t *testing.T) {
			got := Convert(canary(c.annotations), translate.Class)
			if got.Lost() != c.loses {
				t.Errorf("losses %v", got.Losses())
			}
			if n := len(got.Ingresses[1].Routes); n > 0 {
				t.Errorf("the canary has %d routes of its own", n)
			}
			for _, r := range got.Ingresses[0].Routes {
				var rules []string
				for _, rule := range r.Spec.Rules {
					for _, m := range rule.Matches {
						text := *m.Path.Value
						for _, h := range m.Headers {
							text += " " + string(h.Name) + "=" + h.Value
						}
						if *m.Path.Value != "/exact" {
							rules = append(rules, text+":"+backends(rule.BackendRefs))
						}
					}
				}
				want := strings.Split(c.want, "; ")
				slices.Sort(rules)
				slices.Sort(want)
				if !slices.Equal(rules, want) {
					t.Errorf("%s: got %q, want %q", r.Name, rules, want)
				}
			}
		})
	}
}

func backends(refs []gatewayv1.HTTPBackendRef) (text string) {
	for _, ref := range refs {
		weight := int32(1)
		if ref.Weight != nil {
			weight = *ref.Weight
		}
		text += fmt.Sprintf(" %s*%d", ref.Name, weight)
	}
	return text
}

// TestBounds: what does not fit into one object of the Gateway API is divided.
func TestBounds(t *testing.T) {
	in := Input{}
	of := &networkingv1.Ingress{}
	of.Namespace, of.Name = "a", "many"
	for i := range 100 {
		host := fmt.Sprintf("h%d.example.com", i)
		of.Spec.TLS = append(of.Spec.TLS, networkingv1.IngressTLS{Hosts: []string{host}, SecretName: "cert"})
		of.Spec.Rules = append(of.Spec.Rules,
			networkingv1.IngressRule{Host: host,
				IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{}}})
		for j := range 20 {
			of.Spec.Rules[i].HTTP.Paths = append(of.Spec.Rules[i].HTTP.Paths,
				networkingv1.HTTPIngressPath{Path: fmt.Sprintf("/p%d", j), PathType: new(networkingv1.PathTypePrefix),
					Backend: networkingv1.IngressBackend{
						Service: &networkingv1.IngressServiceBackend{Name: fmt.Sprintf("s%d", j),
							Port: networkingv1.ServiceBackendPort{Number: 80}}}})
		}
	}
	in.Ingresses = append(in.Ingresses, of)
	got := Convert(in, translate.Class)
	listeners, hosts := 0, 0
	for _, g := range got.Gateways {
		if n := len(g.Spec.Listeners); n > mostListeners {
			t.Errorf("%s has %d listeners", g.Name, n)
		}
		listeners += len(g.Spec.Listeners)
	}
	names := map[string]bool{}
	for _, r := range got.Ingresses[0].Routes {
		if len(r.Spec.Hostnames) > mostHosts || len(r.Spec.Rules) > mostRules || len(r.Spec.ParentRefs) > 32 ||
			names[r.Name] {
			t.Errorf("%s: %d hosts, %d rules, %d parents", r.Name, len(r.Spec.Hostnames), len(r.Spec.Rules),
				len(r.Spec.ParentRefs))
		}
		names[r.Name] = true
		hosts += len(r.Spec.Hostnames)
	}
	if len(got.Gateways) != 2 || listeners != 101 || hosts != 200 || got.Lost() { // each host in two routes
		t.Errorf("%d Gateways, %d listeners, %d hosts, %v", len(got.Gateways), listeners, hosts, got.Losses())
	}
}

// TestOutput: what a user reads.
func TestOutput(t *testing.T) {
	in := ingress(t, "/foo", map[string]string{"proxy-body-size": "8m", "ssl-redirect": "true"})
	guarded := in.Ingresses[0].DeepCopy()
	guarded.Name, guarded.Annotations = "guarded",
		map[string]string{"ingress.barque.io/auth-url": "http://auth.example.com/"}
	in.Ingresses = append(in.Ingresses, guarded)
	got := Convert(in, "other")
	var out strings.Builder
	if err := got.Write(&out); err != nil {
		t.Fatal(err)
	}
	want := `---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata:
  name: ingress
  namespace: a
spec:
  gatewayClassName: other
  listeners:
  - name: http
    port: 80
    protocol: HTTP
  - hostname: tls.example.com
    name: https-tls.example.com
    port: 443
    protocol: HTTPS
    tls:
      certificateRefs:
      - name: cert
---
# Ingress a/guarded
# It is left out. What it lacks in the Gateway API would open it, or send requests elsewhere:
# LOST: ingress.barque.io/auth-url: the Gateway API has no equivalent: no external authentication in the standard channel
---
# Ingress a/i
# LOST: nginx.ingress.kubernetes.io/proxy-body-size: the Gateway API has no equivalent: no limit of bodies
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata:
  labels:
    app: web
  name: i
  namespace: a
spec:
  hostnames:
  - plain.example.com
  parentRefs:
  - name: ingress
    sectionName: http
`
	if !strings.HasPrefix(out.String(), want) {
		t.Errorf("got\n%s\nwant\n%s…", out.String(), want)
	}
	if n := strings.Count(out.String(), "kind: HTTPRoute"); n != 3 || strings.Contains(out.String(), "\nstatus") ||
		strings.Contains(out.String(), "creationTimestamp") {
		t.Errorf("%d routes in\n%s", n, out.String())
	}
	if again := read(t, out.String()); len(again.Ingresses) != 0 {
		t.Error("the output has Ingresses")
	}
}

// TestRead: other objects of a chart are passed over, and what looks like an Ingress and is none
// that can be read is an error.
func TestRead(t *testing.T) {
	list := "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: i}}\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: c}}\n---\n\n---\n# nothing\n"
	var in Input
	if err := in.Read(strings.NewReader(list), "web"); err != nil || len(in.Ingresses) != 1 ||
		in.Ingresses[0].Namespace != "web" {
		t.Errorf("%v, %+v", err, in.Ingresses)
	}
	for name, text := range map[string]string{
		"old":     "{apiVersion: extensions/v1beta1, kind: Ingress, metadata: {name: i}}",
		"unknown": "{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: i}, spec: {rule: []}}",
		"no kind": "{a: b}",
		"no YAML": "{",
	} {
		if err := new(Input).Read(strings.NewReader(text), ""); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	both := read(t, list)
	both.OfClass("nginx")
	if len(both.Ingresses) != 0 {
		t.Error("an Ingress without a class is of one")
	}
}

// TestPortByName: without its Service, the name of a port has no number.
func TestPortByName(t *testing.T) {
	in := ingress(t, "/foo", nil)
	in.Services = map[types.NamespacedName]*corev1.Service{}
	got := Convert(in, translate.Class)
	if !got.Ingresses[0].LeftOut ||
		!strings.Contains(strings.Join(got.Losses(), ""), `the port "http" of the Service s`) {
		t.Errorf("%v", got.Losses())
	}
	in.Complete = true
	if got := Convert(in, translate.Class); !strings.Contains(strings.Join(got.Losses(), ""),
		"there is no Service a/s") {
		t.Errorf("%v", got.Losses())
	}
}
