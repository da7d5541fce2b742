package translate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/barque/barque/edge/gateway/model"
)

// Policy is the translation of a BackendTLSPolicy.
type Policy struct {
	Verify     *model.Verify
	Conditions []metav1.Condition
}

// Targets are the Services that a policy is for.
func Targets(p *gatewayv1.BackendTLSPolicy) (all []types.NamespacedName) {
	for i := range p.Spec.TargetRefs {
		t := &p.Spec.TargetRefs[i]
		if name := (types.NamespacedName{Namespace: p.Namespace, Name: string(t.Name)}); t.Group == "" &&
			t.Kind == "Service" && !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all
}

// Authorities are the ConfigMaps that a policy names.
func Authorities(p *gatewayv1.BackendTLSPolicy) (all []types.NamespacedName) {
	for _, ref := range p.Spec.Validation.CACertificateRefs {
		if ref.Group == "" && ref.Kind == "ConfigMap" {
			all = append(all, types.NamespacedName{Namespace: p.Namespace, Name: string(ref.Name)})
		}
	}
	return all
}

// TranslatePolicy translates a policy, with the conditions that it has at each Gateway.
func TranslatePolicy(c Cluster, p *gatewayv1.BackendTLSPolicy) Policy {
	verify, resolved := verification(c, p)
	accepted := policyCondition(p, gatewayv1.PolicyConditionAccepted, gatewayv1.PolicyReasonAccepted, "")
	why := verify.Invalid
	switch {
	case why != "" && resolved.Status == metav1.ConditionFalse:
		accepted = policyCondition(p, gatewayv1.PolicyConditionAccepted,
			gatewayv1.BackendTLSPolicyReasonNoValidCACertificate, why)
	case why != "":
		accepted = policyCondition(p, gatewayv1.PolicyConditionAccepted, gatewayv1.PolicyReasonInvalid, why)
	default:
		if reason, message := precedence(c, p); reason != "" {
			accepted = policyCondition(p, gatewayv1.PolicyConditionAccepted, reason, message)
		}
	}
	return Policy{Verify: verify, Conditions: []metav1.Condition{accepted, resolved}}
}

func policyCondition(
	p *gatewayv1.BackendTLSPolicy, kind gatewayv1.PolicyConditionType, reason gatewayv1.PolicyConditionReason,
	message string,
) metav1.Condition {
	ok := reason == gatewayv1.PolicyReasonAccepted || reason == gatewayv1.BackendTLSPolicyReasonResolvedRefs
	return condition(string(kind), string(reason), message, ok, p.Generation)
}

// verification reads the requirements of a policy, and whether its references exist.
func verification(c Cluster, p *gatewayv1.BackendTLSPolicy) (*model.Verify, metav1.Condition) {
	v := &p.Spec.Validation
	out := &model.Verify{Hostname: string(v.Hostname)}
	for i := range v.SubjectAltNames {
		name := &v.SubjectAltNames[i]
		switch name.Type {
		case gatewayv1.HostnameSubjectAltNameType:
			out.Names = append(out.Names, strings.ToLower(string(name.Hostname)))
		case gatewayv1.URISubjectAltNameType:
			out.Names = append(out.Names, string(name.URI))
		default:
			out.Invalid = fmt.Sprintf("the type %s of a subjectAltName is not supported", name.Type)
		}
	}
	reason, message := gatewayv1.BackendTLSPolicyReasonResolvedRefs, ""
	for _, ref := range v.CACertificateRefs {
		if ref.Group != "" || ref.Kind != "ConfigMap" {
			reason, message = gatewayv1.BackendTLSPolicyReasonInvalidKind,
				fmt.Sprintf("%s is a %s; only ConfigMaps are supported", ref.Name, ref.Kind)
			continue
		}
		name := types.NamespacedName{Namespace: p.Namespace, Name: string(ref.Name)}
		if err := c.Authority(name); err != nil {
			reason, message = gatewayv1.BackendTLSPolicyReasonInvalidCACertificateRef,
				fmt.Sprintf("the ConfigMap %s: %v", name, err)
			continue
		}
		out.Authorities = append(out.Authorities, name)
	}
	switch {
	case len(p.Spec.Options) > 0:
		out.Invalid = "options are not supported"
	case len(v.CACertificateRefs) > 0 && len(out.Authorities) == 0:
		out.Invalid = message
	case len(v.CACertificateRefs) == 0 &&
		value(v.WellKnownCACertificates, "") != gatewayv1.WellKnownCACertificatesSystem:
		out.Invalid = fmt.Sprintf("wellKnownCACertificates %q is not supported; System is",
			value(v.WellKnownCACertificates, ""))
	}
	return out, policyCondition(p, gatewayv1.BackendTLSPolicyConditionResolvedRefs, reason, message)
}

// precedence returns why a policy has no effect for any of its targets, or "".
func precedence(c Cluster, p *gatewayv1.BackendTLSPolicy) (reason gatewayv1.PolicyConditionReason, message string) {
	for i := range p.Spec.TargetRefs {
		t := &p.Spec.TargetRefs[i]
		if t.Group != "" || t.Kind != "Service" {
			continue
		}
		name := types.NamespacedName{Namespace: p.Namespace, Name: string(t.Name)}
		service, section := c.Service(name), string(value(t.SectionName, ""))
		if service == nil ||
			section != "" &&
				!slices.ContainsFunc(service.Spec.Ports,
					func(port corev1.ServicePort) bool { return port.Name == section }) {
			if reason == "" {
				reason, message = gatewayv1.PolicyReasonTargetNotFound,
					fmt.Sprintf("there is no Service %s with the port %q", name, section)
				if section == "" {
					message = fmt.Sprintf("there is no Service %s", name)
				}
			}
			continue
		}
		first := firstPolicy(c, name, section)
		if first == nil || nameOf(first) == nameOf(p) {
			return "", ""
		}
		reason, message = gatewayv1.PolicyReasonConflicted,
			fmt.Sprintf("the older policy %s is for the same target", first.Name)
	}
	return reason, message
}

// firstPolicy returns the oldest of the policies for a Service with that section; nil without one.
func firstPolicy(c Cluster, service types.NamespacedName, section string) (first *gatewayv1.BackendTLSPolicy) {
	for _, p := range c.Policies(service) {
		if !slices.ContainsFunc(p.Spec.TargetRefs, func(t gatewayv1.LocalPolicyTargetReferenceWithSectionName) bool {
			return t.Group == "" && t.Kind == "Service" && string(t.Name) == service.Name &&
				string(value(t.SectionName, "")) == section
		}) {
			continue
		}
		if first == nil ||
			cmp.Or(p.CreationTimestamp.Compare(first.CreationTimestamp.Time), cmp.Compare(p.Name, first.Name)) < 0 {
			first = p
		}
	}
	return first
}

// verifyOf returns the requirements for a port of a Service: those of the policy for the port, or
// else for the whole Service. nil without one.
func verifyOf(c Cluster, service types.NamespacedName, port string) *model.Verify {
	var p *gatewayv1.BackendTLSPolicy
	if port != "" {
		p = firstPolicy(c, service, port)
	}
	if p == nil {
		p = firstPolicy(c, service, "")
	}
	if p == nil {
		return nil
	}
	verify, _ := verification(c, p)
	return verify
}
