package translate

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/barque/barque/edge/gateway/model"
)

// MostAuthorities is how many ConfigMaps with the CAs of clients a Gateway may name. Each node
// watches each of them.
const MostAuthorities = 100

// fault is the reason for which a reference has no effect; its zero value is none.
type fault[R ~string] struct {
	reason  R
	message string
}

// frontend has the requirements of a Gateway for the certificates of clients, at all its listeners
// and those of its ListenerSets.
type frontend struct {
	namespace string
	config    *gatewayv1.FrontendTLSConfig // nil is none
	// authorities are the ConfigMaps that it may use, MostAuthorities at most; nil while they are
	// collected.
	authorities []types.NamespacedName
}

func frontendOf(c Cluster, g *gatewayv1.Gateway) frontend {
	f := frontend{namespace: g.Namespace}
	if g.Spec.TLS == nil || g.Spec.TLS.Frontend == nil {
		return f
	}
	f.config = g.Spec.TLS.Frontend
	all := []types.NamespacedName{}
	for _, v := range f.validations() {
		usable, _ := f.authoritiesOf(unread{c}, v)
		for _, name := range usable {
			if len(all) < MostAuthorities && !slices.Contains(all, name) {
				all = append(all, name)
			}
		}
	}
	f.authorities = all
	return f
}

// validations are those for all ports, and then those for single ones.
func (f *frontend) validations() (all []*gatewayv1.FrontendTLSValidation) {
	if f.config == nil {
		return nil
	}
	if v := f.config.Default.Validation; v != nil {
		all = append(all, v)
	}
	for i := range f.config.PerPort {
		if v := f.config.PerPort[i].TLS.Validation; v != nil {
			all = append(all, v)
		}
	}
	return all
}

// at returns the requirements at a listener, with the fault of one of their references. Without a
// usable reference they have no authorities, and nobody meets them. nil is no requirement.
func (f *frontend) at(c Cluster, l *gatewayv1.Listener) (
	clients *model.Clients, wrong fault[gatewayv1.ListenerConditionReason],
) {
	if f.config == nil || l.Protocol != gatewayv1.HTTPSProtocolType {
		return nil, wrong
	}
	v := f.config.Default.Validation
	for i := range f.config.PerPort {
		if f.config.PerPort[i].Port == l.Port {
			v = f.config.PerPort[i].TLS.Validation
		}
	}
	if v == nil {
		return nil, wrong
	}
	clients = &model.Clients{Optional: v.Mode == gatewayv1.AllowInsecureFallback}
	clients.Authorities, wrong = f.authoritiesOf(c, v)
	return clients, wrong
}

// authoritiesOf returns the ConfigMaps that may be used, and the fault of another one.
func (f *frontend) authoritiesOf(c Cluster, v *gatewayv1.FrontendTLSValidation) (
	all []types.NamespacedName, wrong fault[gatewayv1.ListenerConditionReason],
) {
	fail := func(reason gatewayv1.ListenerConditionReason, format string, args ...any) {
		wrong = fault[gatewayv1.ListenerConditionReason]{reason, fmt.Sprintf(format, args...)}
	}
	for _, ref := range v.CACertificateRefs {
		name := types.NamespacedName{Namespace: string(value(ref.Namespace, gatewayv1.Namespace(f.namespace))),
			Name: string(ref.Name)}
		switch {
		case ref.Group != "" || ref.Kind != "ConfigMap":
			fail(gatewayv1.ListenerReasonInvalidCACertificateKind,
				"spec.tls.frontend of the Gateway: %s is a %s; only ConfigMaps are supported", name, ref.Kind)
			continue
		case !granted(c, "Gateway", f.namespace, "", "ConfigMap", name):
			fail(gatewayv1.ListenerReasonRefNotPermitted,
				"no ReferenceGrant in %s lets a Gateway of %s refer to the ConfigMap %s", name.Namespace, f.namespace,
				name.Name)
			continue
		case f.authorities != nil && !slices.Contains(f.authorities, name):
			fail(gatewayv1.ListenerReasonInvalidCACertificateRef,
				"spec.tls.frontend of the Gateway names more than %d ConfigMaps, and %s is none of the first",
				MostAuthorities, name)
			continue
		}
		if err := c.Authority(name); err != nil {
			fail(gatewayv1.ListenerReasonInvalidCACertificateRef,
				"spec.tls.frontend of the Gateway: the ConfigMap %s: %v", name, err)
			continue
		}
		if !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all, wrong
}

// insecure reports whether a Gateway lets in clients whose certificates nobody has vouched for.
func insecure(g *gatewayv1.Gateway) bool {
	if g.Spec.TLS == nil || g.Spec.TLS.Frontend == nil {
		return false
	}
	f := frontend{config: g.Spec.TLS.Frontend}
	return slices.ContainsFunc(f.validations(), func(v *gatewayv1.FrontendTLSValidation) bool {
		return v.Mode == gatewayv1.AllowInsecureFallback
	})
}

// GatewayAuthorities returns the ConfigMaps that a Gateway names for its clients and may use,
// whatever is in them; none of a Gateway that is not served.
func GatewayAuthorities(c Cluster, g *gatewayv1.Gateway) []types.NamespacedName {
	if !Ours(c.GatewayClass(string(g.Spec.GatewayClassName))) || refusedGateway(g) != "" {
		return nil
	}
	return frontendOf(c, g).authorities
}

// shownBy returns the Secret with the certificate that a Gateway shows to backends; its zero value
// is none.
func shownBy(c Cluster, g *gatewayv1.Gateway) (
	secret types.NamespacedName, wrong fault[gatewayv1.GatewayConditionReason],
) {
	if g.Spec.TLS == nil || g.Spec.TLS.Backend == nil || g.Spec.TLS.Backend.ClientCertificateRef == nil {
		return secret, wrong
	}
	fail := func(reason gatewayv1.GatewayConditionReason, format string, args ...any) (
		types.NamespacedName, fault[gatewayv1.GatewayConditionReason],
	) {
		return types.NamespacedName{},
			fault[gatewayv1.GatewayConditionReason]{reason,
				"spec.tls.backend.clientCertificateRef: " + fmt.Sprintf(format, args...)}
	}
	ref := g.Spec.TLS.Backend.ClientCertificateRef
	if kind := value(ref.Kind, "Secret"); value(ref.Group, "") != "" || kind != "Secret" {
		return fail(gatewayv1.GatewayReasonInvalidClientCertificateRef,
			"%s is a %s of the group %q; only Secrets are supported", ref.Name, kind, value(ref.Group, ""))
	}
	secret = types.NamespacedName{Namespace: string(value(ref.Namespace, gatewayv1.Namespace(g.Namespace))),
		Name: string(ref.Name)}
	if !granted(c, "Gateway", g.Namespace, "", "Secret", secret) {
		return fail(gatewayv1.GatewayReasonRefNotPermitted,
			"no ReferenceGrant in %s lets a Gateway of %s refer to the Secret %s", secret.Namespace, g.Namespace,
			secret.Name)
	}
	if err := c.Certificate(secret); err != nil {
		return fail(gatewayv1.GatewayReasonInvalidClientCertificateRef, "the Secret %s: %v", secret, err)
	}
	return secret, wrong
}
