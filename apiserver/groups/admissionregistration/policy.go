package admissionregistration

import (
	"context"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/barque/barque/apiserver/resource"
)

func validatingPolicies() resource.Resource {
	return &resource.Kind[admissionv1.ValidatingAdmissionPolicy]{
		GroupVersion:    admissionv1.SchemeGroupVersion,
		Name:            "validatingadmissionpolicies",
		Singular:        "validatingadmissionpolicy",
		Categories:      categories,
		ClusterScoped:   true,
		List:            &admissionv1.ValidatingAdmissionPolicyList{},
		Generation:      true,
		VersionedUpdate: true,
		Default: func(p *admissionv1.ValidatingAdmissionPolicy) {
			setDefault(&p.Spec.FailurePolicy, admissionv1.Fail)
			defaultMatch(p.Spec.MatchConstraints)
		},
		Validate: validateValidatingPolicy,
		Status: &resource.Status[admissionv1.ValidatingAdmissionPolicy]{
			Validate: func(_ context.Context, p, _ *admissionv1.ValidatingAdmissionPolicy) field.ErrorList {
				return validatePolicyStatus(&p.Status, field.NewPath("status"))
			},
		},
		Columns: []metav1.TableColumnDefinition{
			resource.Name(),
			resource.Column("Validations", "integer", "How many validations the policy has."),
			resource.Column("ParamKind", "string", "Kind of the objects that parameterize the policy."),
			resource.Age(),
		},
		Row: func(p *admissionv1.ValidatingAdmissionPolicy, now time.Time) []any {
			return []any{p.Name, int64(len(p.Spec.Validations)), paramKindCell(p.Spec.ParamKind),
				resource.Since(p.CreationTimestamp, now)}
		},
	}
}

func validatingBindings() resource.Resource {
	return &resource.Kind[admissionv1.ValidatingAdmissionPolicyBinding]{
		GroupVersion:    admissionv1.SchemeGroupVersion,
		Name:            "validatingadmissionpolicybindings",
		Singular:        "validatingadmissionpolicybinding",
		Categories:      categories,
		ClusterScoped:   true,
		List:            &admissionv1.ValidatingAdmissionPolicyBindingList{},
		Generation:      true,
		VersionedUpdate: true,
		Default:         func(b *admissionv1.ValidatingAdmissionPolicyBinding) { defaultMatch(b.Spec.MatchResources) },
		Validate: func(_ context.Context, b, old *admissionv1.ValidatingAdmissionPolicyBinding) field.ErrorList {
			at := field.NewPath("spec")
			errs := append(metadata(b, old),
				validateBinding(b.Spec.PolicyName, b.Spec.ParamRef, b.Spec.MatchResources, at)...)
			return append(errs, validateActions(b.Spec.ValidationActions, at.Child("validationActions"))...)
		},
		Columns: bindingColumns(),
		Row: func(b *admissionv1.ValidatingAdmissionPolicyBinding, now time.Time) []any {
			return []any{b.Name, b.Spec.PolicyName, paramRefCell(b.Spec.ParamRef),
				resource.Since(b.CreationTimestamp, now)}
		},
	}
}

func mutatingPolicies() resource.Resource {
	return &resource.Kind[admissionv1.MutatingAdmissionPolicy]{
		GroupVersion:    admissionv1.SchemeGroupVersion,
		Name:            "mutatingadmissionpolicies",
		Singular:        "mutatingadmissionpolicy",
		Categories:      categories,
		ClusterScoped:   true,
		List:            &admissionv1.MutatingAdmissionPolicyList{},
		Generation:      true,
		VersionedUpdate: true,
		Default: func(p *admissionv1.MutatingAdmissionPolicy) {
			setDefault(&p.Spec.FailurePolicy, admissionv1.Fail)
			defaultMatch(p.Spec.MatchConstraints)
		},
		Validate: validateMutatingPolicy,
		Columns: []metav1.TableColumnDefinition{
			resource.Name(),
			resource.Column("Mutations", "integer", "How many mutations the policy has."),
			resource.Column("ParamKind", "string", "Kind of the objects that parameterize the policy."),
			resource.Age(),
		},
		Row: func(p *admissionv1.MutatingAdmissionPolicy, now time.Time) []any {
			return []any{p.Name, int64(len(p.Spec.Mutations)), paramKindCell(p.Spec.ParamKind),
				resource.Since(p.CreationTimestamp, now)}
		},
	}
}

func mutatingBindings() resource.Resource {
	return &resource.Kind[admissionv1.MutatingAdmissionPolicyBinding]{
		GroupVersion:    admissionv1.SchemeGroupVersion,
		Name:            "mutatingadmissionpolicybindings",
		Singular:        "mutatingadmissionpolicybinding",
		Categories:      categories,
		ClusterScoped:   true,
		List:            &admissionv1.MutatingAdmissionPolicyBindingList{},
		Generation:      true,
		VersionedUpdate: true,
		Default:         func(b *admissionv1.MutatingAdmissionPolicyBinding) { defaultMatch(b.Spec.MatchResources) },
		Validate: func(_ context.Context, b, old *admissionv1.MutatingAdmissionPolicyBinding) field.ErrorList {
			at := field.NewPath("spec")
			errs := append(metadata(b, old),
				validateBinding(b.Spec.PolicyName, b.Spec.ParamRef, b.Spec.MatchResources, at)...)
			return append(errs, validateMutable(b.Spec.MatchResources, at.Child("matchResources"))...)
		},
		Columns: bindingColumns(),
		Row: func(b *admissionv1.MutatingAdmissionPolicyBinding, now time.Time) []any {
			return []any{b.Name, b.Spec.PolicyName, paramRefCell(b.Spec.ParamRef),
				resource.Since(b.CreationTimestamp, now)}
		},
	}
}

func bindingColumns() []metav1.TableColumnDefinition {
	return []metav1.TableColumnDefinition{
		resource.Name(),
		resource.Column("PolicyName", "string", "The policy that is bound."),
		resource.Column("ParamRef", "string", "The objects that parameterize the policy."),
		resource.Age(),
	}
}

const unset = "<unset>"

func paramKindCell(k *admissionv1.ParamKind) string {
	if k == nil {
		return unset
	}
	return k.APIVersion + "/" + k.Kind
}

// paramRefCell shows a name without a namespace as one in any, since only the policy's kind shows
// whether it has one.
func paramRefCell(r *admissionv1.ParamRef) string {
	switch {
	case r == nil:
		return unset
	case r.Name != "" && r.Namespace != "":
		return r.Namespace + "/" + r.Name
	case r.Name != "":
		return "*/" + r.Name
	case r.Selector != nil:
		return r.Selector.String()
	}
	return unset
}
