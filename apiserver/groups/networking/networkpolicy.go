package networking

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/groups/validation"
	"github.com/barque/barque/apiserver/resource"
)

func networkPolicies() resource.Resource {
	return &resource.Kind[networkingv1.NetworkPolicy]{
		GroupVersion: version,
		Name:         "networkpolicies",
		Singular:     "networkpolicy",
		ShortNames:   []string{"netpol"},
		List:         &networkingv1.NetworkPolicyList{},
		Generation:   true,
		Default:      defaultPolicy,
		Validate:     validatePolicy,
		Warnings:     policyWarnings,
		Columns: []metav1.TableColumnDefinition{
			resource.Name(),
			resource.Column("Pod-Selector", "string", "Labels of the pods to which the policy applies."),
			resource.Age(),
		},
		Row: func(p *networkingv1.NetworkPolicy, now time.Time) []any {
			return []any{p.Name, metav1.FormatLabelSelector(&p.Spec.PodSelector),
				resource.Since(p.CreationTimestamp, now)}
		},
	}
}

func defaultPolicy(p *networkingv1.NetworkPolicy) {
	if len(p.Spec.PolicyTypes) == 0 {
		p.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
		if len(p.Spec.Egress) > 0 {
			p.Spec.PolicyTypes = append(p.Spec.PolicyTypes, networkingv1.PolicyTypeEgress)
		}
	}
	for i := range p.Spec.Ingress {
		defaultPolicyPorts(p.Spec.Ingress[i].Ports)
	}
	for i := range p.Spec.Egress {
		defaultPolicyPorts(p.Spec.Egress[i].Ports)
	}
}

func defaultPolicyPorts(ports []networkingv1.NetworkPolicyPort) {
	for i := range ports {
		if ports[i].Protocol == nil {
			ports[i].Protocol = ptr.To(corev1.ProtocolTCP)
		}
	}
}

// policyRule is an ingress or egress rule, with the name of its peers.
type policyRule struct {
	at    *field.Path
	ports []networkingv1.NetworkPolicyPort
	side  string
	peers []networkingv1.NetworkPolicyPeer
}

// policyRules lists the rules of both directions.
func policyRules(spec *networkingv1.NetworkPolicySpec, at *field.Path) []policyRule {
	var rules []policyRule
	for i, r := range spec.Ingress {
		rules = append(rules, policyRule{at.Child("ingress").Index(i), r.Ports, "from", r.From})
	}
	for i, r := range spec.Egress {
		rules = append(rules, policyRule{at.Child("egress").Index(i), r.Ports, "to", r.To})
	}
	return rules
}

func policyWarnings(_ context.Context, p, _ *networkingv1.NetworkPolicy) []string {
	var warnings []string
	for _, rule := range policyRules(&p.Spec, field.NewPath("spec")) {
		for i, peer := range rule.peers {
			if peer.IPBlock == nil {
				continue
			}
			at := rule.at.Child(rule.side).Index(i).Child("ipBlock")
			warnings = append(warnings, utilvalidation.GetWarningsForCIDR(at.Child("cidr"), peer.IPBlock.CIDR)...)
			for j, except := range peer.IPBlock.Except {
				warnings = append(warnings, utilvalidation.GetWarningsForCIDR(at.Child("except").Index(j), except)...)
			}
		}
	}
	return warnings
}

func validatePolicy(_ context.Context, p, old *networkingv1.NetworkPolicy) field.ErrorList {
	errs := validation.Meta(p, old, true, validation.SubdomainName)
	at := field.NewPath("spec")
	errs = append(errs, validation.LabelSelector(&p.Spec.PodSelector, at.Child("podSelector"))...)
	for _, rule := range policyRules(&p.Spec, at) {
		for i := range rule.ports {
			errs = append(errs, validatePolicyPort(&rule.ports[i], rule.at.Child("ports").Index(i))...)
		}
		for i := range rule.peers {
			errs = append(errs, validatePeer(&rule.peers[i], rule.at.Child(rule.side).Index(i))...)
		}
	}
	at = at.Child("policyTypes")
	types := []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}
	if len(p.Spec.PolicyTypes) > len(types) {
		return append(errs, field.Invalid(at, p.Spec.PolicyTypes, "may not specify more than two policyTypes"))
	}
	for i, t := range p.Spec.PolicyTypes {
		if t != types[0] && t != types[1] {
			errs = append(errs, field.NotSupported(at.Index(i), t, types))
		}
	}
	return errs
}

func validatePolicyPort(p *networkingv1.NetworkPolicyPort, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if p.Protocol != nil {
		switch *p.Protocol {
		case corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP:
		default:
			errs = append(errs, field.NotSupported(at.Child("protocol"), *p.Protocol,
				[]corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}))
		}
	}
	end := at.Child("endPort")
	if p.Port == nil {
		if p.EndPort != nil {
			errs = append(errs, field.Invalid(end, *p.EndPort, "may not be specified when `port` is not specified"))
		}
		return errs
	}
	errs = append(errs, validation.PortOrName(*p.Port, at.Child("port"))...)
	switch {
	case p.EndPort == nil:
	case p.Port.Type == intstr.String:
		errs = append(errs, field.Invalid(end, *p.EndPort, "may not be specified when `port` is non-numeric"))
	default:
		if *p.EndPort < p.Port.IntVal {
			errs = append(errs, field.Invalid(end, *p.EndPort, "must be greater than or equal to `port`"))
		}
		errs = append(errs, validation.Port(*p.EndPort, end)...)
	}
	return errs
}

func validatePeer(p *networkingv1.NetworkPolicyPeer, at *field.Path) field.ErrorList {
	errs := validation.LabelSelector(p.PodSelector, at.Child("podSelector"))
	errs = append(errs, validation.LabelSelector(p.NamespaceSelector, at.Child("namespaceSelector"))...)
	if p.IPBlock != nil {
		errs = append(errs, validateBlock(p.IPBlock, at.Child("ipBlock"))...)
	}
	selects := p.PodSelector != nil || p.NamespaceSelector != nil
	switch {
	case !selects && p.IPBlock == nil:
		errs = append(errs, field.Required(at, "must specify a peer"))
	case selects && p.IPBlock != nil:
		errs = append(errs, field.Forbidden(at, "may not specify both ipBlock and another peer"))
	}
	return errs
}

func validateBlock(b *networkingv1.IPBlock, at *field.Path) field.ErrorList {
	if b.CIDR == "" {
		return field.ErrorList{field.Required(at.Child("cidr"), "")}
	}
	errs := validation.CIDR(b.CIDR, at.Child("cidr"))
	_, whole, err := netutils.ParseCIDRSloppy(b.CIDR)
	if err != nil {
		return errs
	}
	size, _ := whole.Mask.Size()
	for i, except := range b.Except {
		at := at.Child("except").Index(i)
		errs = append(errs, validation.CIDR(except, at)...)
		_, part, err := netutils.ParseCIDRSloppy(except)
		if err != nil {
			continue
		}
		if n, _ := part.Mask.Size(); !whole.Contains(part.IP) || n <= size {
			errs = append(errs, field.Invalid(at, except, "must be a strict subset of `cidr`"))
		}
	}
	return errs
}
