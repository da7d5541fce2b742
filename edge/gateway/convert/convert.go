// Package convert makes objects of the Gateway API out of Ingresses, for users who leave Ingresses
// behind. It converts the model that package translate has made of an Ingress. So it agrees with
// the gateway about the meaning of each annotation.
//
// Invariants:
//   - A part without an equivalent in the Gateway API's standard channel is a loss, and reported.
//   - An Ingress is left out if its routes would open or send elsewhere without that part: limits
//     of clients, authentication, rewrites.
//   - The output depends on the input alone, so that it can be kept beside charts and compared.
package convert

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/barque/barque/edge/gateway/model"
	"github.com/barque/barque/edge/gateway/translate"
)

// Input is a set of Ingresses with the Services that are known.
type Input struct {
	Ingresses []*networkingv1.Ingress
	Services  map[types.NamespacedName]*corev1.Service
	// Complete means that Services has all: another one does not exist.
	Complete bool
}

// Result is the conversion. The objects of a Gateway stand in its namespace, beside its Ingresses.
type Result struct {
	Gateways  []*gatewayv1.Gateway
	Ingresses []Ingress
}

// Ingress is the conversion of one Ingress.
type Ingress struct {
	Name types.NamespacedName
	// LeftOut means that there are no routes, because of the losses.
	LeftOut bool
	// Losses have no equivalent. Notes are differences at the margin.
	Losses, Notes []string
	Routes        []*gatewayv1.HTTPRoute
}

// Lost reports whether any Ingress has a loss.
func (r *Result) Lost() bool {
	return slices.ContainsFunc(r.Ingresses, func(i Ingress) bool { return len(i.Losses) > 0 })
}

// GatewayName is the name of the Gateways.
const GatewayName = "ingress"

// ports are those of the listeners.
var ports = translate.Ports{HTTP: 80, HTTPS: 443, Allowed: []uint16{80, 443}, Modes: map[uint16]bool{80: false,
	443: true}}

// known is the part of a cluster that an Ingress needs: its Services.
type known struct {
	translate.Cluster
	services map[types.NamespacedName]*corev1.Service
}

// Service implements translate.Cluster.
func (k known) Service(name types.NamespacedName) *corev1.Service { return k.services[name] }

// conversion is one Ingress on its way.
type conversion struct {
	Ingress
	in     *networkingv1.Ingress
	hosts  []*host
	canary *model.Canary
	// secrets are those of the hosts with TLS.
	secrets map[string]types.NamespacedName
}

// host has the rules for one name, for plain HTTP and for TLS. Without TLS the latter are nil.
type host struct {
	name          string
	plain, secure []rule
}

// rule is an HTTPRoute's rule, with the place that it came from, for canaries.
type rule struct {
	gatewayv1.HTTPRouteRule
	kind model.PathKind
	path string
}

// Convert converts Ingresses, for Gateways of a class.
func Convert(in Input, gatewayClass string) Result {
	ingresses := slices.SortedFunc(slices.Values(in.Ingresses), func(a, b *networkingv1.Ingress) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	cluster := known{services: in.services()}
	var all []*conversion
	for _, i := range ingresses {
		all = append(all, convert(cluster, i))
	}
	mergeCanaries(all)
	var out Result
	made := map[string]*gateways{}
	for _, c := range all {
		if !c.LeftOut {
			g := made[c.Name.Namespace]
			if g == nil {
				g = &gateways{namespace: c.Name.Namespace, class: gatewayClass, sections: map[string]section{}}
				made[c.Name.Namespace] = g
			}
			c.routes(g)
		}
		c.Losses, c.Notes = unique(c.Losses), unique(c.Notes)
		out.Ingresses = append(out.Ingresses, c.Ingress)
	}
	for _, i := range ingresses {
		if g := made[i.Namespace]; g != nil {
			out.Gateways = append(out.Gateways, g.all...)
			delete(made, i.Namespace)
		}
	}
	return out
}

// services adds Services with the ports that Ingresses name, where those are not known.
func (in *Input) services() map[types.NamespacedName]*corev1.Service {
	out := map[types.NamespacedName]*corev1.Service{}
	for name, s := range in.Services {
		out[name] = s
	}
	if in.Complete {
		return out
	}
	for _, i := range in.Ingresses {
		for _, b := range backendsOf(i) {
			name := types.NamespacedName{Namespace: i.Namespace, Name: b.Name}
			if in.Services[name] != nil {
				continue
			}
			if out[name] == nil {
				out[name] = &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
			}
			out[name].Spec.Ports = append(out[name].Spec.Ports, corev1.ServicePort{Name: b.Port.Name,
				Port: b.Port.Number})
		}
	}
	return out
}

func backendsOf(in *networkingv1.Ingress) (all []*networkingv1.IngressServiceBackend) {
	add := func(b *networkingv1.IngressBackend) {
		if b != nil && b.Service != nil {
			all = append(all, b.Service)
		}
	}
	add(in.Spec.DefaultBackend)
	for i := range in.Spec.Rules {
		if http := in.Spec.Rules[i].HTTP; http != nil {
			for j := range http.Paths {
				add(&http.Paths[j].Backend)
			}
		}
	}
	return all
}

// lose notes a part without an equivalent.
func (c *conversion) lose(format string, args ...any) {
	c.Losses = append(c.Losses, fmt.Sprintf(format, args...))
}

// leaveOut notes a part without which there is no route.
func (c *conversion) leaveOut(format string, args ...any) {
	c.lose(format, args...)
	c.LeftOut = true
}

func (c *conversion) note(format string, args ...any) {
	c.Notes = append(c.Notes, fmt.Sprintf(format, args...))
}

func convert(cluster known, in *networkingv1.Ingress) *conversion {
	c := &conversion{in: in, Ingress: Ingress{Name: types.NamespacedName{Namespace: in.Namespace, Name: in.Name}},
		secrets: map[string]types.NamespacedName{}}
	t := translate.TranslateIngress(cluster, ports, in)
	c.Losses = slices.Clone(t.Problems)
	if t.Refused {
		c.LeftOut = true
		return c
	}
	for _, l := range t.Listeners {
		switch {
		case l.Serve != model.HTTPS:
		case len(l.Certificates) == 0:
			c.lose("TLS of %s: a listener needs a Secret with a certificate, and the Ingress names none",
				hostText(l.Hostname))
		default:
			c.secrets[l.Hostname] = l.Certificates[0]
		}
		if strings.HasPrefix(l.Hostname, "*.") {
			c.note("%s also stands for names with more labels in front in the Gateway API", l.Hostname)
		}
	}
	for i := range t.Model.Places {
		p := &t.Model.Places[i]
		h := c.host(p.Hosts[0])
		var rules []rule
		for _, index := range p.Rules {
			for _, m := range t.Model.Rules[index].Matches {
				rules = append(rules, c.rule(cluster, &m, t.Model.Rules[index].Action))
			}
		}
		if p.Serve == model.HTTP {
			h.plain = rules
		} else if _, ok := c.secrets[h.name]; ok {
			h.secure = rules
		}
	}
	return c
}

func (c *conversion) host(name string) *host {
	for _, h := range c.hosts {
		if h.name == name {
			return h
		}
	}
	h := &host{name: name}
	c.hosts = append(c.hosts, h)
	return h
}

func hostText(name string) string {
	if name == "" {
		return "all hosts"
	}
	return name
}

func unique(all []string) []string {
	slices.Sort(all)
	return slices.Compact(all)
}

// Bounds of an HTTPRoute.
const (
	mostHosts   = 16
	mostRules   = 16
	mostMatches = 64  // of a rule
	mostInRoute = 128 // matches of all rules
)

// group is a set of hosts with the same rules and the same kind of listeners.
type group struct {
	hosts         []string
	plain, secure bool
	rules         []gatewayv1.HTTPRouteRule
}

// routes makes the HTTPRoutes. Hosts with the same rules share them.
func (c *conversion) routes(g *gateways) {
	var groups []*group
	add := func(name string, plain, secure bool, merged []gatewayv1.HTTPRouteRule) {
		if len(merged) == 0 {
			return
		}
		for _, old := range groups {
			named := (name == "") == (old.hosts[0] == "")
			if named && old.plain == plain && old.secure == secure && len(old.hosts) < mostHosts &&
				equality.Semantic.DeepEqual(old.rules, merged) {
				old.hosts = append(old.hosts, name)
				return
			}
		}
		groups = append(groups, &group{hosts: []string{name}, plain: plain, secure: secure, rules: merged})
	}
	for _, h := range c.hosts {
		plain, secure := merge(h.plain), merge(h.secure)
		if h.secure != nil && equality.Semantic.DeepEqual(plain, secure) {
			add(h.name, true, true, plain)
			continue
		}
		add(h.name, true, false, plain)
		add(h.name, false, true, secure)
	}
	for _, of := range groups {
		for _, rules := range parts(of.rules) {
			r := &gatewayv1.HTTPRoute{
				TypeMeta:   metav1.TypeMeta{APIVersion: gatewayv1.GroupVersion.String(), Kind: "HTTPRoute"},
				ObjectMeta: metav1.ObjectMeta{Namespace: c.Name.Namespace, Name: c.Name.Name, Labels: c.in.Labels},
			}
			if n := len(c.Routes); n > 0 {
				r.Name = fmt.Sprintf("%s-%d", c.Name.Name, n+1)
			}
			r.Spec.Rules = rules
			if of.plain {
				r.Spec.ParentRefs = append(r.Spec.ParentRefs, g.plain())
			}
			for _, name := range of.hosts {
				if name != "" {
					r.Spec.Hostnames = append(r.Spec.Hostnames, gatewayv1.Hostname(name))
				}
				if of.secure {
					r.Spec.ParentRefs = append(r.Spec.ParentRefs, g.secure(name, c.secrets[name]))
				}
			}
			c.Routes = append(c.Routes, r)
		}
	}
}

// merge puts the matches of rules that do the same into one rule.
func merge(rules []rule) (out []gatewayv1.HTTPRouteRule) {
	for i := range rules {
		next := rules[i].DeepCopy()
		same := slices.IndexFunc(out, func(o gatewayv1.HTTPRouteRule) bool {
			return len(o.Matches) < mostMatches && equality.Semantic.DeepEqual(o.Filters, next.Filters) &&
				equality.Semantic.DeepEqual(o.BackendRefs, next.BackendRefs)
		})
		if same < 0 {
			out = append(out, *next)
		} else {
			out[same].Matches = append(out[same].Matches, next.Matches...)
		}
	}
	return out
}

// parts divides rules among as many HTTPRoutes as they need. The order of rules does not depend on
// that: the longer path wins.
func parts(rules []gatewayv1.HTTPRouteRule) (out [][]gatewayv1.HTTPRouteRule) {
	var part []gatewayv1.HTTPRouteRule
	matches := 0
	for _, r := range rules {
		if len(part) == mostRules || matches+len(r.Matches) > mostInRoute {
			out, part, matches = append(out, part), nil, 0
		}
		part, matches = append(part, r), matches+len(r.Matches)
	}
	return append(out, part)
}
