package admissionregistration

import (
	"context"
	"fmt"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/client-go/util/jsonpath"

	"github.com/barque/barque/apiserver/groups/validation"
)

const (
	maxAnnotations = 20
	// maxAnnotationExpression, in bytes, is less than the limit of the audit log's annotations: the
	// value of an expression that joins strings is longer than the expression.
	maxAnnotationExpression = 5 << 10
)

func validateValidatingPolicy(_ context.Context, p, old *admissionv1.ValidatingAdmissionPolicy) field.ErrorList {
	errs, at, spec := metadata(p, old), field.NewPath("spec"), &p.Spec
	x := &expressions{params: spec.ParamKind != nil, stored: sets.New[string]()}
	if old != nil {
		x.stored = validatingExpressions(&old.Spec)
	}
	same := old != nil &&
		sameConditions(spec.ParamKind, old.Spec.ParamKind, spec.MatchConditions, old.Spec.MatchConditions)
	errs = append(errs, validatePolicy(spec.FailurePolicy, spec.ParamKind, spec.MatchConstraints, at)...)
	if !same {
		errs = append(errs, x.conditions(spec.MatchConditions, at.Child("matchConditions"))...)
	}
	errs = append(errs, x.variables(spec.Variables, at.Child("variables"))...)
	if len(spec.Validations) == 0 && len(spec.AuditAnnotations) == 0 {
		const either = "validations or auditAnnotations must contain at least one item"
		return append(errs, field.Required(at.Child("validations"), either),
			field.Required(at.Child("auditAnnotations"), either))
	}
	for i := range spec.Validations {
		errs = append(errs, x.validation(&spec.Validations[i], at.Child("validations").Index(i))...)
	}
	return append(errs, x.annotations(p.Name, spec.AuditAnnotations, at.Child("auditAnnotations"))...)
}

func validatingExpressions(spec *admissionv1.ValidatingAdmissionPolicySpec) sets.Set[string] {
	stored := conditionExpressions(spec.MatchConditions, spec.Variables)
	for _, v := range spec.Validations {
		stored.Insert(v.Expression, v.MessageExpression)
	}
	for _, a := range spec.AuditAnnotations {
		stored.Insert(a.ValueExpression)
	}
	return stored
}

func conditionExpressions(conditions []admissionv1.MatchCondition, variables []admissionv1.Variable) sets.Set[string] {
	stored := sets.New[string]()
	for _, c := range conditions {
		stored.Insert(c.Expression)
	}
	for _, v := range variables {
		stored.Insert(v.Expression)
	}
	return stored
}

// sameConditions reports that match conditions which were valid still are.
func sameConditions(kind, oldKind *admissionv1.ParamKind, conditions, old []admissionv1.MatchCondition) bool {
	return apiequality.Semantic.DeepEqual(kind, oldKind) && apiequality.Semantic.DeepEqual(conditions, old)
}

// validatePolicy checks the fields that both kinds of policies have.
func validatePolicy(
	failure *admissionv1.FailurePolicyType, kind *admissionv1.ParamKind, match *admissionv1.MatchResources,
	at *field.Path,
) field.ErrorList {
	errs := required(failure, at.Child("failurePolicy"), admissionv1.Fail, admissionv1.Ignore)
	if kind != nil {
		errs = append(errs, validateParamKind(kind, at.Child("paramKind"))...)
	}
	if match == nil {
		return append(errs, field.Required(at.Child("matchConstraints"), ""))
	}
	errs = append(errs, validateMatch(match, at.Child("matchConstraints"))...)
	if len(match.ResourceRules) == 0 {
		errs = append(errs, field.Required(at.Child("matchConstraints", "resourceRules"), ""))
	}
	return errs
}

func validateParamKind(k *admissionv1.ParamKind, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if k.APIVersion == "" {
		errs = append(errs, field.Required(at.Child("apiVersion"), ""))
	} else if gv, err := schema.ParseGroupVersion(k.APIVersion); err != nil {
		errs = append(errs, field.Invalid(at.Child("apiVersion"), k.APIVersion, err.Error()))
	} else {
		if gv.Group != "" {
			errs = append(errs,
				joined(gv.Group, at.Child("apiVersion"), "", utilvalidation.IsDNS1123Subdomain(gv.Group))...)
		}
		if gv.Version == "" {
			errs = append(errs, field.Invalid(at.Child("apiVersion"), k.APIVersion, "version must be specified"))
		} else {
			errs = append(errs,
				joined(gv.Version, at.Child("apiVersion"), "", utilvalidation.IsDNS1035Label(gv.Version))...)
		}
	}
	if k.Kind == "" {
		return append(errs, field.Required(at.Child("kind"), ""))
	}
	return append(errs, joined(k.Kind, at.Child("kind"), "may have mixed case, but should otherwise match: ",
		utilvalidation.IsDNS1035Label(strings.ToLower(k.Kind)))...)
}

// joined reports all messages about a value as one.
func joined(value string, at *field.Path, before string, messages []string) field.ErrorList {
	if len(messages) == 0 {
		return nil
	}
	return field.ErrorList{field.Invalid(at, value, before+strings.Join(messages, ","))}
}

func (e *expressions) validation(v *admissionv1.Validation, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if strings.TrimSpace(v.Expression) == "" {
		errs = append(errs, field.Required(at.Child("expression"), "expression is not specified"))
	} else {
		errs = append(errs,
			e.compile(&validating.ValidationCondition{Expression: v.Expression}, e.options(),
				at.Child("expression"))...)
	}
	if v.MessageExpression != "" {
		in := at.Child("messageExpression")
		if strings.TrimSpace(v.MessageExpression) == "" {
			errs = append(errs, field.Invalid(in, v.MessageExpression, "must be non-empty if specified"))
		} else {
			errs = append(errs,
				e.compile(&validating.MessageExpressionCondition{MessageExpression: v.MessageExpression},
					plugincel.OptionalVariableDeclarations{HasParams: e.params}, in)...)
		}
	}
	switch text := strings.TrimSpace(v.Message); {
	case v.Message != "" && text == "":
		errs = append(errs, field.Invalid(at.Child("message"), v.Message, "must be non-empty if specified"))
	case strings.ContainsAny(text, "\n\r"):
		errs = append(errs, field.Invalid(at.Child("message"), v.Message, "must not contain line breaks"))
	}
	return append(errs, optional(v.Reason, at.Child("reason"),
		metav1.StatusReasonForbidden, metav1.StatusReasonInvalid, metav1.StatusReasonRequestEntityTooLarge)...)
}

func (e *expressions) annotations(policy string, list []admissionv1.AuditAnnotation, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(list) > maxAnnotations {
		errs = append(errs,
			field.Invalid(at, list, fmt.Sprintf("must not have more than %d auditAnnotations", maxAnnotations)))
	}
	keys := sets.New[string]()
	for i, a := range list {
		in := at.Index(i)
		if policy == "" {
			errs = append(errs, field.Invalid(in.Child("key"), a.Key, "requires metadata.name be non-empty"))
		} else {
			errs = append(errs, validation.QualifiedName(policy+"/"+a.Key, in.Child("key"))...)
		}
		if keys.Has(a.Key) {
			errs = append(errs, field.Duplicate(in.Child("key"), a.Key))
		}
		keys.Insert(a.Key)
		switch text := strings.TrimSpace(a.ValueExpression); {
		case text == "":
			errs = append(errs, field.Required(in.Child("valueExpression"), "valueExpression is not specified"))
		case len(text) > maxAnnotationExpression:
			errs = append(errs,
				field.Required(in.Child("valueExpression"),
					fmt.Sprintf("must not exceed %d bytes in length", maxAnnotationExpression)))
		default:
			errs = append(errs,
				e.compile(&validating.AuditAnnotationCondition{ValueExpression: text}, e.options(),
					in.Child("valueExpression"))...)
		}
	}
	return errs
}

func validateMutatingPolicy(_ context.Context, p, old *admissionv1.MutatingAdmissionPolicy) field.ErrorList {
	errs, at, spec := metadata(p, old), field.NewPath("spec"), &p.Spec
	x := &expressions{params: spec.ParamKind != nil, stored: sets.New[string]()}
	if old != nil {
		x.stored = mutatingExpressions(&old.Spec)
	}
	same := old != nil &&
		sameConditions(spec.ParamKind, old.Spec.ParamKind, spec.MatchConditions, old.Spec.MatchConditions)
	errs = append(errs, validatePolicy(spec.FailurePolicy, spec.ParamKind, spec.MatchConstraints, at)...)
	errs = append(errs, validateMutable(spec.MatchConstraints, at.Child("matchConstraints"))...)
	if !same {
		errs = append(errs, x.conditions(spec.MatchConditions, at.Child("matchConditions"))...)
	}
	errs = append(errs, x.variables(spec.Variables, at.Child("variables"))...)
	if len(spec.Mutations) == 0 {
		errs = append(errs, field.Required(at.Child("mutations"), "mutations must contain at least one item"))
	}
	for i := range spec.Mutations {
		errs = append(errs, x.mutation(&spec.Mutations[i], at.Child("mutations").Index(i))...)
	}
	return append(errs, validation.Enum(spec.ReinvocationPolicy, at.Child("reinvocationPolicy"),
		admissionv1.IfNeededReinvocationPolicy, admissionv1.NeverReinvocationPolicy)...)
}

func mutatingExpressions(spec *admissionv1.MutatingAdmissionPolicySpec) sets.Set[string] {
	stored := conditionExpressions(spec.MatchConditions, spec.Variables)
	for _, m := range spec.Mutations {
		if m.ApplyConfiguration != nil {
			stored.Insert(strings.TrimSpace(m.ApplyConfiguration.Expression))
		}
		if m.JSONPatch != nil {
			stored.Insert(strings.TrimSpace(m.JSONPatch.Expression))
		}
	}
	return stored
}

func (e *expressions) mutation(m *admissionv1.Mutation, at *field.Path) field.ErrorList {
	apply, jsonPatch := at.Child("applyConfiguration"), at.Child("jsonPatch")
	var errs field.ErrorList
	switch m.PatchType {
	case admissionv1.PatchTypeJSONPatch:
		if m.JSONPatch == nil {
			errs = append(errs, field.Required(jsonPatch, "must be specified when patchType is JSONPatch"))
		} else {
			text := strings.TrimSpace(m.JSONPatch.Expression)
			errs = append(errs, e.patch(text, &patch.JSONPatchCondition{Expression: text}, jsonPatch)...)
		}
		if m.ApplyConfiguration != nil {
			errs = append(errs,
				field.Invalid(apply, "{applyConfiguration}", "must not be specified when patchType is JSONPatch"))
		}
		return errs
	case admissionv1.PatchTypeApplyConfiguration:
		if m.ApplyConfiguration == nil {
			errs = append(errs, field.Required(apply, "must be specified when patchType is ApplyConfiguration"))
		} else {
			text := strings.TrimSpace(m.ApplyConfiguration.Expression)
			errs = append(errs, e.patch(text, &patch.ApplyConfigurationCondition{Expression: text}, apply)...)
		}
		if m.JSONPatch != nil {
			errs = append(errs,
				field.Invalid(jsonPatch, "{jsonPatch}", "must not be specified when patchType is ApplyConfiguration"))
		}
		return errs
	}
	return validation.Enum(m.PatchType, at.Child("patchType"), admissionv1.PatchTypeApplyConfiguration,
		admissionv1.PatchTypeJSONPatch)
}

func (e *expressions) patch(text string, x plugincel.ExpressionAccessor, at *field.Path) field.ErrorList {
	if text == "" {
		return field.ErrorList{field.Required(at.Child("expression"), "")}
	}
	may := e.options()
	may.HasPatchTypes = true
	return e.compile(x, may, at.Child("expression"))
}

func validateBinding(
	policy string, params *admissionv1.ParamRef, match *admissionv1.MatchResources, at *field.Path,
) field.ErrorList {
	errs := validation.DNSSubdomain(policy, at.Child("policyName"))
	if params != nil {
		errs = append(errs, validateParamRef(params, at.Child("paramRef"))...)
	}
	return append(errs, validateMatch(match, at.Child("matchResources"))...)
}

func validateParamRef(r *admissionv1.ParamRef, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	const either = "name and selector are mutually exclusive"
	switch {
	case r.Name == "" && r.Selector == nil:
		errs = append(errs, field.Required(at, "one of name or selector must be specified"))
	case r.Name != "" && r.Selector != nil:
		errs = append(errs, field.Forbidden(at.Child("name"), either), field.Forbidden(at.Child("selector"), either))
	}
	if r.Name != "" {
		errs = append(errs, validation.Check(r.Name, at.Child("name"), content.IsPathSegmentName)...)
	}
	errs = append(errs, validation.LabelSelector(r.Selector, at.Child("selector"))...)
	action := at.Child("parameterNotFoundAction")
	if r.ParameterNotFoundAction == nil {
		return append(errs, field.Required(action, ""))
	}
	return append(errs,
		validation.Enum(*r.ParameterNotFoundAction, action, admissionv1.DenyAction, admissionv1.AllowAction)...)
}

func validateActions(actions []admissionv1.ValidationAction, at *field.Path) field.ErrorList {
	if len(actions) == 0 {
		return field.ErrorList{field.Required(at, "at least one validation action is required")}
	}
	var errs field.ErrorList
	seen := sets.New[admissionv1.ValidationAction]()
	for i, a := range actions {
		errs = append(errs, optional(&a, at.Index(i), admissionv1.Audit, admissionv1.Deny, admissionv1.Warn)...)
		if seen.Has(a) {
			errs = append(errs, field.Duplicate(at.Index(i), a))
		}
		seen.Insert(a)
	}
	if seen.HasAll(admissionv1.Deny, admissionv1.Warn) {
		errs = append(errs,
			field.Invalid(at, actions,
				"must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)"))
	}
	return errs
}

func validatePolicyStatus(s *admissionv1.ValidatingAdmissionPolicyStatus, at *field.Path) field.ErrorList {
	errs := metav1validation.ValidateConditions(s.Conditions, at.Child("conditions"))
	if s.TypeChecking == nil {
		return errs
	}
	for i, w := range s.TypeChecking.ExpressionWarnings {
		in := at.Child("typeChecking", "expressionWarnings").Index(i)
		if w.Warning == "" {
			errs = append(errs, field.Required(in.Child("warning"), ""))
		}
		ref := strings.TrimSpace(w.FieldRef)
		if ref == "" {
			errs = append(errs, field.Required(in.Child("fieldRef"), ""))
		} else if err := jsonpath.New("spec").Parse("{" + ref + "}"); err != nil {
			errs = append(errs, field.Invalid(in.Child("fieldRef"), ref, fmt.Sprintf("invalid JSONPath: %v", err)))
		}
	}
	return errs
}
