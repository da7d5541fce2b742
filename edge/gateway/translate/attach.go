package translate

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/barque/barque/edge/gateway/model"
)

func lowerName(h *gatewayv1.Hostname) string { return strings.ToLower(string(value(h, ""))) }

// Attached is a listener with a route.
type Attached struct {
	// Kind is Gateway or ListenerSet, Holder the object with the listener.
	Kind     string
	Holder   types.NamespacedName
	Listener string
}

// Route is the translation of a route.
type Route struct {
	Model *model.Route
	// Parents are the conditions for each parent of our class.
	Parents  []gatewayv1.RouteParentStatus
	Attached []Attached
	// Gateways are those of the listeners.
	Gateways []types.NamespacedName
	// Services are those that the route refers to, whether they exist or not.
	Services []types.NamespacedName
}

// object is the part that all kinds of routes have.
type object struct {
	meta  *metav1.ObjectMeta
	kind  string
	spec  *gatewayv1.CommonRouteSpec
	hosts []gatewayv1.Hostname
	// refused names a field without effect here; such a route is not accepted.
	refused  string
	resolved resolved
}

// resolved is the result of the references to backends.
type resolved struct {
	reason   gatewayv1.RouteConditionReason
	message  string
	services []types.NamespacedName
}

func (r *resolved) fail(reason gatewayv1.RouteConditionReason, message string) string {
	if r.reason == "" {
		r.reason, r.message = reason, message
	}
	return message
}

// parent is a Gateway or a ListenerSet that a route names.
type parent struct {
	kind      string
	name      types.NamespacedName
	gateway   *gatewayv1.Gateway
	listeners []Listener
	// refused says why a ListenerSet has no listeners, or "".
	refused string
}

// parentOf returns the parent that a reference names; false if it is none of our class.
func parentOf(c Cluster, ports Ports, o *object, ref *gatewayv1.ParentReference) (p parent, ok bool) {
	if value(ref.Group, gatewayv1.GroupName) != gatewayv1.GroupName {
		return p, false
	}
	p.kind = string(value(ref.Kind, "Gateway"))
	p.name = types.NamespacedName{Namespace: string(value(ref.Namespace, gatewayv1.Namespace(o.meta.Namespace))),
		Name: string(ref.Name)}
	switch p.kind {
	case "Gateway":
		g := c.Gateway(p.name)
		if g == nil || !Ours(c.GatewayClass(string(g.Spec.GatewayClassName))) {
			return p, false
		}
		p.gateway, p.listeners = g, TranslateGateway(unread{c}, ports, g).Listeners
	case "ListenerSet":
		s := c.ListenerSet(p.name)
		if s == nil {
			return p, false
		}
		if p.gateway = GatewayOf(c, s); p.gateway == nil {
			return p, false
		}
		translated := TranslateListenerSet(unread{c}, ports, p.gateway, s)
		p.listeners = translated.Listeners
		if len(p.listeners) == 0 {
			p.refused = "the ListenerSet is not accepted: " + translated.message
		}
	default:
		return p, false
	}
	return p, true
}

// attach places a route at the listeners of its parents.
func attach(c Cluster, ports Ports, o *object, route *model.Route) Route {
	out := Route{Model: route, Services: o.resolved.services}
	for _, ref := range o.spec.ParentRefs {
		p, ok := parentOf(c, ports, o, &ref)
		if !ok {
			continue
		}
		reason, message := out.place(c, o, &ref, &p)
		accepted := condition(string(gatewayv1.RouteConditionAccepted), string(reason), message,
			reason == gatewayv1.RouteReasonAccepted, o.meta.Generation)
		found := condition(string(gatewayv1.RouteConditionResolvedRefs), string(gatewayv1.RouteReasonResolvedRefs), "",
			true, o.meta.Generation)
		if o.resolved.reason != "" {
			found = condition(string(gatewayv1.RouteConditionResolvedRefs), string(o.resolved.reason),
				o.resolved.message, false, o.meta.Generation)
		}
		out.Parents = append(out.Parents,
			gatewayv1.RouteParentStatus{ParentRef: ref, ControllerName: GatewayController,
				Conditions: []metav1.Condition{accepted, found}})
	}
	return out
}

// place adds the places of one parent, and returns whether the route is accepted there.
func (r *Route) place(
	c Cluster, o *object, ref *gatewayv1.ParentReference, p *parent,
) (gatewayv1.RouteConditionReason, string) {
	if o.refused != "" {
		return gatewayv1.RouteReasonUnsupportedValue, o.refused
	}
	if p.refused != "" {
		return gatewayv1.RouteReasonNoMatchingParent, p.refused
	}
	var named, allowed, hosts int
	shown, _ := shownBy(unread{c}, p.gateway)
	for i := range p.listeners {
		l := &p.listeners[i]
		if ref.SectionName != nil && string(*ref.SectionName) != l.Name || ref.Port != nil && *ref.Port != l.spec.Port {
			continue
		}
		named++
		if !allows(c, p.name.Namespace, l, o) {
			continue
		}
		allowed++
		names := namesAt(l.Model.Hostname, o.hosts)
		if len(names) == 0 {
			continue
		}
		hosts++
		r.Attached = append(r.Attached, Attached{Kind: p.kind, Holder: p.name, Listener: l.Name})
		if g := nameOf(p.gateway); !slices.Contains(r.Gateways, g) {
			r.Gateways = append(r.Gateways, g)
		}
		if names = isolated(l, p.listeners, names); l.Serves && !l.Waits && len(names) > 0 {
			r.Model.Places = append(r.Model.Places, model.Place{Port: l.Model.Port, Serve: l.Model.Serve, Hosts: names,
				Addresses: l.Model.Addresses, Clients: l.Model.Clients, Shown: shown})
		}
	}
	switch {
	case named == 0:
		return gatewayv1.RouteReasonNoMatchingParent, "the " + p.kind + " has no listener of that name and port"
	case allowed == 0:
		return gatewayv1.RouteReasonNotAllowedByListeners,
			fmt.Sprintf("no listener allows a %s of the namespace %s", o.kind, o.meta.Namespace)
	case hosts == 0:
		return gatewayv1.RouteReasonNoMatchingListenerHostname, "no listener has one of the hostnames"
	}
	return gatewayv1.RouteReasonAccepted, ""
}

// allows reports whether a listener of a namespace takes routes of that kind and namespace.
func allows(c Cluster, namespace string, l *Listener, o *object) bool {
	if !slices.ContainsFunc(l.Kinds, func(k gatewayv1.RouteGroupKind) bool { return string(k.Kind) == o.kind }) {
		return false
	}
	from, selector := gatewayv1.NamespacesFromSame, (*metav1.LabelSelector)(nil)
	if a := l.spec.AllowedRoutes; a != nil && a.Namespaces != nil {
		from, selector = value(a.Namespaces.From, from), a.Namespaces.Selector
	}
	return includes(c, from, selector, namespace, o.meta.Namespace)
}

// includes reports whether a choice of namespaces, made in one of them, includes another one.
func includes(c Cluster, from gatewayv1.FromNamespaces, selector *metav1.LabelSelector, own, namespace string) bool {
	switch from {
	case gatewayv1.NamespacesFromAll:
		return true
	case gatewayv1.NamespacesFromSelector:
		return selects(c, selector, namespace)
	case gatewayv1.NamespacesFromSame:
		return own == namespace
	}
	return false
}

// namesAt are the names that a route has at a listener.
func namesAt(listener string, hosts []gatewayv1.Hostname) (names []string) {
	if len(hosts) == 0 {
		return []string{listener}
	}
	for _, h := range hosts {
		if name, ok := meet(listener, string(h)); ok && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}
