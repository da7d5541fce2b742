package admissionregistration

import (
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission/plugin/manifest"
	"k8s.io/apiserver/pkg/util/webhook"

	"github.com/barque/barque/apiserver/groups/validation"
)

// metadata checks the metadata. Some names belong to objects that a server reads from files.
func metadata[T any, P validation.Object[T]](obj, old P) field.ErrorList {
	errs := validation.Meta(obj, old, false, validation.SubdomainName)
	if old == nil && strings.HasSuffix(obj.GetName(), manifest.StaticConfigSuffix) {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), obj.GetName(), fmt.Sprintf(
			"names ending with %q are reserved for static manifest-based configurations and cannot be managed via the API", manifest.StaticConfigSuffix)))
	}
	return errs
}

// reviewVersions are the versions of AdmissionReview that the server speaks.
var reviewVersions = []string{"v1", "v1beta1"}

// leniency has the faults that stored webhooks may keep and new ones may not have.
type leniency struct {
	sideEffects, versions, names, selectors bool
	// conditions are left alone when none of them changes.
	conditions bool
	stored     sets.Set[string] // expressions
}

func lenient(hooks, old []hook) leniency {
	l := leniency{stored: sets.New[string](), conditions: len(hooks) == len(old)}
	names := sets.New[string]()
	for i, h := range old {
		l.sideEffects = l.sideEffects || h.SideEffects == nil || !slices.Contains(noSideEffects, *h.SideEffects)
		l.versions = l.versions || len(h.AdmissionReviewVersions) > 0 && !speaks(h.AdmissionReviewVersions)
		l.names = l.names || names.Has(h.Name)
		names.Insert(h.Name)
		for _, s := range []*metav1.LabelSelector{h.NamespaceSelector, h.ObjectSelector} {
			l.selectors = l.selectors || len(validation.LabelSelector(s, nil)) > 0
		}
		l.conditions = l.conditions && apiequality.Semantic.DeepEqual(h.MatchConditions, hooks[i].MatchConditions)
		for _, c := range h.MatchConditions {
			l.stored.Insert(c.Expression)
		}
	}
	return l
}

func speaks(versions []string) bool {
	return slices.ContainsFunc(versions, func(v string) bool { return slices.Contains(reviewVersions, v) })
}

func validateHooks(hooks, old []hook, update bool) field.ErrorList {
	var allowed leniency
	if update {
		allowed = lenient(hooks, old)
	}
	var errs field.ErrorList
	names := sets.New[string]()
	for i := range hooks {
		at := field.NewPath("webhooks").Index(i)
		h := &hooks[i]
		errs = append(errs, validateHook(h, &allowed, at)...)
		if !allowed.names && h.Name != "" && names.Has(h.Name) {
			errs = append(errs, field.Duplicate(at.Child("name"), h.Name))
		}
		names.Insert(h.Name)
	}
	return errs
}

var (
	noSideEffects = []admissionv1.SideEffectClass{admissionv1.SideEffectClassNone,
		admissionv1.SideEffectClassNoneOnDryRun}
	allSideEffects = []admissionv1.SideEffectClass{
		admissionv1.SideEffectClassNone, admissionv1.SideEffectClassNoneOnDryRun, admissionv1.SideEffectClassSome,
		admissionv1.SideEffectClassUnknown,
	}
)

func validateHook(h *hook, allowed *leniency, at *field.Path) field.ErrorList {
	errs := utilvalidation.IsFullyQualifiedName(at.Child("name"), h.Name)
	for i := range h.Rules {
		errs = append(errs, validateRule(&h.Rules[i], at.Child("rules").Index(i))...)
	}
	errs = append(errs, optional(h.FailurePolicy, at.Child("failurePolicy"), admissionv1.Fail, admissionv1.Ignore)...)
	errs = append(errs, optional(h.MatchPolicy, at.Child("matchPolicy"), admissionv1.Equivalent, admissionv1.Exact)...)
	errs = append(errs,
		optional(h.ReinvocationPolicy, at.Child("reinvocationPolicy"), admissionv1.IfNeededReinvocationPolicy,
			admissionv1.NeverReinvocationPolicy)...)
	errs = append(errs, validateSideEffects(h.SideEffects, allowed, at.Child("sideEffects"))...)
	if t := h.TimeoutSeconds; t != nil && (*t < 1 || *t > 30) {
		errs = append(errs,
			field.Invalid(at.Child("timeoutSeconds"), *t, "the timeout value must be between 1 and 30 seconds"))
	}
	selectors := metav1validation.LabelSelectorValidationOptions{AllowInvalidLabelValueInSelector: allowed.selectors}
	errs = append(errs,
		metav1validation.ValidateLabelSelector(h.NamespaceSelector, selectors, at.Child("namespaceSelector"))...)
	errs = append(errs,
		metav1validation.ValidateLabelSelector(h.ObjectSelector, selectors, at.Child("objectSelector"))...)
	errs = append(errs, validateClient(&h.ClientConfig, at.Child("clientConfig"))...)
	if !allowed.conditions {
		errs = append(errs,
			(&expressions{stored: allowed.stored}).conditions(h.MatchConditions, at.Child("matchConditions"))...)
	}
	return append(errs, validateVersions(h.AdmissionReviewVersions, allowed, at.Child("admissionReviewVersions"))...)
}

// optional is validation.OptionalEnum for fields that do not count an empty value as missing.
func optional[T ~string](value *T, at *field.Path, allowed ...T) field.ErrorList {
	if value == nil || slices.Contains(allowed, *value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(at, *value, allowed)}
}

func validateSideEffects(value *admissionv1.SideEffectClass, allowed *leniency, at *field.Path) field.ErrorList {
	classes := noSideEffects
	if allowed.sideEffects {
		classes = allSideEffects
	}
	if value == nil {
		return field.ErrorList{field.Required(at, "must specify one of "+join(classes))}
	}
	return optional(value, at, classes...)
}

func join[T ~string](values []T) string {
	texts := make([]string, len(values))
	for i, v := range values {
		texts[i] = string(v)
	}
	return strings.Join(texts, ", ")
}

func validateClient(c *admissionv1.WebhookClientConfig, at *field.Path) field.ErrorList {
	switch {
	case (c.URL == nil) == (c.Service == nil):
		return field.ErrorList{field.Required(at, "exactly one of url or service is required")}
	case c.URL != nil:
		return webhook.ValidateWebhookURL(at.Child("url"), *c.URL, true)
	}
	// Defaulting has set the port, except in objects that no decoder has read.
	port := int32(443)
	if c.Service.Port != nil {
		port = *c.Service.Port
	}
	return webhook.ValidateWebhookService(at.Child("service"), c.Service.Namespace, c.Service.Name, c.Service.Path,
		port)
}

func validateVersions(versions []string, allowed *leniency, at *field.Path) field.ErrorList {
	if len(versions) == 0 {
		return field.ErrorList{field.Required(at, "must specify one of "+strings.Join(reviewVersions, ", "))}
	}
	var errs field.ErrorList
	seen := sets.New[string]()
	for i, v := range versions {
		if seen.Has(v) {
			errs = append(errs, field.Invalid(at.Index(i), v, "duplicate version"))
			continue
		}
		seen.Insert(v)
		errs = append(errs, validation.Check(v, at.Index(i), utilvalidation.IsDNS1035Label)...)
	}
	if !allowed.versions && !speaks(versions) {
		errs = append(errs,
			field.Invalid(at, versions, "must include at least one of "+strings.Join(reviewVersions, ", ")))
	}
	return errs
}
