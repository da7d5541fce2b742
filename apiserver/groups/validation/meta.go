package validation

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// NameFunc returns the faults of a name; prefix is true for a generateName, whose end is not
// known yet.
type NameFunc = apivalidation.ValidateNameFunc

// Rules for object names.
var (
	// SubdomainName is the rule of most kinds: a DNS subdomain of at most 253 characters.
	SubdomainName NameFunc = apivalidation.NameIsDNSSubdomain
	// LabelName is a DNS label of at most 63 characters.
	LabelName NameFunc = apivalidation.NameIsDNSLabel
	// Label1035Name is a DNS label that starts with a letter.
	Label1035Name NameFunc = apivalidation.NameIsDNS1035Label
)

// SegmentName accepts anything that fits between two slashes of a URL path, as RBAC names do.
func SegmentName(name string, prefix bool) []string {
	if prefix {
		return content.IsPathSegmentPrefix(name)
	}
	return content.IsPathSegmentName(name)
}

// Object is a pointer to an API type.
type Object[T any] interface {
	*T
	metav1.Object
}

// Meta checks the metadata of a new object and, when old is not nil, of its change.
func Meta[T any, P Object[T]](obj, old P, namespaced bool, name NameFunc) field.ErrorList {
	at := field.NewPath("metadata")
	var errs field.ErrorList
	if old != nil {
		errs = apivalidation.ValidateObjectMetaAccessorUpdate(obj, old, at)
	} else {
		errs = apivalidation.ValidateObjectMetaAccessor(obj, namespaced, name, at)
	}
	for i, f := range obj.GetFinalizers() {
		errs = append(errs, Finalizer(f, at.Child("finalizers").Index(i))...)
	}
	return errs
}

// Finalizer checks that a finalizer without a domain is one of Kubernetes' own.
func Finalizer(name string, at *field.Path) field.ErrorList {
	switch name {
	case string(corev1.FinalizerKubernetes), metav1.FinalizerOrphanDependents, metav1.FinalizerDeleteDependents:
		return nil
	}
	if strings.Contains(name, "/") {
		return nil
	}
	return field.ErrorList{
		field.Invalid(at, name, "name is neither a standard finalizer name nor is it fully qualified")}
}

// Labels checks keys and values of a label set.
func Labels(set map[string]string, at *field.Path) field.ErrorList {
	return metav1validation.ValidateLabels(set, at)
}

// LabelSelector checks a selector. A nil one is accepted.
func LabelSelector(s *metav1.LabelSelector, at *field.Path) field.ErrorList {
	return metav1validation.ValidateLabelSelector(s, metav1validation.LabelSelectorValidationOptions{}, at)
}

// WorkloadSelector checks the selector of a controller over the labels of the pods that it makes:
// it must select something, and must select them.
func WorkloadSelector(s *metav1.LabelSelector, template map[string]string, spec *field.Path) field.ErrorList {
	at := spec.Child("selector")
	var errs field.ErrorList
	if s == nil {
		errs = append(errs, field.Required(at, ""))
	} else {
		errs = append(errs, LabelSelector(s, at)...)
		if len(s.MatchLabels)+len(s.MatchExpressions) == 0 {
			errs = append(errs, field.Invalid(at, s, "empty selector is invalid for deployment"))
		}
	}
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return append(errs, field.Invalid(at, s, "invalid label selector"))
	}
	// A selector that is missing selects nothing, the template's labels neither.
	if !selector.Empty() && !selector.Matches(labels.Set(template)) {
		errs = append(errs,
			field.Invalid(spec.Child("template", "metadata", "labels"), template,
				"`selector` does not match template `labels`"))
	}
	return errs
}

// Immutable reports a value that differs from the stored one.
func Immutable(value, old any, at *field.Path) field.ErrorList {
	return apivalidation.ValidateImmutableField(value, old, at)
}
