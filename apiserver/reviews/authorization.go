package reviews

import (
	"context"
	"errors"
	"fmt"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/barque/barque/apiserver/resource"
)

// Authorization returns the access reviews, answered by authz, and the rules review, answered by
// rules.
func Authorization(authz authorizer.UnconditionalAuthorizer, rules authorizer.RuleResolver) []resource.Resource {
	r := reviewer{authz, rules}
	gv := authorizationv1.SchemeGroupVersion
	return []resource.Resource{
		&resource.Action[authorizationv1.SubjectAccessReview]{
			GroupVersion: gv, Name: "subjectaccessreviews", Singular: "subjectaccessreview", ClusterScoped: true,
			Do: r.subject,
		},
		&resource.Action[authorizationv1.LocalSubjectAccessReview]{
			GroupVersion: gv, Name: "localsubjectaccessreviews", Singular: "localsubjectaccessreview", Do: r.local,
		},
		&resource.Action[authorizationv1.SelfSubjectAccessReview]{
			GroupVersion: gv, Name: "selfsubjectaccessreviews", Singular: "selfsubjectaccessreview",
			ClusterScoped: true, Do: r.self,
		},
		&resource.Action[authorizationv1.SelfSubjectRulesReview]{
			GroupVersion: gv, Name: "selfsubjectrulesreviews", Singular: "selfsubjectrulesreview", ClusterScoped: true,
			Do: r.selfRules,
		},
	}
}

type reviewer struct {
	authz authorizer.UnconditionalAuthorizer
	rules authorizer.RuleResolver
}

func (r reviewer) subject(
	ctx context.Context, review *authorizationv1.SubjectAccessReview, _ *metav1.CreateOptions,
) (*authorizationv1.SubjectAccessReview, error) {
	if errs := validateSubject(&review.Spec); len(errs) > 0 {
		return nil, invalid("SubjectAccessReview", errs)
	}
	review.Status = r.decide(ctx, subjectOf(&review.Spec), review.Spec.ResourceAttributes,
		review.Spec.NonResourceAttributes)
	return review, nil
}

func (r reviewer) local(
	ctx context.Context, review *authorizationv1.LocalSubjectAccessReview, _ *metav1.CreateOptions,
) (*authorizationv1.LocalSubjectAccessReview, error) {
	errs := validateSubject(&review.Spec)
	spec := field.NewPath("spec")
	if review.Spec.NonResourceAttributes != nil {
		errs = append(errs,
			field.Invalid(spec.Child("nonResourceAttributes"), review.Spec.NonResourceAttributes,
				"disallowed on this kind of request"))
	}
	namespace := request.NamespaceValue(ctx)
	if ra := review.Spec.ResourceAttributes; ra != nil && ra.Namespace != namespace {
		errs = append(errs,
			field.Invalid(spec.Child("resourceAttributes", "namespace"), ra.Namespace, "must match metadata.namespace"))
	}
	if len(errs) > 0 {
		return nil, invalid("LocalSubjectAccessReview", errs)
	}
	review.Namespace = namespace
	review.Status = r.decide(ctx, subjectOf(&review.Spec), review.Spec.ResourceAttributes, nil)
	return review, nil
}

func (r reviewer) self(
	ctx context.Context, review *authorizationv1.SelfSubjectAccessReview, _ *metav1.CreateOptions,
) (*authorizationv1.SelfSubjectAccessReview, error) {
	if errs := validateAttributes(review.Spec.ResourceAttributes, review.Spec.NonResourceAttributes); len(errs) > 0 {
		return nil, invalid("SelfSubjectAccessReview", errs)
	}
	u, ok := request.UserFrom(ctx)
	if !ok {
		return nil, apierrors.NewBadRequest("no user in the request")
	}
	review.Status = r.decide(ctx, u, review.Spec.ResourceAttributes, review.Spec.NonResourceAttributes)
	return review, nil
}

func (r reviewer) selfRules(
	ctx context.Context, review *authorizationv1.SelfSubjectRulesReview, _ *metav1.CreateOptions,
) (*authorizationv1.SelfSubjectRulesReview, error) {
	u, ok := request.UserFrom(ctx)
	if !ok {
		return nil, apierrors.NewBadRequest("no user in the request")
	}
	if review.Spec.Namespace == "" {
		return nil, apierrors.NewBadRequest("no namespace on request")
	}
	resources, urls, incomplete, err := r.rules.RulesFor(ctx, u, review.Spec.Namespace)
	review.Status = authorizationv1.SubjectRulesReviewStatus{
		ResourceRules:    []authorizationv1.ResourceRule{},
		NonResourceRules: []authorizationv1.NonResourceRule{},
		Incomplete:       incomplete,
	}
	if err != nil {
		review.Status.EvaluationError = err.Error()
	}
	for _, rule := range resources {
		review.Status.ResourceRules = append(review.Status.ResourceRules, authorizationv1.ResourceRule{
			Verbs: rule.GetVerbs(), APIGroups: rule.GetAPIGroups(), Resources: rule.GetResources(),
			ResourceNames: rule.GetResourceNames(),
		})
	}
	for _, rule := range urls {
		review.Status.NonResourceRules = append(review.Status.NonResourceRules, authorizationv1.NonResourceRule{
			Verbs: rule.GetVerbs(), NonResourceURLs: rule.GetNonResourceURLs(),
		})
	}
	return review, nil
}

func (r reviewer) decide(
	ctx context.Context, u user.Info, ra *authorizationv1.ResourceAttributes, na *authorizationv1.NonResourceAttributes,
) authorizationv1.SubjectAccessReviewStatus {
	asked := attributes(u, ra, na)
	decision, reason, err := r.authz.Authorize(ctx, asked)
	status := authorizationv1.SubjectAccessReviewStatus{
		Allowed: decision == authorizer.DecisionAllow,
		Denied:  decision == authorizer.DecisionDeny,
		Reason:  reason,
	}
	var said []string
	if err != nil {
		said = append(said, err.Error())
	}
	if asked.FieldSelectorParsingErr != nil {
		said = append(said, leftOut("fieldSelector", len(asked.FieldSelectorRequirements)))
	}
	if asked.LabelSelectorParsingErr != nil {
		said = append(said, leftOut("labelSelector", len(asked.LabelSelectorRequirements)))
	}
	status.EvaluationError = strings.Join(said, "; ")
	return status
}

// leftOut reports that a selector was not used as a whole, in kube-apiserver's words.
func leftOut(selector string, taken int) string {
	partially := ""
	if taken > 0 {
		partially = "partially "
	}
	return "spec.resourceAttributes." + selector + " " + partially + "ignored due to parse error"
}

func attributes(
	u user.Info, ra *authorizationv1.ResourceAttributes, na *authorizationv1.NonResourceAttributes,
) authorizer.AttributesRecord {
	if ra == nil {
		return authorizer.AttributesRecord{User: u, Verb: na.Verb, Path: na.Path}
	}
	a := authorizer.AttributesRecord{
		User: u, Verb: ra.Verb, Namespace: ra.Namespace, APIGroup: ra.Group, APIVersion: orAny(ra.Version),
		Resource: ra.Resource, Subresource: ra.Subresource, Name: ra.Name, ResourceRequest: true,
	}
	if f := ra.FieldSelector; f != nil {
		a.FieldSelectorRequirements, a.FieldSelectorParsingErr = fieldRequirements(f)
	}
	if l := ra.LabelSelector; l != nil {
		a.LabelSelectorRequirements, a.LabelSelectorParsingErr = labelRequirements(l)
	}
	return a
}

func orAny(version string) string {
	if version == "" {
		return "*"
	}
	return version
}

// fieldRequirements converts the requirements that fields can express: equality. Omitting others
// only widens the question, which is the safe side; the error reports that one was left out.
func fieldRequirements(f *authorizationv1.FieldSelectorAttributes) (fields.Requirements, error) {
	if f.RawSelector != "" {
		s, err := fields.ParseSelector(f.RawSelector)
		if err != nil {
			return nil, err
		}
		return s.Requirements(), nil
	}
	var out fields.Requirements
	var errs []error
	for _, r := range f.Requirements {
		one := len(r.Values) == 1
		switch {
		case one && r.Operator == metav1.FieldSelectorOpIn:
			out = append(out, fields.OneTermEqualSelector(r.Key, r.Values[0]).Requirements()...)
		case one && r.Operator == metav1.FieldSelectorOpNotIn:
			out = append(out, fields.OneTermNotEqualSelector(r.Key, r.Values[0]).Requirements()...)
		default:
			errs = append(errs,
				fmt.Errorf("no field selector has operator %q with %d values", r.Operator, len(r.Values)))
		}
	}
	return out, errors.Join(errs...)
}

// labelRequirements is fieldRequirements for labels.
func labelRequirements(l *authorizationv1.LabelSelectorAttributes) (labels.Requirements, error) {
	if l.RawSelector != "" {
		s, err := labels.Parse(l.RawSelector)
		if err != nil {
			return nil, err
		}
		requirements, _ := s.Requirements()
		return requirements, nil
	}
	var out labels.Requirements
	var errs []error
	for _, r := range l.Requirements {
		s, err := metav1.LabelSelectorAsSelector(
			&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{r}})
		if err != nil {
			errs = append(errs, err)
			continue
		}
		one, _ := s.Requirements()
		out = append(out, one...)
	}
	return out, errors.Join(errs...)
}

func subjectOf(spec *authorizationv1.SubjectAccessReviewSpec) user.Info {
	extra := make(map[string][]string, len(spec.Extra))
	for k, v := range spec.Extra {
		extra[k] = v
	}
	return &user.DefaultInfo{Name: spec.User, UID: spec.UID, Groups: spec.Groups, Extra: extra}
}

func validateSubject(spec *authorizationv1.SubjectAccessReviewSpec) field.ErrorList {
	errs := validateAttributes(spec.ResourceAttributes, spec.NonResourceAttributes)
	if spec.User == "" && len(spec.Groups) == 0 {
		errs = append(errs,
			field.Invalid(field.NewPath("spec", "user"), spec.User, "at least one of user or group must be specified"))
	}
	return errs
}

func validateAttributes(
	ra *authorizationv1.ResourceAttributes, na *authorizationv1.NonResourceAttributes,
) field.ErrorList {
	spec := field.NewPath("spec")
	var errs field.ErrorList
	if (ra != nil) == (na != nil) {
		errs = append(errs,
			field.Invalid(spec, field.OmitValueType{},
				"exactly one of nonResourceAttributes or resourceAttributes must be specified"))
	}
	if ra == nil {
		return errs
	}
	at := spec.Child("resourceAttributes")
	if f := ra.FieldSelector; f != nil {
		at := at.Child("fieldSelector")
		errs = append(errs, validateSelector(f.RawSelector, len(f.Requirements), at)...)
		for i, r := range f.Requirements {
			errs = append(errs,
				metav1validation.ValidateFieldSelectorRequirement(r, newerFields, at.Child("requirements").Index(i))...)
		}
	}
	if l := ra.LabelSelector; l != nil {
		at := at.Child("labelSelector")
		errs = append(errs, validateSelector(l.RawSelector, len(l.Requirements), at)...)
		for i, r := range l.Requirements {
			errs = append(errs,
				metav1validation.ValidateLabelSelectorRequirement(r, newerLabels, at.Child("requirements").Index(i))...)
		}
	}
	return errs
}

// A newer client may know operators that this server does not. They only narrow the question, so
// they are left out of it.
var (
	newerFields = metav1validation.FieldSelectorValidationOptions{AllowUnknownOperatorInRequirement: true}
	newerLabels = metav1validation.LabelSelectorValidationOptions{AllowUnknownOperatorInRequirement: true}
)

func validateSelector(raw string, requirements int, at *field.Path) field.ErrorList {
	switch {
	case raw != "" && requirements > 0:
		return field.ErrorList{
			field.Invalid(at.Child("rawSelector"), raw, "may not specified at the same time as requirements")}
	case raw == "" && requirements == 0:
		return field.ErrorList{
			field.Required(at.Child("requirements"),
				fmt.Sprintf("when %s is specified, requirements or rawSelector is required", at))}
	}
	return nil
}

func invalid(kind string, errs field.ErrorList) error {
	return apierrors.NewInvalid(schema.GroupKind{Group: authorizationv1.GroupName, Kind: kind}, "", errs)
}
