package core

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/barque/barque/apiserver/groups/podtemplate"
	"github.com/barque/barque/apiserver/groups/validation"
	"github.com/barque/barque/apiserver/resource"
)

func resourceQuotas() resource.Resource {
	return &resource.Kind[corev1.ResourceQuota]{
		GroupVersion:  version,
		Name:          "resourcequotas",
		Singular:      "resourcequota",
		ShortNames:    []string{"quota"},
		List:          &corev1.ResourceQuotaList{},
		ReturnDeleted: true,
		Default: func(q *corev1.ResourceQuota) {
			podtemplate.RoundUp(q.Spec.Hard)
			podtemplate.RoundUp(q.Status.Hard)
			podtemplate.RoundUp(q.Status.Used)
		},
		Validate: validateQuota,
		Warnings: quotaWarnings,
		Status:   &resource.Status[corev1.ResourceQuota]{Validate: validateQuotaStatus},
		Columns: []metav1.TableColumnDefinition{
			resource.Name(),
			resource.Column("Request", "string", "What is used, of how much, of requests and objects."),
			resource.Column("Limit", "string", "What is used, of how much, of limits."),
			resource.Age(),
		},
		Row: func(q *corev1.ResourceQuota, now time.Time) []any {
			requests, limits := formatQuota(&q.Status)
			return []any{q.Name, requests, limits, resource.Since(q.CreationTimestamp, now)}
		},
	}
}

func formatQuota(s *corev1.ResourceQuotaStatus) (requests, limits string) {
	var request, limit []string
	for _, name := range validation.SortedResources(s.Hard) {
		used, hard := s.Used[name], s.Hard[name]
		cell := fmt.Sprintf("%s: %s/%s", name, used.String(), hard.String())
		if strings.HasPrefix(string(name), "limits.") {
			limit = append(limit, cell)
		} else {
			request = append(request, cell)
		}
	}
	return strings.Join(request, ", "), strings.Join(limit, ", ")
}

// quotaWarnings warns of requests that could never be used up.
func quotaWarnings(_ context.Context, q, old *corev1.ResourceQuota) []string {
	if old != nil {
		return nil
	}
	var warnings []string
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceStorage,
		corev1.ResourceEphemeralStorage} {
		requestName, limitName := "requests."+name, "limits."+name
		request, requested := q.Spec.Hard[requestName]
		if !requested && (name == corev1.ResourceCPU || name == corev1.ResourceMemory) {
			requestName = name
			request, requested = q.Spec.Hard[name]
		}
		if limit, ok := q.Spec.Hard[limitName]; ok && requested && request.Cmp(limit) > 0 {
			warnings = append(warnings, fmt.Sprintf("ResourceQuota %s (%s) should be less than %s (%s)",
				requestName, request.String(), limitName, limit.String()))
		}
	}
	return warnings
}

func validateQuota(_ context.Context, q, old *corev1.ResourceQuota) field.ErrorList {
	errs := validation.Meta(q, old, true, validation.SubdomainName)
	at := field.NewPath("spec")
	errs = append(errs, validateQuantities(q.Spec.Hard, at.Child("hard"))...)
	errs = append(errs, validateScopes(&q.Spec, at.Child("scopes"))...)
	if q.Spec.ScopeSelector != nil {
		errs = append(errs, validateScopeSelector(&q.Spec, at.Child("scopeSelector", "matchExpressions"))...)
	}
	if old != nil && !sets.New(q.Spec.Scopes...).Equal(sets.New(old.Spec.Scopes...)) {
		errs = append(errs, field.Invalid(at.Child("scopes"), q.Spec.Scopes, "field is immutable"))
	}
	return errs
}

func validateQuotaStatus(_ context.Context, q, _ *corev1.ResourceQuota) field.ErrorList {
	var errs field.ErrorList
	if q.ResourceVersion == "" {
		errs = append(errs, field.Required(field.NewPath("resourceVersion"), ""))
	}
	at := field.NewPath("status")
	errs = append(errs, validateQuantities(q.Status.Hard, at.Child("hard"))...)
	return append(errs, validateQuantities(q.Status.Used, at.Child("used"))...)
}

// counted are the objects that a quota counts by names of their own.
var counted = sets.New(corev1.ResourcePods, corev1.ResourceQuotas, corev1.ResourceServices,
	corev1.ResourceReplicationControllers,
	corev1.ResourceSecrets, corev1.ResourceConfigMaps, corev1.ResourcePersistentVolumeClaims,
	corev1.ResourceServicesNodePorts, corev1.ResourceServicesLoadBalancers)

// measured are the amounts that a quota sums up.
var measured = sets.New(corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage,
	corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory, corev1.ResourceRequestsStorage,
	corev1.ResourceRequestsEphemeralStorage,
	corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory, corev1.ResourceLimitsEphemeralStorage)

// isQuotaResource reports whether a quota may have the name, which has no domain.
func isQuotaResource(name corev1.ResourceName) bool {
	return counted.Has(name) || measured.Has(name) || validation.IsHugePages(name) ||
		strings.HasPrefix(string(name), corev1.ResourceRequestsHugePagesPrefix)
}

func validateQuantities(list corev1.ResourceList, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, name := range validation.SortedResources(list) {
		q, key := list[name], at.Key(string(name))
		errs = append(errs, validation.ResourceName(name, key)...)
		if !strings.Contains(string(name), "/") && !isQuotaResource(name) {
			errs = append(errs, field.Invalid(key, name, "must be a standard resource for quota"))
		}
		errs = append(errs, validation.Quantity(name, q, key)...)
	}
	return errs
}

// validateScopes checks the scopes of a quota, each of which must be of use to all its resources.
func validateScopes(spec *corev1.ResourceQuotaSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, scope := range spec.Scopes {
		if !isScope(scope) {
			errs = append(errs, field.Invalid(at, spec.Scopes, "unsupported scope"))
		}
		for range unscoped(scope, spec.Hard) {
			errs = append(errs, field.Invalid(at, spec.Scopes, "unsupported scope applied to resource"))
		}
	}
	return append(errs, conflictingScopes(spec.Scopes, spec, at)...)
}

func validateScopeSelector(spec *corev1.ResourceQuotaSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	var scopes []corev1.ResourceQuotaScope
	for _, r := range spec.ScopeSelector.MatchExpressions {
		scopes = append(scopes, r.ScopeName)
		if !isScope(r.ScopeName) {
			errs = append(errs, field.Invalid(at.Child("scopeName"), r.ScopeName, "unsupported scope"))
		}
		for range unscoped(r.ScopeName, spec.Hard) {
			errs = append(errs, field.Invalid(at, spec.ScopeSelector, "unsupported scope applied to resource"))
		}
		switch r.ScopeName {
		case corev1.ResourceQuotaScopePriorityClass, corev1.ResourceQuotaScopeVolumeAttributesClass:
		default:
			if isScope(r.ScopeName) && r.Operator != corev1.ScopeSelectorOpExists {
				errs = append(errs,
					field.Invalid(at.Child("operator"), r.Operator,
						"must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, "+
							"ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity"))
			}
		}
		errs = append(errs, validateScopeValues(r, at)...)
	}
	return append(errs, conflictingScopes(scopes, spec, at)...)
}

func validateScopeValues(r corev1.ScopedResourceSelectorRequirement, at *field.Path) field.ErrorList {
	switch r.Operator {
	case corev1.ScopeSelectorOpIn, corev1.ScopeSelectorOpNotIn:
		if len(r.Values) == 0 {
			return field.ErrorList{
				field.Required(at.Child("values"),
					"must be at least one value when `operator` is 'In' or 'NotIn' for scope selector")}
		}
	case corev1.ScopeSelectorOpExists, corev1.ScopeSelectorOpDoesNotExist:
		if len(r.Values) > 0 {
			return field.ErrorList{
				field.Invalid(at.Child("values"), r.Values,
					"must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector")}
		}
	default:
		return field.ErrorList{field.Invalid(at.Child("operator"), r.Operator, "not a valid selector operator")}
	}
	return nil
}

func isScope(scope corev1.ResourceQuotaScope) bool {
	return slices.Contains([]corev1.ResourceQuotaScope{
		corev1.ResourceQuotaScopeTerminating, corev1.ResourceQuotaScopeNotTerminating,
		corev1.ResourceQuotaScopeBestEffort, corev1.ResourceQuotaScopeNotBestEffort,
		corev1.ResourceQuotaScopePriorityClass, corev1.ResourceQuotaScopeVolumeAttributesClass,
		corev1.ResourceQuotaScopeCrossNamespacePodAffinity,
	}, scope)
}

// unscoped lists the resources of a quota that a scope does not know.
func unscoped(scope corev1.ResourceQuotaScope, hard corev1.ResourceList) []corev1.ResourceName {
	known := sets.New(corev1.ResourcePods)
	switch scope {
	case corev1.ResourceQuotaScopeTerminating, corev1.ResourceQuotaScopeNotTerminating,
		corev1.ResourceQuotaScopeNotBestEffort,
		corev1.ResourceQuotaScopePriorityClass, corev1.ResourceQuotaScopeCrossNamespacePodAffinity:
		known.Insert(corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory,
			corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory)
	case corev1.ResourceQuotaScopeBestEffort:
	case corev1.ResourceQuotaScopeVolumeAttributesClass:
		known = sets.New(corev1.ResourcePersistentVolumeClaims, corev1.ResourceRequestsStorage)
	default:
		return nil
	}
	var unknown []corev1.ResourceName
	for _, name := range validation.SortedResources(hard) {
		if isQuotaResource(name) && !known.Has(name) {
			unknown = append(unknown, name)
		}
	}
	return unknown
}

func conflictingScopes(
	scopes []corev1.ResourceQuotaScope, spec *corev1.ResourceQuotaSpec, at *field.Path,
) field.ErrorList {
	var errs field.ErrorList
	set := sets.New(scopes...)
	if set.HasAll(corev1.ResourceQuotaScopeBestEffort, corev1.ResourceQuotaScopeNotBestEffort) {
		errs = append(errs, field.Invalid(at, spec.Scopes, "conflicting scopes"))
	}
	if set.HasAll(corev1.ResourceQuotaScopeTerminating, corev1.ResourceQuotaScopeNotTerminating) {
		errs = append(errs, field.Invalid(at, spec.Scopes, "conflicting scopes"))
	}
	return errs
}
