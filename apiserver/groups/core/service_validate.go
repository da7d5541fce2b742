package core

import (
	"context"
	"fmt"
	"net"
	"strings"

	corev1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/groups/validation"
)

func validateService(_ context.Context, s, old *corev1.Service) field.ErrorList {
	errs := validation.Meta(s, old, true, validation.Label1035Name)
	at := field.NewPath("spec")
	errs = append(errs, validation.Enum(s.Spec.Type, at.Child("type"),
		corev1.ServiceTypeClusterIP, corev1.ServiceTypeExternalName, corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort)...)
	errs = append(errs, validation.Labels(s.Spec.Selector, at.Child("selector"))...)
	errs = append(errs, validateServicePorts(&s.Spec, at.Child("ports"))...)
	errs = append(errs, validateSession(&s.Spec, at)...)
	errs = append(errs, validateClusterIPs(&s.Spec, at)...)
	errs = append(errs, validateFamilies(&s.Spec, at)...)
	errs = append(errs, validateTraffic(&s.Spec, at)...)
	errs = append(errs, validateLoadBalancer(&s.Spec, at)...)
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		errs = append(errs, validateExternalName(&s.Spec, at)...)
	}
	for i, ip := range s.Spec.ExternalIPs {
		at := at.Child("externalIPs").Index(i)
		errs = append(errs, validation.IP(ip, at)...)
		if parsed := net.ParseIP(ip); parsed != nil {
			errs = append(errs, nonSpecialIP(parsed, ip, at)...)
		}
	}
	if old != nil {
		errs = append(errs, validateServiceUpdate(&s.Spec, &old.Spec, at)...)
	}
	return errs
}

// validateServiceUpdate: an address, once given, stays as long as the service has one.
func validateServiceUpdate(spec, old *corev1.ServiceSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if hasClusterIP(spec.Type) && hasClusterIP(old.Type) && old.ClusterIP != "" {
		errs = append(errs, validation.Immutable(spec.ClusterIP, old.ClusterIP, at.Child("clusterIP"))...)
		if len(spec.ClusterIPs) > 0 && len(old.ClusterIPs) > 0 && spec.ClusterIPs[0] != old.ClusterIPs[0] {
			errs = append(errs, field.Invalid(at.Child("clusterIPs").Index(0), spec.ClusterIPs, "may not change once set"))
		}
	}
	if spec.Type == corev1.ServiceTypeLoadBalancer && old.Type == corev1.ServiceTypeLoadBalancer {
		errs = append(errs, validation.Immutable(spec.LoadBalancerClass, old.LoadBalancerClass, at.Child("loadBalancerClass"))...)
	}
	return errs
}

func validateServicePorts(spec *corev1.ServiceSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	headless := spec.ClusterIP == corev1.ClusterIPNone
	if len(spec.Ports) == 0 && !headless && spec.Type != corev1.ServiceTypeExternalName {
		errs = append(errs, field.Required(at, ""))
	}
	names, ports, nodePorts := map[string]bool{}, map[portKey]bool{}, map[portKey]bool{}
	for i := range spec.Ports {
		p, at := &spec.Ports[i], at.Index(i)
		errs = append(errs, validateServicePort(p, len(spec.Ports) > 1, at)...)
		if p.Name != "" && names[p.Name] {
			errs = append(errs, field.Duplicate(at.Child("name"), p.Name))
		}
		names[p.Name] = true
		if key := (portKey{p.Protocol, p.Port}); ports[key] {
			errs = append(errs, field.Duplicate(at, fmt.Sprintf("%s port %d", p.Protocol, p.Port)))
		} else {
			ports[key] = true
		}
		if p.NodePort == 0 {
			continue
		}
		if !hasNodePorts(spec.Type) {
			errs = append(errs, field.Forbidden(at.Child("nodePort"), fmt.Sprintf("may not be used when `type` is '%s'", spec.Type)))
			continue
		}
		if key := (portKey{p.Protocol, p.NodePort}); nodePorts[key] {
			errs = append(errs, field.Duplicate(at.Child("nodePort"), p.NodePort))
		} else {
			nodePorts[key] = true
		}
	}
	return errs
}

func validateServicePort(p *corev1.ServicePort, needsName bool, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if p.Name != "" || needsName {
		errs = append(errs, validation.DNSLabel(p.Name, at.Child("name"))...)
	}
	errs = append(errs, validation.Port(p.Port, at.Child("port"))...)
	errs = append(errs, validation.Enum(p.Protocol, at.Child("protocol"), corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)...)
	errs = append(errs, validation.PortOrName(p.TargetPort, at.Child("targetPort"))...)
	if p.NodePort < 0 || p.NodePort > 65535 {
		errs = append(errs, field.Invalid(at.Child("nodePort"), p.NodePort, utilvalidation.InclusiveRangeError(1, 65535)))
	}
	if p.AppProtocol != nil {
		errs = append(errs, validation.Check(*p.AppProtocol, at.Child("appProtocol"), utilvalidation.IsQualifiedName)...)
	}
	return errs
}

func validateSession(spec *corev1.ServiceSpec, at *field.Path) field.ErrorList {
	const longest = 24 * 60 * 60
	errs := validation.Enum(spec.SessionAffinity, at.Child("sessionAffinity"), corev1.ServiceAffinityClientIP, corev1.ServiceAffinityNone)
	at = at.Child("sessionAffinityConfig")
	config := spec.SessionAffinityConfig
	if spec.SessionAffinity != corev1.ServiceAffinityClientIP {
		if config != nil {
			errs = append(errs, field.Forbidden(at, "must not be set when session affinity is None"))
		}
		return errs
	}
	if config == nil || config.ClientIP == nil || config.ClientIP.TimeoutSeconds == nil {
		return append(errs, field.Required(at, "when session affinity is ClientIP"))
	}
	if seconds := *config.ClientIP.TimeoutSeconds; seconds <= 0 || seconds > longest {
		errs = append(errs, field.Invalid(at.Child("clientIP", "timeoutSeconds"), seconds, fmt.Sprintf("must be greater than 0 and less than %d", longest)))
	}
	return errs
}

func validateClusterIPs(spec *corev1.ServiceSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	ips := at.Child("clusterIPs")
	switch {
	case spec.Type == corev1.ServiceTypeExternalName:
		if spec.ClusterIP != "" {
			errs = append(errs, field.Forbidden(at.Child("clusterIP"), "may not be set for ExternalName services"))
		}
		if len(spec.ClusterIPs) > 0 {
			errs = append(errs, field.Forbidden(ips, "may not be set for ExternalName services"))
		}
		return errs
	case !hasClusterIP(spec.Type):
		return nil // the type is refused, and nothing is known about what it may have
	}
	if spec.ClusterIP == corev1.ClusterIPNone && hasNodePorts(spec.Type) {
		errs = append(errs, field.Invalid(ips.Index(0), corev1.ClusterIPNone, fmt.Sprintf("may not be set to 'None' for %s services", spec.Type)))
	}
	if spec.ClusterIP == "" && len(spec.ClusterIPs) > 0 {
		errs = append(errs, field.Required(at.Child("clusterIP"), "must be set when `clusterIPs` is"))
	}
	if len(spec.ClusterIPs) > 0 && spec.ClusterIPs[0] != spec.ClusterIP {
		errs = append(errs, field.Invalid(ips, spec.ClusterIPs, "first value must match `clusterIP`"))
	}
	if n := len(spec.ClusterIPs); n > 1 && spec.ClusterIPs[0] != corev1.ClusterIPNone {
		errs = append(errs, field.Invalid(ips, spec.ClusterIPs, "may hold one address: the cluster is not configured for dual stack"))
	}
	for i, ip := range spec.ClusterIPs {
		if ip == corev1.ClusterIPNone {
			if len(spec.ClusterIPs) > 1 {
				errs = append(errs, field.Invalid(ips.Index(i), ip, "'None' must be the first and only value"))
			}
			continue
		}
		errs = append(errs, validation.IP(ip, ips.Index(i))...)
	}
	return errs
}

func validateFamilies(spec *corev1.ServiceSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch {
	case spec.Type == corev1.ServiceTypeExternalName:
		if len(spec.IPFamilies) > 0 {
			errs = append(errs, field.Forbidden(at.Child("ipFamilies"), "may not be set for ExternalName services"))
		}
		if spec.IPFamilyPolicy != nil {
			errs = append(errs, field.Forbidden(at.Child("ipFamilyPolicy"), "may not be set for ExternalName services"))
		}
		return errs
	case !hasClusterIP(spec.Type):
		return nil
	}
	errs = append(errs, validation.OptionalEnum(spec.IPFamilyPolicy, at.Child("ipFamilyPolicy"),
		corev1.IPFamilyPolicySingleStack, corev1.IPFamilyPolicyPreferDualStack, corev1.IPFamilyPolicyRequireDualStack)...)
	seen := map[corev1.IPFamily]bool{}
	withoutAddress := spec.ClusterIP == corev1.ClusterIPNone && len(spec.Selector) == 0
	for i, f := range spec.IPFamilies {
		at := at.Child("ipFamilies").Index(i)
		errs = append(errs, validation.Enum(f, at, corev1.IPv4Protocol, corev1.IPv6Protocol)...)
		if seen[f] {
			errs = append(errs, field.Duplicate(at, f))
		}
		seen[f] = true
		if f == corev1.IPv6Protocol && !withoutAddress {
			errs = append(errs, field.Invalid(at, f, "not configured on this cluster"))
		}
	}
	if ptr.Deref(spec.IPFamilyPolicy, "") == corev1.IPFamilyPolicyRequireDualStack && !withoutAddress {
		errs = append(errs, field.Invalid(at.Child("ipFamilyPolicy"), *spec.IPFamilyPolicy, "this cluster is not configured for dual-stack services"))
	}
	return errs
}

func validateTraffic(spec *corev1.ServiceSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if policy := at.Child("externalTrafficPolicy"); !externallyAccessible(spec) {
		if spec.ExternalTrafficPolicy != "" {
			errs = append(errs, field.Invalid(policy, spec.ExternalTrafficPolicy, "may only be set for externally-accessible services"))
		}
	} else {
		errs = append(errs, validation.Enum(spec.ExternalTrafficPolicy, policy,
			corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal)...)
	}
	if spec.HealthCheckNodePort < 0 {
		errs = append(errs, field.Invalid(at.Child("healthCheckNodePort"), spec.HealthCheckNodePort, "must be greater than or equal to 0"))
	}
	if spec.HealthCheckNodePort > 0 && !needsHealthCheck(spec) {
		errs = append(errs, field.Invalid(at.Child("healthCheckNodePort"), spec.HealthCheckNodePort, "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"))
	}
	if hasClusterIP(spec.Type) {
		if spec.InternalTrafficPolicy == nil {
			errs = append(errs, field.Required(at.Child("internalTrafficPolicy"), ""))
		}
		errs = append(errs, validation.OptionalEnum(spec.InternalTrafficPolicy, at.Child("internalTrafficPolicy"),
			corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal)...)
	}
	return append(errs, validation.OptionalEnum(spec.TrafficDistribution, at.Child("trafficDistribution"),
		corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameZone, corev1.ServiceTrafficDistributionPreferSameNode)...)
}

func validateLoadBalancer(spec *corev1.ServiceSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	balancer := spec.Type == corev1.ServiceTypeLoadBalancer
	if spec.LoadBalancerClass != nil {
		if !balancer {
			errs = append(errs, field.Forbidden(at.Child("loadBalancerClass"), "may only be used when `type` is 'LoadBalancer'"))
		}
		errs = append(errs, validation.Check(*spec.LoadBalancerClass, at.Child("loadBalancerClass"), utilvalidation.IsQualifiedName)...)
	}
	if spec.AllocateLoadBalancerNodePorts != nil && !balancer {
		errs = append(errs, field.Forbidden(at.Child("allocateLoadBalancerNodePorts"), "may only be used when `type` is 'LoadBalancer'"))
	}
	if len(spec.LoadBalancerSourceRanges) > 0 && !balancer {
		errs = append(errs, field.Forbidden(at.Child("loadBalancerSourceRanges"), "may only be used when `type` is 'LoadBalancer'"))
	}
	for i, cidr := range spec.LoadBalancerSourceRanges {
		errs = append(errs, validation.CIDR(strings.TrimSpace(cidr), at.Child("loadBalancerSourceRanges").Index(i))...)
	}
	return errs
}

func validateExternalName(spec *corev1.ServiceSpec, at *field.Path) field.ErrorList {
	name := at.Child("externalName")
	if spec.ExternalName == "" {
		return field.ErrorList{field.Required(name, "")}
	}
	return validation.Check(strings.TrimSuffix(spec.ExternalName, "."), name, utilvalidation.IsDNS1123Subdomain)
}

func validateServiceStatus(_ context.Context, s, _ *corev1.Service) field.ErrorList {
	var errs field.ErrorList
	at := field.NewPath("status", "loadBalancer", "ingress")
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer && len(s.Status.LoadBalancer.Ingress) > 0 {
		errs = append(errs, field.Forbidden(at, "may only be used when `spec.type` is 'LoadBalancer'"))
	}
	for i, in := range s.Status.LoadBalancer.Ingress {
		if in.IP != "" {
			errs = append(errs, validation.IP(in.IP, at.Index(i).Child("ip"))...)
		}
		if in.Hostname != "" {
			errs = append(errs, validation.DNSSubdomain(in.Hostname, at.Index(i).Child("hostname"))...)
			if net.ParseIP(in.Hostname) != nil {
				errs = append(errs, field.Invalid(at.Index(i).Child("hostname"), in.Hostname, "must be a DNS name, not an IP address"))
			}
		}
		errs = append(errs, validation.OptionalEnum(in.IPMode, at.Index(i).Child("ipMode"), corev1.LoadBalancerIPModeVIP, corev1.LoadBalancerIPModeProxy)...)
	}
	return errs
}

func serviceWarnings(_ context.Context, s, _ *corev1.Service) []string {
	var out []string
	if s.Spec.Type == corev1.ServiceTypeExternalName && len(s.Spec.ExternalIPs) > 0 {
		out = append(out, `spec.externalIPs is ignored when spec.type is "ExternalName"`)
	}
	if s.Spec.ClusterIP == corev1.ClusterIPNone {
		if s.Spec.SessionAffinity != corev1.ServiceAffinityNone {
			out = append(out, "spec.SessionAffinity is ignored for headless services")
		}
		if s.Spec.LoadBalancerIP != "" {
			out = append(out, "spec.loadBalancerIP is ignored for headless services")
		}
	}
	return out
}
