package translate

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/barque/barque/edge/gateway/model"
)

// Gateway is a Gateway with the results of its listeners.
type Gateway struct {
	Listeners  []Listener
	Conditions []metav1.Condition
}

// Listener is one of them.
type Listener struct {
	Name  string
	Model model.Listener
	// Serves means that the listener is open.
	Serves     bool
	Kinds      []gatewayv1.RouteGroupKind
	Conditions []metav1.Condition
	spec       *gatewayv1.Listener
}

// TranslateGateway returns the listeners of a Gateway of our class. addressed says that the gateway
// has addresses in this cluster.
func TranslateGateway(c Cluster, ports Ports, g *gatewayv1.Gateway, addressed bool) Gateway {
	var out Gateway
	refused := refusedGateway(g)
	open := 0
	for i := range g.Spec.Listeners {
		l := translateListener(c, ports, g, &g.Spec.Listeners[i])
		if refused != "" {
			l.Serves = false
		}
		if l.Serves {
			open++
		}
		out.Listeners = append(out.Listeners, l)
	}
	generation := g.Generation
	accepted := func(reason gatewayv1.GatewayConditionReason, message string, ok bool) metav1.Condition {
		return condition(string(gatewayv1.GatewayConditionAccepted), string(reason), message, ok, generation)
	}
	programmed := func(reason gatewayv1.GatewayConditionReason, message string, ok bool) metav1.Condition {
		return condition(string(gatewayv1.GatewayConditionProgrammed), string(reason), message, ok, generation)
	}
	switch {
	case wantsAddress(g):
		out.Conditions = append(out.Conditions, accepted(gatewayv1.GatewayReasonUnsupportedAddress, refused, false))
	case refused != "":
		out.Conditions = append(out.Conditions, accepted(gatewayv1.GatewayReasonInvalidParameters, refused, false))
	case open == 0:
		out.Conditions = append(out.Conditions, accepted(gatewayv1.GatewayReasonListenersNotValid, "no listener is valid", false))
	case open < len(out.Listeners):
		out.Conditions = append(out.Conditions, accepted(gatewayv1.GatewayReasonListenersNotValid, "some listeners are not valid", true))
	default:
		out.Conditions = append(out.Conditions, accepted(gatewayv1.GatewayReasonAccepted, "", true))
	}
	switch {
	case refused != "" || open == 0:
		out.Conditions = append(out.Conditions, programmed(gatewayv1.GatewayReasonInvalid, "no listener is open", false))
	case !addressed:
		out.Conditions = append(out.Conditions, programmed(gatewayv1.GatewayReasonAddressNotAssigned, "no node runs the gateway", false))
	default:
		out.Conditions = append(out.Conditions, programmed(gatewayv1.GatewayReasonProgrammed, "", true))
	}
	return out
}

// refusedGateway returns the field of a Gateway that has no effect here, or "". Such a Gateway is
// refused: its owner relies on that field.
func refusedGateway(g *gatewayv1.Gateway) string {
	switch {
	case wantsAddress(g):
		return "spec.addresses is not supported: the gateway has the addresses of the nodes"
	case g.Spec.Infrastructure != nil && g.Spec.Infrastructure.ParametersRef != nil:
		return "spec.infrastructure.parametersRef is not supported"
	case g.Spec.TLS != nil:
		return "spec.tls is not supported: clients' certificates are not verified"
	}
	return ""
}

// wantsAddress reports whether a Gateway names an address. An IP address without a value leaves the
// choice to the gateway.
func wantsAddress(g *gatewayv1.Gateway) bool {
	return slices.ContainsFunc(g.Spec.Addresses, func(a gatewayv1.GatewaySpecAddress) bool {
		return value(a.Type, gatewayv1.IPAddressType) != gatewayv1.IPAddressType || a.Value != ""
	})
}

func translateListener(c Cluster, ports Ports, g *gatewayv1.Gateway, l *gatewayv1.Listener) Listener {
	out := Listener{Name: string(l.Name), spec: l}
	out.Model = model.Listener{Port: uint16(l.Port), Hostname: lowerName(l.Hostname), Isolated: true}
	generation := g.Generation
	set := func(kind gatewayv1.ListenerConditionType, reason gatewayv1.ListenerConditionReason, message string, ok bool) {
		out.Conditions = append(out.Conditions, condition(string(kind), string(reason), message, ok, generation))
	}
	serves := true
	reason, message := acceptListener(ports, l, &out.Model)
	set(gatewayv1.ListenerConditionAccepted, reason, message, reason == gatewayv1.ListenerReasonAccepted)
	serves = serves && reason == gatewayv1.ListenerReasonAccepted
	if clash := conflict(ports, g, l); clash != "" {
		set(gatewayv1.ListenerConditionConflicted, gatewayv1.ListenerReasonProtocolConflict, clash, true)
		serves = false
	} else {
		set(gatewayv1.ListenerConditionConflicted, gatewayv1.ListenerReasonNoConflicts, "", false)
	}
	kinds, unknown := routeKinds(l)
	if out.Kinds = kinds; reason == gatewayv1.ListenerReasonUnsupportedValue {
		out.Kinds = []gatewayv1.RouteGroupKind{} // no route can attach
	}
	resolved, why := gatewayv1.ListenerReasonResolvedRefs, ""
	if unknown {
		resolved, why = gatewayv1.ListenerReasonInvalidRouteKinds, "allowedRoutes.kinds has a kind that this protocol does not have"
		serves = serves && len(kinds) > 0
	}
	if l.Protocol == gatewayv1.HTTPSProtocolType {
		certificates, reason, message := certificatesOf(c, g, l)
		if out.Model.Certificates = certificates; reason != "" {
			resolved, why = reason, message
			serves = serves && len(certificates) > 0
		}
	}
	set(gatewayv1.ListenerConditionResolvedRefs, resolved, why, resolved == gatewayv1.ListenerReasonResolvedRefs)
	if serves {
		set(gatewayv1.ListenerConditionProgrammed, gatewayv1.ListenerReasonProgrammed, "", true)
	} else {
		set(gatewayv1.ListenerConditionProgrammed, gatewayv1.ListenerReasonInvalid, "see the other conditions", false)
	}
	out.Serves = serves
	return out
}

func acceptListener(ports Ports, l *gatewayv1.Listener, m *model.Listener) (gatewayv1.ListenerConditionReason, string) {
	switch l.Protocol {
	case gatewayv1.HTTPProtocolType:
		m.Serve = model.HTTP
	case gatewayv1.HTTPSProtocolType:
		if m.Serve = model.HTTPS; l.TLS == nil || value(l.TLS.Mode, gatewayv1.TLSModeTerminate) != gatewayv1.TLSModeTerminate {
			return gatewayv1.ListenerReasonUnsupportedValue, "HTTPS needs tls.mode Terminate"
		}
	case gatewayv1.TLSProtocolType:
		if m.Serve = model.Passthrough; l.TLS == nil || value(l.TLS.Mode, gatewayv1.TLSModeTerminate) != gatewayv1.TLSModePassthrough {
			return gatewayv1.ListenerReasonUnsupportedValue, "the protocol TLS is supported with tls.mode Passthrough only"
		}
	default:
		return gatewayv1.ListenerReasonUnsupportedProtocol, fmt.Sprintf("the protocol %s is not supported; HTTP, HTTPS and TLS are", l.Protocol)
	}
	if !slices.Contains(ports.Allowed, uint16(l.Port)) {
		return gatewayv1.ListenerReasonPortUnavailable, fmt.Sprintf("port %d is not among those of --gateway-ports", l.Port)
	}
	return gatewayv1.ListenerReasonAccepted, ""
}

// conflict returns the rival of a listener, or "".
func conflict(ports Ports, g *gatewayv1.Gateway, l *gatewayv1.Listener) string {
	if !supported(l.Protocol) {
		return ""
	}
	secure := l.Protocol != gatewayv1.HTTPProtocolType
	for i := range g.Spec.Listeners {
		other := &g.Spec.Listeners[i]
		if other.Port == l.Port && supported(other.Protocol) && (other.Protocol != gatewayv1.HTTPProtocolType) != secure {
			return fmt.Sprintf("the listener %s has another protocol on port %d", other.Name, l.Port)
		}
	}
	if mode, known := ports.Modes[uint16(l.Port)]; known && mode != secure {
		return fmt.Sprintf("port %d has another protocol for Ingresses or an older Gateway, and all share the nodes' addresses", l.Port)
	}
	return ""
}

func kindsOf(p gatewayv1.ProtocolType) []string {
	switch p {
	case gatewayv1.HTTPProtocolType, gatewayv1.HTTPSProtocolType:
		return []string{"HTTPRoute", "GRPCRoute"}
	case gatewayv1.TLSProtocolType:
		return []string{"TLSRoute"}
	}
	return nil
}

// routeKinds are the kinds of routes that a listener takes, and whether it names others.
func routeKinds(l *gatewayv1.Listener) (kinds []gatewayv1.RouteGroupKind, unknown bool) {
	kinds = []gatewayv1.RouteGroupKind{}
	group := gatewayv1.Group(gatewayv1.GroupName)
	have := kindsOf(l.Protocol)
	if l.AllowedRoutes == nil || len(l.AllowedRoutes.Kinds) == 0 {
		for _, k := range have {
			kinds = append(kinds, gatewayv1.RouteGroupKind{Group: &group, Kind: gatewayv1.Kind(k)})
		}
		return kinds, false
	}
	for _, k := range l.AllowedRoutes.Kinds {
		if value(k.Group, group) == group && slices.Contains(have, string(k.Kind)) {
			kinds = append(kinds, gatewayv1.RouteGroupKind{Group: &group, Kind: k.Kind})
		} else {
			unknown = true
		}
	}
	return kinds, unknown
}

// certificatesOf returns the Secrets that a listener may use, and the fault of another one.
func certificatesOf(c Cluster, g *gatewayv1.Gateway, l *gatewayv1.Listener) (all []types.NamespacedName, reason gatewayv1.ListenerConditionReason, message string) {
	if l.TLS == nil || len(l.TLS.CertificateRefs) == 0 {
		return nil, gatewayv1.ListenerReasonInvalidCertificateRef, "the listener has no certificate"
	}
	for _, ref := range l.TLS.CertificateRefs {
		if value(ref.Group, "") != "" || value(ref.Kind, "Secret") != "Secret" {
			reason, message = gatewayv1.ListenerReasonInvalidCertificateRef, fmt.Sprintf("%s is no Secret", ref.Name)
			continue
		}
		secret := types.NamespacedName{Namespace: string(value(ref.Namespace, gatewayv1.Namespace(g.Namespace))), Name: string(ref.Name)}
		if !granted(c, "Gateway", g.Namespace, "", "Secret", secret) {
			reason, message = gatewayv1.ListenerReasonRefNotPermitted, fmt.Sprintf("no ReferenceGrant in %s lets Gateways of %s refer to the Secret %s", secret.Namespace, g.Namespace, secret.Name)
			continue
		}
		if err := c.Certificate(secret); err != nil {
			reason, message = gatewayv1.ListenerReasonInvalidCertificateRef, fmt.Sprintf("the Secret %s: %v", secret, err)
			continue
		}
		all = append(all, secret)
	}
	return all, reason, message
}

// Secrets returns the Secrets that the listeners of a Gateway name and may use, whatever is in
// them.
func Secrets(c Cluster, g *gatewayv1.Gateway) (all []types.NamespacedName) {
	if !Ours(c.GatewayClass(string(g.Spec.GatewayClassName))) {
		return nil
	}
	for i := range g.Spec.Listeners {
		if g.Spec.Listeners[i].Protocol == gatewayv1.HTTPSProtocolType {
			certificates, _, _ := certificatesOf(unread{c}, g, &g.Spec.Listeners[i])
			all = append(all, certificates...)
		}
	}
	return all
}

// unread is a cluster whose Secrets nobody has looked at.
type unread struct{ Cluster }

// Certificate implements Cluster.
func (unread) Certificate(types.NamespacedName) error { return nil }
