// Package policy declares the resources of the policy API group: the budgets that bound how many
// pods of an application may be evicted at a time. The eviction subresource of pods spends them.
package policy

import (
	"context"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/barque/barque/apiserver/groups/validation"
	"github.com/barque/barque/apiserver/resource"
)

// Resources declares the group's resources.
func Resources() []resource.Resource { return []resource.Resource{disruptionBudgets()} }

func disruptionBudgets() resource.Resource {
	return &resource.Kind[policyv1.PodDisruptionBudget]{
		GroupVersion:    policyv1.SchemeGroupVersion,
		Name:            "poddisruptionbudgets",
		Singular:        "poddisruptionbudget",
		ShortNames:      []string{"pdb"},
		List:            &policyv1.PodDisruptionBudgetList{},
		Generation:      true,
		VersionedUpdate: true,
		Validate:        validateBudget,
		Status:          &resource.Status[policyv1.PodDisruptionBudget]{Validate: validateBudgetStatus},
		Columns: []metav1.TableColumnDefinition{
			resource.Name(),
			resource.Column("Min Available", "string", "How many pods must stay available."),
			resource.Column("Max Unavailable", "string", "How many pods may be unavailable."),
			resource.Column("Allowed Disruptions", "integer", "How many pods may be evicted now."),
			resource.Age(),
		},
		Row: func(b *policyv1.PodDisruptionBudget, now time.Time) []any {
			return []any{
				b.Name,
				formatBound(b.Spec.MinAvailable),
				formatBound(b.Spec.MaxUnavailable),
				int64(b.Status.DisruptionsAllowed),
				resource.Since(b.CreationTimestamp, now),
			}
		},
	}
}

func formatBound(value *intstr.IntOrString) string {
	if value == nil {
		return "N/A"
	}
	return value.String()
}

func validateBudget(_ context.Context, b, old *policyv1.PodDisruptionBudget) field.ErrorList {
	errs := validation.Meta(b, old, true, validation.SegmentName)
	spec, at := &b.Spec, field.NewPath("spec")
	if spec.MinAvailable != nil && spec.MaxUnavailable != nil {
		errs = append(errs, field.Invalid(at, spec, "minAvailable and maxUnavailable cannot be both set"))
	}
	errs = append(errs, validateBound(spec.MinAvailable, at.Child("minAvailable"))...)
	errs = append(errs, validateBound(spec.MaxUnavailable, at.Child("maxUnavailable"))...)
	errs = append(errs, validation.LabelSelector(spec.Selector, at.Child("selector"))...)
	if p := spec.UnhealthyPodEvictionPolicy; p != nil && *p != policyv1.AlwaysAllow && *p != policyv1.IfHealthyBudget {
		errs = append(errs, field.NotSupported(at.Child("unhealthyPodEvictionPolicy"), *p,
			[]policyv1.UnhealthyPodEvictionPolicyType{policyv1.AlwaysAllow, policyv1.IfHealthyBudget}))
	}
	return errs
}

func validateBound(value *intstr.IntOrString, at *field.Path) field.ErrorList {
	if value == nil {
		return nil
	}
	return append(validation.IntOrPercent(*value, at), validation.AtMost100Percent(*value, at)...)
}

func validateBudgetStatus(_ context.Context, b, _ *policyv1.PodDisruptionBudget) field.ErrorList {
	s, at := &b.Status, field.NewPath("status")
	errs := metav1validation.ValidateConditions(s.Conditions, at.Child("conditions"))
	errs = append(errs, validation.NonNegative(s.DisruptionsAllowed, at.Child("disruptionsAllowed"))...)
	errs = append(errs, validation.NonNegative(s.CurrentHealthy, at.Child("currentHealthy"))...)
	errs = append(errs, validation.NonNegative(s.DesiredHealthy, at.Child("desiredHealthy"))...)
	return append(errs, validation.NonNegative(s.ExpectedPods, at.Child("expectedPods"))...)
}
