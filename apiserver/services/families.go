package services

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// normalizeClusterIPs keeps clusterIP and clusterIPs in step for clients that know only one of
// them. old is nil on create. An ambiguous change is left to validation.
func normalizeClusterIPs(s, old *corev1.Service) {
	spec := &s.Spec
	if old == nil {
		if spec.ClusterIP != "" && len(spec.ClusterIPs) == 0 {
			spec.ClusterIPs = []string{spec.ClusterIP}
		}
		return
	}
	was := &old.Spec
	if len(spec.ClusterIPs) == 0 && len(was.ClusterIPs) > 0 && spec.ClusterIP == was.ClusterIP {
		spec.ClusterIPs = slices.Clone(was.ClusterIPs) // the client does not know the plural
	}
	if spec.ClusterIP == was.ClusterIP || !slices.Equal(spec.ClusterIPs, was.ClusterIPs) {
		return
	}
	// Only the singular has changed.
	if spec.ClusterIP == "" {
		spec.ClusterIPs = nil
	} else {
		spec.ClusterIPs = []string{spec.ClusterIP}
	}
}

// keepAllocated gives an update the stored Service's allocated values that it leaves out, so that
// clients that replace an object need not know the server's additions.
func keepAllocated(spec, old *corev1.ServiceSpec) {
	if spec.Type != corev1.ServiceTypeExternalName && old.Type != corev1.ServiceTypeExternalName {
		if spec.ClusterIP == "" {
			spec.ClusterIP = old.ClusterIP
		}
		if len(spec.ClusterIPs) == 0 {
			spec.ClusterIPs = slices.Clone(old.ClusterIPs)
		}
	}
	if allocatesPorts(spec) && allocatesPorts(old) {
		keepNodePorts(spec, old)
	}
	if needsHealthCheck(spec) && needsHealthCheck(old) && spec.HealthCheckNodePort == 0 {
		spec.HealthCheckNodePort = old.HealthCheckNodePort
	}
}

// keepNodePorts knows ports by their names, and gives none the node port that another one has now.
func keepNodePorts(spec, old *corev1.ServiceSpec) {
	allocated, moved := map[string]int32{}, map[int32]bool{}
	for _, p := range spec.Ports {
		moved[p.NodePort] = true
	}
	for _, p := range old.Ports {
		allocated[p.Name] = p.NodePort
	}
	for i := range spec.Ports {
		if p := &spec.Ports[i]; p.NodePort == 0 && !moved[allocated[p.Name]] {
			p.NodePort = allocated[p.Name]
		}
	}
}

// initFamilies fills in the IP families of a Service, and whether it has one or two, by the
// client's values, the stored Service and the families of the cluster. old is nil on create.
func (a *Allocator) initFamilies(s, old *corev1.Service) error {
	if s.Spec.Type == corev1.ServiceTypeExternalName || old != nil && keepsPreferredFamilies(s, old) {
		return nil
	}
	if s.Spec.IPFamilyPolicy == nil {
		s.Spec.IPFamilyPolicy = ptr.To(defaultPolicy(s, old))
	}
	errs := a.cfg.Validate(s, old)
	if len(errs) == 0 {
		errs = a.inferFamilies(s, old)
	}
	if len(errs) == 0 {
		errs = a.completeFamilies(s)
	}
	if len(errs) > 0 {
		return apierrors.NewInvalid(serviceKind, s.Name, errs)
	}
	return nil
}

// defaultPolicy never makes a Service change between one and two families on its own.
func defaultPolicy(s, old *corev1.Service) corev1.IPFamilyPolicy {
	switch {
	case old != nil && old.Spec.IPFamilyPolicy != nil:
		return *old.Spec.IPFamilyPolicy
	case withoutEndpoints(s):
		return corev1.IPFamilyPolicyRequireDualStack
	}
	return corev1.IPFamilyPolicySingleStack
}

// withoutEndpoints reports whether a Service is headless without selector: the author of its
// endpoints decides their family.
func withoutEndpoints(s *corev1.Service) bool {
	return s.Spec.ClusterIP == corev1.ClusterIPNone && len(s.Spec.Selector) == 0
}

// inferFamilies drops values that an update to one family leaves over, and sets the families of the
// client's addresses.
func (a *Allocator) inferFamilies(s, old *corev1.Service) field.ErrorList {
	var errs field.ErrorList
	spec, at := &s.Spec, field.NewPath("spec")
	refuse := func(why string) {
		errs = append(errs, field.Invalid(at.Child("ipFamilyPolicy"), *spec.IPFamilyPolicy, why))
	}
	single := *spec.IPFamilyPolicy == corev1.IPFamilyPolicySingleStack
	switch {
	case old == nil:
	case single: // the policy alone is enough
		if slices.Equal(spec.ClusterIPs, old.Spec.ClusterIPs) && len(spec.ClusterIPs) > 1 {
			spec.ClusterIPs = spec.ClusterIPs[:1:1]
		}
		if slices.Equal(spec.IPFamilies, old.Spec.IPFamilies) && len(spec.IPFamilies) > 1 {
			spec.IPFamilies = spec.IPFamilies[:1:1]
		}
	default:
		if n := len(spec.ClusterIPs); n > 0 && n < len(old.Spec.ClusterIPs) {
			refuse("must be 'SingleStack' to release the secondary cluster IP")
		}
		if n := len(spec.IPFamilies); n > 0 && n < len(old.Spec.IPFamilies) {
			refuse("must be 'SingleStack' to release the secondary IP family")
		}
	}
	if single && len(spec.ClusterIPs) == 2 {
		refuse("must be 'RequireDualStack' or 'PreferDualStack' when multiple cluster IPs are specified")
	}
	if single && len(spec.IPFamilies) == 2 {
		refuse("must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified")
	}
	for i, ip := range spec.ClusterIPs {
		address, ok := parseAddress(ip)
		if !ok || i < len(spec.IPFamilies) {
			continue
		}
		if family := familyOf(address); slices.Contains(a.families, family) {
			spec.IPFamilies = append(spec.IPFamilies, family)
		} else {
			errs = append(errs, field.Invalid(at.Child("clusterIPs").Index(i), spec.ClusterIPs,
				fmt.Sprintf("%s is not configured on this cluster", family)))
		}
	}
	return errs
}

// completeFamilies adds the families that the client does not name, and refuses those that the
// cluster lacks.
func (a *Allocator) completeFamilies(s *corev1.Service) field.ErrorList {
	spec, at := &s.Spec, field.NewPath("spec")
	dual, free := len(a.families) == 2, withoutEndpoints(s)
	if !free {
		var errs field.ErrorList
		if *spec.IPFamilyPolicy == corev1.IPFamilyPolicyRequireDualStack && !dual {
			errs = append(errs, field.Invalid(at.Child("ipFamilyPolicy"), *spec.IPFamilyPolicy,
				"this cluster is not configured for dual-stack services"))
		}
		for i, family := range spec.IPFamilies {
			if !slices.Contains(a.families, family) {
				errs = append(errs,
					field.Invalid(at.Child("ipFamilies").Index(i), family, "not configured on this cluster"))
			}
		}
		if len(errs) > 0 {
			return errs
		}
	}
	if len(spec.IPFamilies) == 0 {
		spec.IPFamilies = []corev1.IPFamily{a.families[0]}
	}
	if *spec.IPFamilyPolicy != corev1.IPFamilyPolicySingleStack && len(spec.IPFamilies) == 1 && (dual || free) {
		spec.IPFamilies = append(spec.IPFamilies, otherFamily(spec.IPFamilies[0]))
	}
	return nil
}

func otherFamily(f corev1.IPFamily) corev1.IPFamily {
	if f == corev1.IPv4Protocol {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}

// keepsPreferredFamilies reports whether an update leaves type, addresses and families of a Service
// that prefers two families as they are. Such an update gets no second family only because the
// cluster has one now, and loses none because the cluster has lost it.
func keepsPreferredFamilies(s, old *corev1.Service) bool {
	spec, was := &s.Spec, &old.Spec
	return ptr.Deref(spec.IPFamilyPolicy, "") == corev1.IPFamilyPolicyPreferDualStack &&
		ptr.Deref(was.IPFamilyPolicy, corev1.IPFamilyPolicyPreferDualStack) == corev1.IPFamilyPolicyPreferDualStack &&
		spec.Type == was.Type && (spec.Type == corev1.ServiceTypeClusterIP || hasNodePorts(spec)) &&
		slices.Equal(spec.ClusterIPs, was.ClusterIPs) && slices.Equal(spec.IPFamilies, was.IPFamilies)
}
