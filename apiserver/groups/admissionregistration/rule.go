package admissionregistration

import (
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/barque/barque/apiserver/groups/validation"
)

var (
	operations = []admissionv1.OperationType{
		admissionv1.OperationAll, admissionv1.Connect, admissionv1.Create, admissionv1.Delete, admissionv1.Update,
	}
	// mutatingOperations have an object to change.
	mutatingOperations = []admissionv1.OperationType{admissionv1.OperationAll, admissionv1.Connect, admissionv1.Create,
		admissionv1.Update}
)

func validateRule(r *admissionv1.RuleWithOperations, at *field.Path) field.ErrorList {
	errs := alone(r.Operations, at.Child("operations"), "if '*' is present, must not specify other operations")
	for i, o := range r.Operations {
		if !slices.Contains(operations, o) {
			errs = append(errs, field.NotSupported(at.Child("operations").Index(i), o, operations))
		}
	}
	errs = append(errs,
		alone(r.APIGroups, at.Child("apiGroups"), "if '*' is present, must not specify other API groups")...)
	errs = append(errs,
		alone(r.APIVersions, at.Child("apiVersions"), "if '*' is present, must not specify other API versions")...)
	for i, v := range r.APIVersions {
		if v == "" {
			errs = append(errs, field.Required(at.Child("apiVersions").Index(i), ""))
		}
	}
	errs = append(errs, validateResources(r.Resources, at.Child("resources"))...)
	return append(errs,
		optional(r.Scope, at.Child("scope"), admissionv1.AllScopes, admissionv1.ClusterScope,
			admissionv1.NamespacedScope)...)
}

// alone wants at least one value, and no other beside a wildcard.
func alone[T ~string](values []T, at *field.Path, others string) field.ErrorList {
	if len(values) == 0 {
		return field.ErrorList{field.Required(at, "")}
	}
	if len(values) > 1 && slices.Contains(values, "*") {
		return field.ErrorList{field.Invalid(at, values, others)}
	}
	return nil
}

func validateResources(resources []string, at *field.Path) field.ErrorList {
	if len(resources) == 0 {
		return field.ErrorList{field.Required(at, "")}
	}
	var errs field.ErrorList
	all := sets.New[string]()   // resources of which all subresources were named
	every := sets.New[string]() // subresources that were named of all resources
	plain := false              // whether the last without a subresource was named by its name
	for i, r := range resources {
		if r == "" {
			errs = append(errs, field.Required(at.Index(i), ""))
			continue
		}
		of, sub, ok := strings.Cut(r, "/")
		if !ok {
			plain = r != "*"
			continue
		}
		if all.Has(of) {
			errs = append(errs,
				field.Invalid(at.Index(i), r, fmt.Sprintf("if '%s/*' is present, must not specify %s", of, r)))
		}
		if every.Has(sub) {
			errs = append(errs,
				field.Invalid(at.Index(i), r, fmt.Sprintf("if '*/%s' is present, must not specify %s", sub, r)))
		}
		if sub == "*" {
			all.Insert(of)
		}
		if of == "*" {
			every.Insert(sub)
		}
	}
	if len(resources) > 1 && slices.Contains(resources, "*/*") {
		errs = append(errs, field.Invalid(at, resources, "if '*/*' is present, must not specify other resources"))
	}
	if slices.Contains(resources, "*") && plain {
		errs = append(errs,
			field.Invalid(at, resources, "if '*' is present, must not specify other resources without subresources"))
	}
	return errs
}

func defaultMatch(m *admissionv1.MatchResources) {
	if m == nil {
		return
	}
	setDefault(&m.MatchPolicy, admissionv1.Equivalent)
	setDefault(&m.NamespaceSelector, metav1.LabelSelector{})
	setDefault(&m.ObjectSelector, metav1.LabelSelector{})
	for _, rules := range [][]admissionv1.NamedRuleWithOperations{m.ResourceRules, m.ExcludeResourceRules} {
		for i := range rules {
			defaultRule(&rules[i].Rule)
		}
	}
}

func validateMatch(m *admissionv1.MatchResources, at *field.Path) field.ErrorList {
	if m == nil {
		return nil
	}
	errs := required(m.MatchPolicy, at.Child("matchPolicy"), admissionv1.Equivalent, admissionv1.Exact)
	if m.NamespaceSelector == nil {
		errs = append(errs, field.Required(at.Child("namespaceSelector"), ""))
	}
	if m.ObjectSelector == nil {
		errs = append(errs, field.Required(at.Child("objectSelector"), ""))
	}
	errs = append(errs, validation.LabelSelector(m.NamespaceSelector, at.Child("namespaceSelector"))...)
	errs = append(errs, validation.LabelSelector(m.ObjectSelector, at.Child("objectSelector"))...)
	for i := range m.ResourceRules {
		errs = append(errs, validateNamedRule(&m.ResourceRules[i], at.Child("resourceRules").Index(i))...)
	}
	for i := range m.ExcludeResourceRules {
		errs = append(errs, validateNamedRule(&m.ExcludeResourceRules[i], at.Child("excludeResourceRules").Index(i))...)
	}
	return errs
}

// required is optional for a field that must be there.
func required[T ~string](value *T, at *field.Path, allowed ...T) field.ErrorList {
	if value == nil {
		return field.ErrorList{field.Required(at, "")}
	}
	return optional(value, at, allowed...)
}

func validateNamedRule(r *admissionv1.NamedRuleWithOperations, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := sets.New[string]()
	for i, name := range r.ResourceNames {
		errs = append(errs, validation.Check(name, at.Child("resourceNames").Index(i), content.IsPathSegmentName)...)
		if seen.Has(name) {
			errs = append(errs, field.Duplicate(at.Child("resourceNames").Index(i), name))
		}
		seen.Insert(name)
	}
	return append(errs, validateRule(&r.RuleWithOperations, at)...)
}

// validateMutable refuses operations that have no object to change.
func validateMutable(m *admissionv1.MatchResources, at *field.Path) field.ErrorList {
	if m == nil {
		return nil
	}
	var errs field.ErrorList
	for _, r := range m.ResourceRules {
		for _, o := range r.Operations {
			if !slices.Contains(mutatingOperations, o) {
				errs = append(errs, field.NotSupported(at.Child("resourceRules", "operations"), o, mutatingOperations))
			}
		}
	}
	return errs
}
