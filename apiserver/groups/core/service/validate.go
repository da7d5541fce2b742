package service

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/groups/validation"
)

func validateService(_ context.Context, s, old *corev1.Service) field.ErrorList {
	errs := validation.Meta(s, old, true, validation.LabelName)
	at := field.NewPath("spec")
	errs = append(errs, validation.Enum(s.Spec.Type, at.Child("type"),
		corev1.ServiceTypeClusterIP, corev1.ServiceTypeExternalName, corev1.ServiceTypeLoadBalancer,
		corev1.ServiceTypeNodePort)...)
	errs = append(errs, validation.Labels(s.Spec.Selector, at.Child("selector"))...)
	errs = append(errs, validateServicePorts(&s.Spec, at.Child("ports"))...)
	errs = append(errs, validateSession(&s.Spec, at)...)
	errs = append(errs, ValidateAddresses(s, old)...)
	if hasNodePorts(s.Spec.Type) && isHeadless(&s.Spec) {
		errs = append(errs,
			field.Invalid(at.Child("clusterIPs").Index(0), corev1.ClusterIPNone,
				fmt.Sprintf("may not be set to 'None' for %s services", s.Spec.Type)))
	}
	errs = append(errs, validateTraffic(&s.Spec, at)...)
	errs = append(errs, validateLoadBalancer(&s.Spec, at)...)
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		errs = append(errs, validateNamed(&s.Spec, at)...)
	}
	for i, ip := range s.Spec.ExternalIPs {
		at := at.Child("externalIPs").Index(i)
		if bad := validation.IP(ip, at); len(bad) > 0 {
			errs = append(errs, bad...)
		} else {
			errs = append(errs, validation.NonSpecialIP(ip, at)...)
		}
	}
	errs = append(errs, validateServiceAnnotations(s)...)
	if old != nil {
		errs = append(errs, validateServiceUpdate(&s.Spec, &old.Spec, at)...)
	}
	return errs
}

// validateServiceAnnotations checks those annotations that duplicate a field.
func validateServiceAnnotations(s *corev1.Service) field.ErrorList {
	var errs field.ErrorList
	at := field.NewPath("metadata", "annotations")
	// The old name of the annotation is still read.
	hints, hasHints := s.Annotations[corev1.DeprecatedAnnotationTopologyAwareHints]
	if mode, hasMode := s.Annotations[corev1.AnnotationTopologyMode]; hasHints && hasMode && hints != mode {
		errs = append(errs, field.Invalid(at.Key(corev1.AnnotationTopologyMode), mode,
			fmt.Sprintf("must match annotations[%s] when both are specified",
				corev1.DeprecatedAnnotationTopologyAwareHints)))
	}
	ranges, set := s.Annotations[corev1.AnnotationLoadBalancerSourceRangesKey]
	if !set || len(s.Spec.LoadBalancerSourceRanges) > 0 {
		return errs
	}
	at = at.Key(corev1.AnnotationLoadBalancerSourceRangesKey)
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer {
		errs = append(errs, field.Forbidden(at, "may only be used when `type` is 'LoadBalancer'"))
	}
	if ranges = strings.TrimSpace(ranges); ranges != "" {
		for _, cidr := range strings.Split(ranges, ",") {
			errs = append(errs, validation.CIDR(strings.TrimSpace(cidr), at)...)
		}
	}
	return errs
}

// once is the reason why a given value stays as long as the service has such a field.
const once = "may not change once set"

// validateServiceUpdate checks the immutable fields of a service.
func validateServiceUpdate(spec, old *corev1.ServiceSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if spec.Type != corev1.ServiceTypeExternalName && old.Type != corev1.ServiceTypeExternalName {
		errs = append(errs, validateAddressUpdate(spec, old, at)...)
		errs = append(errs, validateFamilyUpdate(spec, old, at)...)
	}
	if spec.Type == corev1.ServiceTypeLoadBalancer && old.Type == corev1.ServiceTypeLoadBalancer &&
		!samePointer(spec.LoadBalancerClass, old.LoadBalancerClass) {
		errs = append(errs, field.Invalid(at.Child("loadBalancerClass"), spec.LoadBalancerClass, once))
	}
	if needsHealthCheck(spec) && needsHealthCheck(old) && old.HealthCheckNodePort != 0 &&
		spec.HealthCheckNodePort != old.HealthCheckNodePort {
		errs = append(errs, field.Forbidden(at.Child("healthCheckNodePort"), "field is immutable"))
	}
	return errs
}

// validateAddressUpdate lets a service get and lose its second address, and nothing else.
func validateAddressUpdate(spec, old *corev1.ServiceSpec, at *field.Path) field.ErrorList {
	if isHeadless(spec) && isHeadless(old) {
		return nil
	}
	var errs field.ErrorList
	ips := at.Child("clusterIPs")
	n, was := len(spec.ClusterIPs), len(old.ClusterIPs)
	for i := range min(n, was) {
		if spec.ClusterIPs[i] != old.ClusterIPs[i] && (i == 0 || n == was) {
			errs = append(errs, field.Invalid(ips.Index(i), spec.ClusterIPs, once))
		}
	}
	if n == 0 && was > 0 {
		errs = append(errs, field.Invalid(ips.Index(0), spec.ClusterIPs, "primary clusterIP can not be unset"))
	}
	if n == 1 && was > 1 && ptr.Deref(spec.IPFamilyPolicy, "") != corev1.IPFamilyPolicySingleStack {
		errs = append(errs,
			field.Invalid(at.Child("ipFamilyPolicy"), spec.IPFamilyPolicy,
				"must be set to 'SingleStack' when releasing the secondary clusterIP"))
	}
	return errs
}

// validateFamilyUpdate lets a service get and lose its second family, and nothing else.
func validateFamilyUpdate(spec, old *corev1.ServiceSpec, at *field.Path) field.ErrorList {
	if isHeadless(spec) || isHeadless(old) {
		return nil
	}
	var errs field.ErrorList
	first := at.Child("ipFamilies").Index(0)
	n, was := len(spec.IPFamilies), len(old.IPFamilies)
	for i := range min(n, was) {
		if spec.IPFamilies[i] != old.IPFamilies[i] && (i == 0 || n == was) {
			errs = append(errs, field.Invalid(first, spec.IPFamilies, once))
		}
	}
	if n < was && len(spec.ClusterIPs) == 0 {
		errs = append(errs, field.Invalid(first, spec.IPFamilies, "primary ipFamily can not be unset"))
	}
	if n == 1 && was > 1 && ptr.Deref(spec.IPFamilyPolicy, "") != corev1.IPFamilyPolicySingleStack {
		errs = append(errs,
			field.Invalid(at.Child("ipFamilyPolicy"), spec.IPFamilyPolicy,
				"must be set to 'SingleStack' when releasing the secondary ipFamily"))
	}
	return errs
}

func validateServicePorts(spec *corev1.ServiceSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(spec.Ports) == 0 && !isHeadless(spec) && spec.Type != corev1.ServiceTypeExternalName {
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
			errs = append(errs, field.Duplicate(at, corev1.ServicePort{Protocol: p.Protocol, Port: p.Port}))
		} else {
			ports[key] = true
		}
		if p.NodePort == 0 {
			continue
		}
		if spec.Type == corev1.ServiceTypeClusterIP {
			errs = append(errs, field.Forbidden(at.Child("nodePort"), "may not be used when `type` is 'ClusterIP'"))
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
	errs = append(errs,
		validation.Enum(p.Protocol, at.Child("protocol"), corev1.ProtocolTCP, corev1.ProtocolUDP,
			corev1.ProtocolSCTP)...)
	errs = append(errs, validation.PortOrName(p.TargetPort, at.Child("targetPort"))...)
	if p.AppProtocol != nil {
		errs = append(errs,
			validation.Check(*p.AppProtocol, at.Child("appProtocol"), utilvalidation.IsQualifiedName)...)
	}
	return errs
}

func validateSession(spec *corev1.ServiceSpec, at *field.Path) field.ErrorList {
	const longest = 24 * 60 * 60
	errs := validation.Enum(spec.SessionAffinity, at.Child("sessionAffinity"), corev1.ServiceAffinityClientIP,
		corev1.ServiceAffinityNone)
	at = at.Child("sessionAffinityConfig")
	config := spec.SessionAffinityConfig
	if spec.SessionAffinity != corev1.ServiceAffinityClientIP {
		if config != nil && spec.SessionAffinity == corev1.ServiceAffinityNone {
			errs = append(errs, field.Forbidden(at, "must not be set when session affinity is None"))
		}
		return errs
	}
	if config == nil || config.ClientIP == nil || config.ClientIP.TimeoutSeconds == nil {
		return append(errs, field.Required(at, "when session affinity is ClientIP"))
	}
	if seconds := *config.ClientIP.TimeoutSeconds; seconds <= 0 || seconds > longest {
		errs = append(errs,
			field.Invalid(at.Child("clientIP", "timeoutSeconds"), seconds,
				fmt.Sprintf("must be greater than 0 and less than %d", longest)))
	}
	return errs
}

// validateNamed refuses fields that only Services with an address have.
func validateNamed(spec *corev1.ServiceSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(spec.ClusterIPs) > 0 {
		errs = append(errs, field.Forbidden(at.Child("clusterIPs"), "may not be set for ExternalName services"))
	}
	if len(spec.IPFamilies) > 0 {
		errs = append(errs, field.Forbidden(at.Child("ipFamilies"), "may not be set for ExternalName services"))
	}
	if spec.IPFamilyPolicy != nil {
		errs = append(errs, field.Forbidden(at.Child("ipFamilyPolicy"), "may not be set for ExternalName services"))
	}
	name := at.Child("externalName")
	return append(errs, validation.DNSSubdomain(strings.TrimSuffix(spec.ExternalName, "."), name)...)
}

// isHeadless reports whether a service has no address, and needs none.
func isHeadless(spec *corev1.ServiceSpec) bool {
	return len(spec.ClusterIPs) == 1 && spec.ClusterIPs[0] == corev1.ClusterIPNone
}

// ValidateAddresses checks the addresses and IP families of a service by themselves. The
// allocator knows the families of the cluster, and calls this first. old is nil on create.
func ValidateAddresses(s, old *corev1.Service) field.ErrorList {
	spec, at := &s.Spec, field.NewPath("spec")
	if spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	var errs field.ErrorList
	ips := at.Child("clusterIPs")
	switch {
	case spec.ClusterIP == "" && len(spec.ClusterIPs) > 0:
		errs = append(errs, field.Invalid(ips, spec.ClusterIPs, "must be empty when `clusterIP` is not specified"))
	case spec.ClusterIP != "" && len(spec.ClusterIPs) == 0:
		errs = append(errs, field.Required(ips, ""))
	case spec.ClusterIP != "" && spec.ClusterIPs[0] != spec.ClusterIP:
		errs = append(errs, field.Invalid(ips, spec.ClusterIPs, "first value must match `clusterIP`"))
	}
	seen := map[corev1.IPFamily]bool{}
	for i, f := range spec.IPFamilies {
		at := at.Child("ipFamilies").Index(i)
		if f != corev1.IPv4Protocol && f != corev1.IPv6Protocol { // also the empty one
			errs = append(errs, field.NotSupported(at, f, []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}))
		}
		if seen[f] {
			errs = append(errs, field.Duplicate(at, f))
		}
		seen[f] = true
	}
	if spec.IPFamilyPolicy != nil {
		policies := []corev1.IPFamilyPolicy{corev1.IPFamilyPolicyPreferDualStack, corev1.IPFamilyPolicyRequireDualStack,
			corev1.IPFamilyPolicySingleStack}
		if !slices.Contains(policies, *spec.IPFamilyPolicy) {
			errs = append(errs, field.NotSupported(at.Child("ipFamilyPolicy"), *spec.IPFamilyPolicy, policies))
		}
	}
	bad := validateIPs(spec.ClusterIPs, old, ips)
	if len(spec.ClusterIPs) > 2 {
		errs = append(errs, field.Invalid(ips, spec.ClusterIPs, "may only hold up to 2 values"))
	}
	if len(bad) > 0 {
		return append(errs, bad...) // an entry that is no address has no family to check
	}
	if len(spec.ClusterIPs) > 1 && !isDualStack(spec.ClusterIPs) {
		errs = append(errs, field.Invalid(ips, spec.ClusterIPs, "may specify no more than one IP for each IP family"))
	}
	if isHeadless(spec) {
		return errs
	}
	for i, ip := range spec.ClusterIPs[:min(len(spec.ClusterIPs), len(spec.IPFamilies))] {
		if family := spec.IPFamilies[i]; family != familyOf(ip) &&
			(family == corev1.IPv4Protocol || family == corev1.IPv6Protocol) {
			errs = append(errs,
				field.Invalid(ips.Index(i), ip,
					fmt.Sprintf("expected an %s value as indicated by `ipFamilies[%d]`", family, i)))
		}
	}
	return errs
}

// validateIPs checks each address by itself. An address that an earlier version accepted stays.
func validateIPs(ips []string, old *corev1.Service, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	var known []string
	if old != nil {
		known = old.Spec.ClusterIPs
	}
	for i, ip := range ips {
		if i == 0 && ip == corev1.ClusterIPNone {
			if len(ips) > 1 {
				errs = append(errs, field.Invalid(at, ips, "'None' must be the first and only value"))
			}
			continue
		}
		errs = append(errs, utilvalidation.IsValidIPForLegacyField(at.Index(i), ip, true, known)...)
	}
	return errs
}

func isDualStack(ips []string) bool {
	dual, err := netutils.IsDualStackIPStrings(ips)
	return dual && err == nil
}

func familyOf(ip string) corev1.IPFamily {
	if netutils.IsIPv6String(ip) {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}

func validateTraffic(spec *corev1.ServiceSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if policy := at.Child("externalTrafficPolicy"); !externallyAccessible(spec) {
		if spec.ExternalTrafficPolicy != "" {
			errs = append(errs,
				field.Invalid(policy, spec.ExternalTrafficPolicy, "may only be set for externally-accessible services"))
		}
	} else {
		errs = append(errs, validation.Enum(spec.ExternalTrafficPolicy, policy,
			corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal)...)
	}
	if port := at.Child("healthCheckNodePort"); spec.HealthCheckNodePort != 0 && !needsHealthCheck(spec) {
		errs = append(errs,
			field.Invalid(port, spec.HealthCheckNodePort,
				"may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"))
	} else if spec.HealthCheckNodePort != 0 {
		errs = append(errs, validation.Port(spec.HealthCheckNodePort, port)...)
	}
	if hasClusterIP(spec.Type) && spec.InternalTrafficPolicy == nil {
		errs = append(errs, field.Required(at.Child("internalTrafficPolicy"), ""))
	}
	errs = append(errs, validation.OptionalOneOf(spec.InternalTrafficPolicy, at.Child("internalTrafficPolicy"),
		corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal)...)
	return append(errs, validation.OptionalOneOf(spec.TrafficDistribution, at.Child("trafficDistribution"),
		corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameZone,
		corev1.ServiceTrafficDistributionPreferSameNode)...)
}

func validateLoadBalancer(spec *corev1.ServiceSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	balancer := spec.Type == corev1.ServiceTypeLoadBalancer
	if spec.LoadBalancerClass != nil && !balancer {
		errs = append(errs,
			field.Forbidden(at.Child("loadBalancerClass"), "may only be used when `type` is 'LoadBalancer'"))
	} else if spec.LoadBalancerClass != nil {
		errs = append(errs,
			validation.Check(*spec.LoadBalancerClass, at.Child("loadBalancerClass"), utilvalidation.IsQualifiedName)...)
	}
	if spec.AllocateLoadBalancerNodePorts != nil && !balancer {
		errs = append(errs,
			field.Forbidden(at.Child("allocateLoadBalancerNodePorts"),
				"may only be used when `type` is 'LoadBalancer'"))
	}
	// Clients expect this path in an error of a range.
	ranges := at.Child("LoadBalancerSourceRanges")
	if len(spec.LoadBalancerSourceRanges) > 0 && !balancer {
		errs = append(errs, field.Forbidden(ranges, "may only be used when `type` is 'LoadBalancer'"))
	}
	for i, cidr := range spec.LoadBalancerSourceRanges {
		errs = append(errs, validation.CIDR(strings.TrimSpace(cidr), ranges.Index(i))...)
	}
	return errs
}

func validateServiceStatus(_ context.Context, s, old *corev1.Service) field.ErrorList {
	errs := validation.Meta(s, old, true, validation.LabelName)
	at := field.NewPath("status", "loadBalancer", "ingress")
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer && len(s.Status.LoadBalancer.Ingress) > 0 {
		return append(errs, field.Forbidden(at, "may only be used when `spec.type` is 'LoadBalancer'"))
	}
	for i, in := range s.Status.LoadBalancer.Ingress {
		if in.IP != "" {
			errs = append(errs, validation.IP(in.IP, at.Index(i).Child("ip"))...)
		}
		if in.Hostname != "" {
			errs = append(errs,
				validation.Check(in.Hostname, at.Index(i).Child("hostname"), utilvalidation.IsDNS1123Subdomain)...)
			if net.ParseIP(in.Hostname) != nil {
				errs = append(errs,
					field.Invalid(at.Index(i).Child("hostname"), in.Hostname, "must be a DNS name, not an IP address"))
			}
		}
		switch mode := at.Index(i).Child("ipMode"); {
		case in.IPMode == nil && in.IP != "":
			errs = append(errs, field.Required(mode, "must be specified when `ip` is set"))
		case in.IPMode != nil && in.IP == "":
			errs = append(errs, field.Forbidden(mode, "may not be specified when `ip` is not set"))
		default:
			errs = append(errs,
				validation.OptionalOneOf(in.IPMode, mode, corev1.LoadBalancerIPModeProxy,
					corev1.LoadBalancerIPModeVIP)...)
		}
	}
	return errs
}

// serviceWarnings warns of fields that the service's type ignores, and of deprecated ones.
func serviceWarnings(_ context.Context, s, _ *corev1.Service) []string {
	var out []string
	spec, at := &s.Spec, field.NewPath("spec")
	if _, ok := s.Annotations[corev1.DeprecatedAnnotationTopologyAwareHints]; ok {
		out = append(out,
			fmt.Sprintf("annotation %s is deprecated, please use %s instead",
				corev1.DeprecatedAnnotationTopologyAwareHints, corev1.AnnotationTopologyMode))
	}
	if spec.ClusterIP != "" && spec.ClusterIP != corev1.ClusterIPNone {
		for i, ip := range spec.ClusterIPs {
			out = append(out, utilvalidation.GetWarningsForIP(at.Child("clusterIPs").Index(i), ip)...)
		}
	}
	external := spec.Type == corev1.ServiceTypeExternalName
	headless := spec.Type == corev1.ServiceTypeClusterIP && spec.ClusterIP == corev1.ClusterIPNone
	if headless {
		if spec.LoadBalancerIP != "" {
			out = append(out, "spec.loadBalancerIP is ignored for headless services")
		}
		if len(spec.ExternalIPs) > 0 {
			out = append(out, "spec.externalIPs is ignored for headless services")
		}
		if spec.SessionAffinity != corev1.ServiceAffinityNone {
			out = append(out, "spec.SessionAffinity is ignored for headless services")
		}
	}
	for i, ip := range spec.ExternalIPs {
		out = append(out, utilvalidation.GetWarningsForIP(at.Child("externalIPs").Index(i), ip)...)
	}
	switch {
	case len(spec.ExternalIPs) == 0 || headless:
	case external:
		out = append(out, `spec.externalIPs is ignored when spec.type is "ExternalName"`)
	default:
		out = append(out, "spec.externalIPs is deprecated and may no longer be implemented in some clusters")
	}
	if spec.LoadBalancerIP != "" {
		out = append(out, utilvalidation.GetWarningsForIP(at.Child("loadBalancerIP"), spec.LoadBalancerIP)...)
	}
	for i, cidr := range spec.LoadBalancerSourceRanges {
		out = append(out, utilvalidation.GetWarningsForCIDR(at.Child("loadBalancerSourceRanges").Index(i), cidr)...)
	}
	if !external && spec.ExternalName != "" {
		out = append(out, `spec.externalName is ignored when spec.type is not "ExternalName"`)
	}
	if ptr.Deref(spec.TrafficDistribution, "") == corev1.ServiceTrafficDistributionPreferClose {
		out = append(out,
			fmt.Sprintf("spec.trafficDistribution: %q is deprecated; use %q",
				corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameZone))
	}
	return out
}

func serviceStatusWarnings(_ context.Context, s, _ *corev1.Service) []string {
	var out []string
	at := field.NewPath("status", "loadBalancer", "ingress")
	for i, in := range s.Status.LoadBalancer.Ingress {
		if in.IP != "" {
			out = append(out, utilvalidation.GetWarningsForIP(at.Index(i), in.IP)...)
		}
	}
	return out
}
