package podtemplate

import (
	"fmt"
	"math"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/groups/podtemplate/gates"
	"github.com/barque/barque/apiserver/groups/validation"
)

// Validate checks a template at a path.
func Validate(t *corev1.PodTemplateSpec, at *field.Path) field.ErrorList {
	errs := validation.Labels(t.Labels, at.Child("labels"))
	errs = append(errs, apivalidation.ValidateAnnotations(t.Annotations, at.Child("annotations"))...)
	errs = append(errs, ValidateAnnotations(t.Annotations, &t.Spec, at.Child("annotations"))...)
	errs = append(errs, ValidateSpec(&t.Spec, at.Child("spec"))...)
	errs = append(errs, ValidateAgreement(t.Annotations, &t.Spec, at.Child("spec"))...)
	if len(t.Spec.EphemeralContainers) > 0 {
		errs = append(errs,
			field.Forbidden(at.Child("spec", "ephemeralContainers"),
				"ephemeral containers not allowed in pod template"))
	}
	return errs
}

// ValidateForever checks a template at a path for workloads that replace pods that end: their pods
// always restart and have no deadline. kind is the workload's kind.
func ValidateForever(t *corev1.PodTemplateSpec, kind string, at *field.Path) field.ErrorList {
	return append(Validate(t, at), ValidateRestarts(t, kind, at)...)
}

// ValidateRestarts checks the rules that ValidateForever adds to Validate.
func ValidateRestarts(t *corev1.PodTemplateSpec, kind string, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if p := t.Spec.RestartPolicy; p != corev1.RestartPolicyAlways {
		errs = append(errs,
			field.NotSupported(at.Child("spec", "restartPolicy"), p,
				[]corev1.RestartPolicy{corev1.RestartPolicyAlways}))
	}
	if t.Spec.ActiveDeadlineSeconds != nil {
		errs = append(errs,
			field.Forbidden(at.Child("spec", "activeDeadlineSeconds"),
				fmt.Sprintf("activeDeadlineSeconds in %s is not Supported", kind)))
	}
	return errs
}

// checker checks the parts of one pod spec against each other.
type checker struct {
	spec    *corev1.PodSpec
	volumes map[string]*corev1.Volume
	claims  map[string]bool
}

// ValidateSpec checks a pod spec at a path.
func ValidateSpec(spec *corev1.PodSpec, at *field.Path) field.ErrorList {
	c := &checker{spec: spec, volumes: map[string]*corev1.Volume{}, claims: map[string]bool{}}

	errs := c.validateVolumes(at.Child("volumes"))
	errs = append(errs, c.validateClaims(at.Child("resourceClaims"))...)
	errs = append(errs, c.validateContainers(at)...)
	errs = append(errs, c.validateLifetime(at)...)
	errs = append(errs, c.validatePlacement(at)...)
	errs = append(errs, c.validateNames(at)...)
	errs = append(errs, validateDNS(spec, at)...)
	errs = append(errs, validateHostAliases(spec.HostAliases, at.Child("hostAliases"))...)
	errs = append(errs, validatePodSecurity(spec, at)...)
	errs = append(errs, validateGates(spec, at)...)
	errs = append(errs, c.validatePodResources(at)...)
	return append(errs, gates.Validate(spec, at)...)
}

func (c *checker) validateLifetime(at *field.Path) field.ErrorList {
	spec := c.spec
	errs := validation.Enum(spec.RestartPolicy, at.Child("restartPolicy"),
		corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever)
	if spec.TerminationGracePeriodSeconds == nil {
		errs = append(errs, field.Required(at.Child("terminationGracePeriodSeconds"), ""))
	}
	if d := spec.ActiveDeadlineSeconds; d != nil && (*d < 1 || *d > math.MaxInt32) {
		errs = append(errs,
			field.Invalid(at.Child("activeDeadlineSeconds"), *d, utilvalidation.InclusiveRangeError(1, math.MaxInt32)))
	}
	errs = append(errs, validation.OptionalEnum(spec.PreemptionPolicy, at.Child("preemptionPolicy"),
		corev1.PreemptLowerPriority, corev1.PreemptNever)...)
	return errs
}

// validateNames checks the fields that name the pod or another object.
func (c *checker) validateNames(at *field.Path) field.ErrorList {
	spec := c.spec
	var errs field.ErrorList
	optional := func(value, name string, check func(string) []string) {
		if value != "" {
			errs = append(errs, validation.Check(value, at.Child(name), check)...)
		}
	}
	optional(spec.ServiceAccountName, "serviceAccountName", utilvalidation.IsDNS1123Subdomain)
	optional(spec.NodeName, "nodeName", utilvalidation.IsDNS1123Subdomain)
	optional(spec.Hostname, "hostname", utilvalidation.IsDNS1123Label)
	optional(spec.Subdomain, "subdomain", utilvalidation.IsDNS1123Label)
	optional(spec.PriorityClassName, "priorityClassName", utilvalidation.IsDNS1123Subdomain)
	if name := spec.RuntimeClassName; name != nil {
		errs = append(errs, validation.Check(*name, at.Child("runtimeClassName"), utilvalidation.IsDNS1123Subdomain)...)
	}
	if name := spec.HostnameOverride; name != nil {
		errs = append(errs, validateHostnameOverride(spec, *name, at.Child("hostnameOverride"))...)
	}
	return errs
}

func validateHostnameOverride(spec *corev1.PodSpec, name string, at *field.Path) field.ErrorList {
	const longestHostname = 64
	errs := validation.Check(name, at, utilvalidation.IsDNS1123Subdomain)
	if len(name) > longestHostname {
		errs = append(errs, field.TooLong(at, name, longestHostname))
	}
	if spec.HostNetwork {
		errs = append(errs, field.Forbidden(at, "may not be specified when hostNetwork is true"))
	}
	if ptr.Deref(spec.SetHostnameAsFQDN, false) {
		errs = append(errs, field.Forbidden(at, "may not be specified when setHostnameAsFQDN is true"))
	}
	return errs
}

func validateDNS(spec *corev1.PodSpec, at *field.Path) field.ErrorList {
	const (
		mostNameservers = 3
		mostSearches    = 32
		longestSearches = 2048
	)
	errs := validation.Enum(spec.DNSPolicy, at.Child("dnsPolicy"),
		corev1.DNSClusterFirstWithHostNet, corev1.DNSClusterFirst, corev1.DNSDefault, corev1.DNSNone)
	config, at := spec.DNSConfig, at.Child("dnsConfig")
	if spec.DNSPolicy == corev1.DNSNone {
		if config == nil {
			return append(errs, field.Required(at, "must provide `dnsConfig` when `dnsPolicy` is None"))
		}
		if len(config.Nameservers) == 0 {
			return append(errs,
				field.Required(at.Child("nameservers"),
					"must provide at least one DNS nameserver when `dnsPolicy` is None"))
		}
	}
	if config == nil {
		return errs
	}
	if len(config.Nameservers) > mostNameservers {
		errs = append(errs,
			field.Invalid(at.Child("nameservers"), config.Nameservers,
				fmt.Sprintf("must not have more than %d nameservers", mostNameservers)))
	}
	for i, ns := range config.Nameservers {
		errs = append(errs, validation.IP(ns, at.Child("nameservers").Index(i))...)
	}
	if len(config.Searches) > mostSearches {
		errs = append(errs,
			field.Invalid(at.Child("searches"), config.Searches,
				fmt.Sprintf("must not have more than %d search paths", mostSearches)))
	}
	if len(strings.Join(config.Searches, " ")) > longestSearches {
		errs = append(errs,
			field.Invalid(at.Child("searches"), config.Searches,
				fmt.Sprintf("must not have more than %d characters (including spaces) in the search list",
					longestSearches)))
	}
	for i, search := range config.Searches {
		if search == "." {
			continue
		}
		errs = append(errs,
			validation.Check(strings.TrimSuffix(search, "."), at.Child("searches").Index(i),
				utilvalidation.IsDNS1123SubdomainWithUnderscore)...)
	}
	for i, option := range config.Options {
		if option.Name == "" {
			errs = append(errs, field.Required(at.Child("options").Index(i), "must not be empty"))
		}
	}
	return errs
}

func validateHostAliases(aliases []corev1.HostAlias, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, alias := range aliases {
		errs = append(errs, validation.IP(alias.IP, at.Index(i).Child("ip"))...)
		for j, name := range alias.Hostnames {
			errs = append(errs,
				validation.Check(name, at.Index(i).Child("hostnames").Index(j), utilvalidation.IsDNS1123Subdomain)...)
		}
	}
	return errs
}

func validateGates(spec *corev1.PodSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, gate := range spec.ReadinessGates {
		errs = append(errs,
			validation.Check(string(gate.ConditionType), at.Child("readinessGates").Index(i).Child("conditionType"),
				utilvalidation.IsQualifiedName)...)
	}
	seen := map[string]bool{}
	for i, gate := range spec.SchedulingGates {
		at := at.Child("schedulingGates").Index(i)
		errs = append(errs, validation.Check(gate.Name, at, utilvalidation.IsQualifiedName)...)
		if seen[gate.Name] {
			errs = append(errs, field.Duplicate(at, gate.Name))
		}
		seen[gate.Name] = true
	}
	return errs
}

func (c *checker) validateClaims(at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, claim := range c.spec.ResourceClaims {
		at := at.Index(i)
		if claim.Name != "" && c.claims[claim.Name] {
			errs = append(errs, field.Duplicate(at.Child("name"), claim.Name))
		} else {
			errs = append(errs, validation.DNSLabel(claim.Name, at.Child("name"))...)
			c.claims[claim.Name] = true
		}
		direct, template := claim.ResourceClaimName, claim.ResourceClaimTemplateName
		if direct != nil && template != nil {
			errs = append(errs,
				field.Invalid(at, claim,
					"at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"))
		}
		if direct == nil && template == nil {
			errs = append(errs,
				field.Invalid(at, claim, "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"))
		}
		if direct != nil {
			errs = append(errs,
				validation.Check(*direct, at.Child("resourceClaimName"), utilvalidation.IsDNS1123Subdomain)...)
		}
		if template != nil {
			errs = append(errs,
				validation.Check(*template, at.Child("resourceClaimTemplateName"),
					utilvalidation.IsDNS1123Subdomain)...)
		}
	}
	return errs
}

// validatePodResources checks the resources of the pod as a whole.
func (c *checker) validatePodResources(at *field.Path) field.ErrorList {
	var errs field.ErrorList
	errs = append(errs,
		validation.ResourceRequirements(&corev1.ResourceRequirements{Limits: c.spec.Overhead}, nil,
			at.Child("overhead"))...)
	if c.spec.Resources == nil {
		return errs
	}
	at = at.Child("resources")
	if c.spec.Resources.Claims != nil {
		errs = append(errs, field.Forbidden(at.Child("claims"), "claims may not be set for Resources at pod-level"))
	}
	errs = append(errs, validation.PodResourceRequirements(c.spec.Resources, at)...)
	return append(errs, withinPod(c.spec, at)...)
}

// withinPod checks that the containers together do not request more than their pod does.
func withinPod(spec *corev1.PodSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	pod := &corev1.Pod{Spec: *spec}
	requests := resourcehelper.AggregateContainerRequests(pod, resourcehelper.PodResourcesOptions{})
	for _, name := range validation.SortedResources(requests) {
		sum := requests[name]
		if most, ok := spec.Resources.Requests[name]; ok && sum.Cmp(most) > 0 {
			errs = append(errs,
				field.Invalid(at.Child("requests").Key(string(name)), most.String(),
					"must be greater than or equal to aggregate container requests of "+sum.String()))
		}
	}
	limits := resourcehelper.AggregateContainerLimits(pod, resourcehelper.PodResourcesOptions{})
	for _, name := range validation.SortedResources(limits) {
		sum := limits[name]
		if most, ok := spec.Resources.Limits[name]; ok && validation.IsHugePages(name) && sum.Cmp(most) > 0 {
			errs = append(errs,
				field.Invalid(at.Child("limits").Key(string(name)), most.String(),
					"must be greater than or equal to aggregate container limits of "+sum.String()))
		}
	}
	for i := range spec.Containers {
		for _, name := range validation.SortedResources(spec.Containers[i].Resources.Limits) {
			limit := spec.Containers[i].Resources.Limits[name]
			if most, ok := spec.Resources.Limits[name]; ok && limit.Cmp(most) > 0 {
				errs = append(errs,
					field.Invalid(at.Child("containers").Index(i).Key(string(name)).Child("limits"), limit.String(),
						"must be less than or equal to pod limits of "+most.String()))
			}
		}
	}
	return errs
}
