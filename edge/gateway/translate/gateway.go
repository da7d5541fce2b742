package translate

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/barque/barque/edge/gateway/model"
)

// Gateway is a Gateway with the results of its listeners.
type Gateway struct {
	Listeners []Listener
	// Refused is the field without effect that the Gateway is refused for, or "".
	Refused string
	gateway *gatewayv1.Gateway
	// shown is the fault of the certificate for backends.
	shown fault[gatewayv1.GatewayConditionReason]
}

// Listener is one of a Gateway or of a ListenerSet.
type Listener struct {
	Name  string
	Model model.Listener
	// Serves means that the listener is open. Waits means that its Gateway has no address for it
	// yet, so it is open nowhere.
	Serves     bool
	Waits      bool
	Kinds      []gatewayv1.RouteGroupKind
	Conditions []metav1.Condition
	spec       *gatewayv1.Listener
	// resolved means that all references have their effect.
	resolved bool
}

// holder is the object that has a listener: a Gateway or a ListenerSet.
type holder struct {
	kind, namespace string
	generation      int64
	// secrets are those that it may use, MostSecrets at most; nil while they are collected.
	secrets []types.NamespacedName
	// frontend has the requirements of the Gateway for the certificates of clients.
	frontend frontend
	created  time.Time
}

// newHolder returns a holder of listeners.
func newHolder(c Cluster, kind, namespace string, generation int64, listeners []gatewayv1.Listener) holder {
	of := holder{kind: kind, namespace: namespace, generation: generation}
	all := []types.NamespacedName{}
	for i := range listeners {
		if !needsCertificate(&listeners[i]) {
			continue
		}
		certificates, _, _ := certificatesOf(unread{c}, of, &listeners[i])
		for _, secret := range certificates {
			if len(all) < MostSecrets && !slices.Contains(all, secret) {
				all = append(all, secret)
			}
		}
	}
	of.secrets = all
	return of
}

// TranslateGateway returns the listeners of a Gateway of our class.
func TranslateGateway(c Cluster, ports Ports, g *gatewayv1.Gateway) Gateway {
	out := Gateway{Refused: refusedGateway(g), gateway: g}
	if out.Refused != "" {
		c = unread{c} // nobody reads the Secrets of a Gateway that is not served
	}
	of, at := newHolder(c, "Gateway", g.Namespace, g.Generation, g.Spec.Listeners), siteOf(c, g)
	of.created = g.CreationTimestamp.Time
	of.frontend = frontendOf(c, g)
	_, out.shown = shownBy(c, g)
	for i := range g.Spec.Listeners {
		l := &g.Spec.Listeners[i]
		translated := translateListener(c, at.ports(ports), of, l, siblings(g.Spec.Listeners, l))
		at.put(&translated)
		if out.Refused != "" {
			translated.Serves = false
		}
		out.Listeners = append(out.Listeners, translated)
	}
	return out
}

func open(all []Listener) (n int) {
	for i := range all {
		if all[i].Serves {
			n++
		}
	}
	return n
}

// Missing is the reason for which clients cannot reach a Gateway; its zero value is none.
type Missing struct {
	Reason  gatewayv1.GatewayConditionReason
	Message string
}

// Conditions returns those of the Gateway with its ListenerSets.
func (t *Gateway) Conditions(sets []ListenerSet, missing Missing) []metav1.Condition {
	serving, some := open(t.Listeners), open(t.Listeners) < len(t.Listeners)
	for i := range sets {
		if sets[i].Accepted {
			serving += open(sets[i].Listeners)
		}
	}
	set := func(
		kind gatewayv1.GatewayConditionType, reason gatewayv1.GatewayConditionReason, message string, ok bool,
	) metav1.Condition {
		return condition(string(kind), string(reason), message, ok, t.gateway.Generation)
	}
	accepted, programmed := gatewayv1.GatewayConditionAccepted, gatewayv1.GatewayConditionProgrammed
	var out []metav1.Condition
	switch {
	case otherAddress(t.gateway):
		out = append(out, set(accepted, gatewayv1.GatewayReasonUnsupportedAddress, t.Refused, false))
	case t.Refused != "":
		out = append(out, set(accepted, gatewayv1.GatewayReasonInvalidParameters, t.Refused, false))
	case serving == 0:
		out = append(out, set(accepted, gatewayv1.GatewayReasonListenersNotValid, "no listener is valid", false))
	case some:
		out = append(out, set(accepted, gatewayv1.GatewayReasonListenersNotValid, "some listeners are not valid", true))
	default:
		out = append(out, set(accepted, gatewayv1.GatewayReasonAccepted, "", true))
	}
	switch {
	case t.Refused != "" || serving == 0:
		out = append(out, set(programmed, gatewayv1.GatewayReasonInvalid, "no listener is open", false))
	case missing.Reason != "":
		out = append(out, set(programmed, missing.Reason, missing.Message, false))
	default:
		out = append(out, set(programmed, gatewayv1.GatewayReasonProgrammed, "", true))
	}
	resolved := gatewayv1.GatewayConditionResolvedRefs
	switch {
	case t.shown.reason != "":
		out = append(out, set(resolved, t.shown.reason, t.shown.message, false))
	case slices.ContainsFunc(t.Listeners, func(l Listener) bool { return !l.resolved }):
		out = append(out, set(resolved, gatewayv1.GatewayReasonListenersNotResolved,
			"some listeners have references without effect", false))
	default:
		out = append(out, set(resolved, gatewayv1.GatewayReasonResolvedRefs, "", true))
	}
	if insecure(t.gateway) {
		out = append(out, set(gatewayv1.GatewayConditionInsecureFrontendValidationMode,
			gatewayv1.GatewayReasonConfigurationChanged,
			"clients without a certificate, or with any, are let in: backends have to decide", true))
	}
	return out
}

// refusedGateway returns the field of a Gateway that has no effect here, or "". Such a Gateway is
// refused: its owner relies on that field.
func refusedGateway(g *gatewayv1.Gateway) string {
	switch {
	case otherAddress(g):
		return "spec.addresses has a type that is not supported: IPAddress is"
	case g.Spec.Infrastructure != nil && g.Spec.Infrastructure.ParametersRef != nil:
		return "spec.infrastructure.parametersRef is not supported"
	}
	return ""
}

// otherAddress reports whether a Gateway wants an address that is no IP address.
func otherAddress(g *gatewayv1.Gateway) bool {
	return slices.ContainsFunc(g.Spec.Addresses, func(a gatewayv1.GatewaySpecAddress) bool { return !isIP(a) })
}

func isIP(a gatewayv1.GatewaySpecAddress) bool {
	return value(a.Type, gatewayv1.IPAddressType) == gatewayv1.IPAddressType
}

// clash is the reason for which a listener gives way to another one; its zero value is none.
type clash struct {
	reason  gatewayv1.ListenerConditionReason
	message string
}

func translateListener(c Cluster, ports Ports, of holder, l *gatewayv1.Listener, rival clash) Listener {
	out := Listener{Name: string(l.Name), spec: l}
	out.Model = model.Listener{Port: uint16(l.Port), Hostname: lowerName(l.Hostname), Isolated: true,
		Created: of.created}
	set := func(
		kind gatewayv1.ListenerConditionType, reason gatewayv1.ListenerConditionReason, message string, ok bool,
	) {
		out.Conditions = append(out.Conditions, condition(string(kind), string(reason), message, ok, of.generation))
	}
	if rival.reason == "" {
		rival = elsewhere(ports, l)
	}
	reason, message := acceptListener(ports, l, &out.Model)
	clients, unusable := of.frontend.at(c, l)
	if out.Model.Clients = clients; unusable.reason != "" && len(clients.Authorities) == 0 &&
		reason != gatewayv1.ListenerReasonUnsupportedValue {
		reason, message = gatewayv1.ListenerReasonNoValidCACertificate, unusable.message
	}
	if rival.reason != "" {
		reason, message = rival.reason, rival.message
	}
	serves := reason == gatewayv1.ListenerReasonAccepted
	set(gatewayv1.ListenerConditionAccepted, reason, message, serves)
	if rival.reason != "" {
		set(gatewayv1.ListenerConditionConflicted, rival.reason, rival.message, true)
	} else {
		set(gatewayv1.ListenerConditionConflicted, gatewayv1.ListenerReasonNoConflicts, "", false)
	}
	kinds, unknown := routeKinds(l)
	if out.Kinds = kinds; reason == gatewayv1.ListenerReasonUnsupportedValue {
		out.Kinds = []gatewayv1.RouteGroupKind{} // no route can attach
	}
	resolved, why := gatewayv1.ListenerReasonResolvedRefs, ""
	if unknown {
		resolved, why = gatewayv1.ListenerReasonInvalidRouteKinds,
			"allowedRoutes.kinds has a kind that this protocol does not have"
		serves = serves && len(kinds) > 0
	}
	if needsCertificate(l) {
		certificates, reason, message := certificatesOf(c, of, l)
		if out.Model.Certificates = certificates; reason != "" {
			resolved, why = reason, message
			serves = serves && len(certificates) > 0
		}
	}
	if unusable.reason != "" {
		resolved, why = unusable.reason, unusable.message
	}
	out.resolved = resolved == gatewayv1.ListenerReasonResolvedRefs
	set(gatewayv1.ListenerConditionResolvedRefs, resolved, why, out.resolved)
	switch {
	case serves:
		set(gatewayv1.ListenerConditionProgrammed, gatewayv1.ListenerReasonProgrammed, "", true)
	case rival.reason != "":
		set(gatewayv1.ListenerConditionProgrammed, rival.reason, rival.message, false)
	default:
		set(gatewayv1.ListenerConditionProgrammed, gatewayv1.ListenerReasonInvalid, "see the other conditions", false)
	}
	out.Serves = serves
	return out
}

// tlsMode is the way in which the TLS of a listener ends.
func tlsMode(l *gatewayv1.Listener) gatewayv1.TLSModeType {
	if l.TLS == nil {
		return ""
	}
	return value(l.TLS.Mode, gatewayv1.TLSModeTerminate)
}

// needsCertificate reports whether the gateway ends the TLS of a listener.
func needsCertificate(l *gatewayv1.Listener) bool {
	return l.Protocol == gatewayv1.HTTPSProtocolType ||
		l.Protocol == gatewayv1.TLSProtocolType && tlsMode(l) == gatewayv1.TLSModeTerminate
}

func acceptListener(ports Ports, l *gatewayv1.Listener, m *model.Listener) (gatewayv1.ListenerConditionReason, string) {
	switch mode := tlsMode(l); l.Protocol {
	case gatewayv1.HTTPProtocolType:
		m.Serve = model.HTTP
	case gatewayv1.HTTPSProtocolType:
		if m.Serve = model.HTTPS; mode != gatewayv1.TLSModeTerminate {
			return gatewayv1.ListenerReasonUnsupportedValue, "HTTPS needs tls.mode Terminate"
		}
	case gatewayv1.TLSProtocolType:
		switch mode {
		case gatewayv1.TLSModePassthrough:
			m.Serve = model.Passthrough
		case gatewayv1.TLSModeTerminate:
			m.Serve = model.Terminate
		default:
			return gatewayv1.ListenerReasonUnsupportedValue, "TLS needs tls.mode Passthrough or Terminate"
		}
	default:
		return gatewayv1.ListenerReasonUnsupportedProtocol,
			fmt.Sprintf("the protocol %s is not supported; HTTP, HTTPS and TLS are", l.Protocol)
	}
	if !slices.Contains(ports.Allowed, uint16(l.Port)) {
		return gatewayv1.ListenerReasonPortUnavailable,
			fmt.Sprintf("port %d is not among those of --gateway-ports", l.Port)
	}
	if by := ports.Taken[uint16(l.Port)]; by != "" {
		return gatewayv1.ListenerReasonPortUnavailable, takenText(uint16(l.Port), by)
	}
	return gatewayv1.ListenerReasonAccepted, ""
}

// siblings returns the clash of a listener with another one of the same object. Both lose.
func siblings(all []gatewayv1.Listener, l *gatewayv1.Listener) clash {
	if !supported(l.Protocol) {
		return clash{}
	}
	for i := range all {
		other := &all[i]
		if other.Name == l.Name || other.Port != l.Port || !supported(other.Protocol) {
			continue
		}
		if secure(other) != secure(l) {
			return clash{gatewayv1.ListenerReasonProtocolConflict,
				fmt.Sprintf("the listener %s has another protocol on port %d", other.Name, l.Port)}
		}
		if lowerName(other.Hostname) == lowerName(l.Hostname) {
			return clash{gatewayv1.ListenerReasonHostnameConflict,
				fmt.Sprintf("the listener %s has the same hostname on port %d", other.Name, l.Port)}
		}
	}
	return clash{}
}

func secure(l *gatewayv1.Listener) bool { return l.Protocol != gatewayv1.HTTPProtocolType }

// elsewhere returns the clash of a listener with those of other objects that share its port.
func elsewhere(ports Ports, l *gatewayv1.Listener) clash {
	if mode, known := ports.Modes[uint16(l.Port)]; supported(l.Protocol) && known && mode != secure(l) {
		return clash{gatewayv1.ListenerReasonProtocolConflict,
			fmt.Sprintf(
				"port %d has another protocol for Ingresses or an older Gateway, and all share the nodes' addresses",
				l.Port)}
	}
	return clash{}
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
func certificatesOf(
	c Cluster, of holder, l *gatewayv1.Listener,
) (all []types.NamespacedName, reason gatewayv1.ListenerConditionReason, message string) {
	if l.TLS == nil || len(l.TLS.CertificateRefs) == 0 {
		return nil, gatewayv1.ListenerReasonInvalidCertificateRef, "the listener has no certificate"
	}
	for _, ref := range l.TLS.CertificateRefs {
		if value(ref.Group, "") != "" || value(ref.Kind, "Secret") != "Secret" {
			reason, message = gatewayv1.ListenerReasonInvalidCertificateRef, fmt.Sprintf("%s is no Secret", ref.Name)
			continue
		}
		secret := types.NamespacedName{Namespace: string(value(ref.Namespace, gatewayv1.Namespace(of.namespace))),
			Name: string(ref.Name)}
		if !granted(c, of.kind, of.namespace, "", "Secret", secret) {
			reason, message = gatewayv1.ListenerReasonRefNotPermitted,
				fmt.Sprintf("no ReferenceGrant in %s lets a %s of %s refer to the Secret %s", secret.Namespace, of.kind,
					of.namespace, secret.Name)
			continue
		}
		if of.secrets != nil && !slices.Contains(of.secrets, secret) {
			reason, message = gatewayv1.ListenerReasonInvalidCertificateRef,
				fmt.Sprintf("the %s names more than %d Secrets, and %s is none of the first", of.kind, MostSecrets,
					secret)
			continue
		}
		if err := c.Certificate(secret); err != nil {
			reason, message = gatewayv1.ListenerReasonInvalidCertificateRef,
				fmt.Sprintf("the Secret %s: %v", secret, err)
			continue
		}
		all = append(all, secret)
	}
	return all, reason, message
}

// Secrets returns the Secrets that a Gateway names for its listeners and its backends and may use,
// whatever is in them; none of a Gateway that is not served.
func Secrets(c Cluster, g *gatewayv1.Gateway) []types.NamespacedName {
	if !Ours(c.GatewayClass(string(g.Spec.GatewayClassName))) || refusedGateway(g) != "" {
		return nil
	}
	all := newHolder(c, "Gateway", g.Namespace, g.Generation, g.Spec.Listeners).secrets
	if shown, _ := shownBy(unread{c}, g); shown.Name != "" && !slices.Contains(all, shown) {
		all = append(all, shown)
	}
	return all
}

// unread is a cluster whose Secrets and ConfigMaps nobody has looked at.
type unread struct{ Cluster }

// Certificate implements Cluster.
func (unread) Certificate(types.NamespacedName) error { return nil }

// Authority implements Cluster.
func (unread) Authority(types.NamespacedName) error { return nil }
