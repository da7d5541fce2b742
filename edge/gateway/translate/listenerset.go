package translate

import (
	"cmp"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// ListenerSet is a ListenerSet with the results of its listeners.
type ListenerSet struct {
	Set *gatewayv1.ListenerSet
	// Accepted means that the set belongs to its Gateway. Without that it has no listeners.
	Accepted  bool
	Listeners []Listener
	// refused has the reasons of the conditions Accepted and Programmed of a refused set.
	refused [2]gatewayv1.ListenerSetConditionReason
	message string
}

// Parent is the Gateway that a set names.
func Parent(s *gatewayv1.ListenerSet) (types.NamespacedName, bool) {
	p := &s.Spec.ParentRef
	if value(p.Group, gatewayv1.GroupName) != gatewayv1.GroupName || value(p.Kind, "Gateway") != "Gateway" {
		return types.NamespacedName{}, false
	}
	return types.NamespacedName{Namespace: string(value(p.Namespace, gatewayv1.Namespace(s.Namespace))),
		Name: string(p.Name)}, true
}

// GatewayOf returns the Gateway of our class that a set names, or nil.
func GatewayOf(c Cluster, s *gatewayv1.ListenerSet) *gatewayv1.Gateway {
	name, ok := Parent(s)
	if !ok {
		return nil
	}
	g := c.Gateway(name)
	if g == nil || !Ours(c.GatewayClass(string(g.Spec.GatewayClassName))) {
		return nil
	}
	return g
}

// setsOf are the sets that name a Gateway, in the order in which their listeners count.
func setsOf(c Cluster, g *gatewayv1.Gateway) []*gatewayv1.ListenerSet {
	return slices.SortedFunc(slices.Values(c.ListenerSets(nameOf(g))), func(a, b *gatewayv1.ListenerSet) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Namespace, b.Namespace),
			cmp.Compare(a.Name, b.Name))
	})
}

// allowsSet reports whether a Gateway takes a set of that namespace.
func allowsSet(c Cluster, g *gatewayv1.Gateway, s *gatewayv1.ListenerSet) bool {
	if g.Spec.AllowedListeners == nil || g.Spec.AllowedListeners.Namespaces == nil {
		return false
	}
	n := g.Spec.AllowedListeners.Namespaces
	return includes(c, value(n.From, gatewayv1.NamespacesFromNone), n.Selector, g.Namespace, s.Namespace)
}

func listenersOf(s *gatewayv1.ListenerSet) (all []gatewayv1.Listener) {
	for i := range s.Spec.Listeners {
		all = append(all, gatewayv1.Listener(s.Spec.Listeners[i]))
	}
	return all
}

// TranslateListenerSets returns all sets that name a Gateway of our class.
func TranslateListenerSets(c Cluster, ports Ports, g *gatewayv1.Gateway) (all []ListenerSet) {
	taken := claimsOf(g.Spec.Listeners)
	for _, s := range setsOf(c, g) {
		all = append(all, translateListenerSet(c, ports, g, s, taken))
		if all[len(all)-1].refused[0] != gatewayv1.ListenerSetReasonNotAllowed {
			taken.add(listenersOf(s))
		}
	}
	return all
}

// TranslateListenerSet returns one set of a Gateway of our class.
func TranslateListenerSet(c Cluster, ports Ports, g *gatewayv1.Gateway, set *gatewayv1.ListenerSet) ListenerSet {
	taken := claimsOf(g.Spec.Listeners)
	for _, s := range setsOf(c, g) {
		if s.Namespace == set.Namespace && s.Name == set.Name {
			break
		}
		if allowsSet(c, g, s) {
			taken.add(listenersOf(s))
		}
	}
	return translateListenerSet(c, ports, g, set, taken)
}

func translateListenerSet(
	c Cluster, ports Ports, g *gatewayv1.Gateway, s *gatewayv1.ListenerSet, taken claims,
) ListenerSet {
	out := ListenerSet{Set: s}
	if !allowsSet(c, g, s) {
		out.refused = [2]gatewayv1.ListenerSetConditionReason{gatewayv1.ListenerSetReasonNotAllowed,
			gatewayv1.ListenerSetReasonNotAllowed}
		out.message = fmt.Sprintf(
			"the Gateway allows no ListenerSets of the namespace %s; see its spec.allowedListeners", s.Namespace)
		return out
	}
	if refusedGateway(g) != "" {
		out.refused = [2]gatewayv1.ListenerSetConditionReason{gatewayv1.ListenerSetReasonParentNotAccepted,
			parentNotProgrammed}
		out.message = "the Gateway is not accepted"
		return out
	}
	listeners := listenersOf(s)
	of, at := newHolder(c, "ListenerSet", s.Namespace, s.Generation, listeners), siteOf(c, g)
	of.created = later(g.CreationTimestamp.Time, s.CreationTimestamp.Time)
	of.frontend = frontendOf(c, g)
	for i := range listeners {
		l := &listeners[i]
		rival := siblings(listeners, l)
		if rival.reason == "" {
			rival = taken.rival(l)
		}
		translated := translateListener(c, at.ports(ports), of, l, rival)
		at.put(&translated)
		out.Listeners = append(out.Listeners, translated)
	}
	if out.Accepted = open(out.Listeners) > 0; !out.Accepted {
		out.refused = [2]gatewayv1.ListenerSetConditionReason{gatewayv1.ListenerSetReasonListenersNotValid,
			gatewayv1.ListenerSetReasonListenersNotValid}
		out.message = "no listener is valid"
	}
	return out
}

// parentNotProgrammed is a reason that upstream has in words only.
const parentNotProgrammed gatewayv1.ListenerSetConditionReason = "ParentNotProgrammed"

// Conditions returns those of the set. missing is that of its Gateway.
func (t *ListenerSet) Conditions(missing Missing) []metav1.Condition {
	set := func(
		kind gatewayv1.ListenerSetConditionType, reason gatewayv1.ListenerSetConditionReason, message string, ok bool,
	) metav1.Condition {
		return condition(string(kind), string(reason), message, ok, t.Set.Generation)
	}
	accepted, programmed := gatewayv1.ListenerSetConditionAccepted, gatewayv1.ListenerSetConditionProgrammed
	if !t.Accepted {
		return []metav1.Condition{set(accepted, t.refused[0], t.message, false),
			set(programmed, t.refused[1], t.message, false)}
	}
	out := []metav1.Condition{set(accepted, gatewayv1.ListenerSetReasonAccepted, "", true)}
	if open(t.Listeners) < len(t.Listeners) {
		out[0] = set(accepted, gatewayv1.ListenerSetReasonListenersNotValid, "some listeners are not valid", true)
	}
	if missing.Reason != "" {
		return append(out, set(programmed, parentNotProgrammed, "the Gateway: "+missing.Message, false))
	}
	return append(out, set(programmed, gatewayv1.ListenerSetReasonProgrammed, "", true))
}

// claims are the ports and names of the listeners that count before others: those of the Gateway,
// and of older sets.
type claims struct {
	secure map[gatewayv1.PortNumber]bool
	names  map[claim]bool
}

type claim struct {
	port     gatewayv1.PortNumber
	hostname string
}

func claimsOf(listeners []gatewayv1.Listener) claims {
	c := claims{secure: map[gatewayv1.PortNumber]bool{}, names: map[claim]bool{}}
	c.add(listeners)
	return c
}

// add claims for listeners. What is claimed already stays as it is.
func (c claims) add(listeners []gatewayv1.Listener) {
	for i := range listeners {
		l := &listeners[i]
		if !supported(l.Protocol) {
			continue
		}
		if mode, taken := c.secure[l.Port]; !taken {
			c.secure[l.Port] = secure(l)
		} else if mode != secure(l) {
			continue
		}
		c.names[claim{l.Port, lowerName(l.Hostname)}] = true
	}
}

// rival returns the clash of a listener with an earlier one. Its message does not name the other:
// its owner may be somebody else.
func (c claims) rival(l *gatewayv1.Listener) clash {
	mode, taken := c.secure[l.Port]
	switch {
	case !taken || l.Protocol == gatewayv1.UDPProtocolType:
		return clash{}
	case !supported(l.Protocol) || mode != secure(l):
		return clash{gatewayv1.ListenerReasonProtocolConflict,
			fmt.Sprintf("the Gateway or an older ListenerSet has port %d with another protocol", l.Port)}
	case c.names[claim{l.Port, lowerName(l.Hostname)}]:
		return clash{gatewayv1.ListenerReasonHostnameConflict,
			fmt.Sprintf("the Gateway or an older ListenerSet has that hostname on port %d", l.Port)}
	}
	return clash{}
}

// SetSecrets returns the Secrets that the listeners of a set name and may use, whatever is in them.
// A set that its Gateway does not allow may use none.
func SetSecrets(c Cluster, s *gatewayv1.ListenerSet) []types.NamespacedName {
	g := GatewayOf(c, s)
	if g == nil || !allowsSet(c, g, s) || refusedGateway(g) != "" {
		return nil
	}
	return newHolder(c, "ListenerSet", s.Namespace, s.Generation, listenersOf(s)).secrets
}
