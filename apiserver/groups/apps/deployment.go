package apps

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/groups/podtemplate"
	"github.com/barque/barque/apiserver/groups/validation"
	"github.com/barque/barque/apiserver/resource"
)

func deployments() resource.Resource {
	return &resource.Kind[appsv1.Deployment]{
		GroupVersion: version,
		Name:         "deployments",
		Singular:     "deployment",
		ShortNames:   []string{"deploy"},
		Categories:   []string{"all"},
		List:         &appsv1.DeploymentList{},
		Default:      defaultDeployment,
		Prepare:      prepareDeployment,
		Validate:     validateDeployment,
		Warnings: func(_ context.Context, d, old *appsv1.Deployment) []string {
			return templateWarnings(d, old, &d.Spec.Template)
		},
		Generation: true,
		Status:     &resource.Status[appsv1.Deployment]{Validate: validateDeploymentStatus},
		Scale: &resource.Scale[appsv1.Deployment]{
			Replicas: func(d *appsv1.Deployment) *int32 { return d.Spec.Replicas },
			Observed: func(d *appsv1.Deployment) int32 { return d.Status.Replicas },
			Selector: func(d *appsv1.Deployment) (string, error) { return selectorString(d.Spec.Selector) },
		},
		Columns: append([]metav1.TableColumnDefinition{
			resource.Name(),
			resource.Column("Ready", "string", "How many pods are ready, of how many desired."),
			resource.Column("Up-to-date", "integer", "How many pods are of the newest template."),
			resource.Column("Available", "integer", "How many pods have been ready for long enough."),
			resource.Age(),
		}, podtemplate.Columns()...),
		Row: func(d *appsv1.Deployment, now time.Time) []any {
			return append([]any{
				d.Name,
				fmt.Sprintf("%d/%d", d.Status.ReadyReplicas, ptr.Deref(d.Spec.Replicas, 0)),
				int64(d.Status.UpdatedReplicas),
				int64(d.Status.AvailableReplicas),
				resource.Since(d.CreationTimestamp, now),
			}, podtemplate.Cells(&d.Spec.Template.Spec, d.Spec.Selector)...)
		},
	}
}

func defaultDeployment(d *appsv1.Deployment) {
	podtemplate.Default(&d.Spec.Template)
	spec := &d.Spec
	if spec.Replicas == nil {
		spec.Replicas = ptr.To[int32](1)
	}
	if spec.Strategy.Type == "" {
		spec.Strategy.Type = appsv1.RollingUpdateDeploymentStrategyType
	}
	if spec.Strategy.Type == appsv1.RollingUpdateDeploymentStrategyType {
		if spec.Strategy.RollingUpdate == nil {
			spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{}
		}
		rolling := spec.Strategy.RollingUpdate
		if rolling.MaxUnavailable == nil {
			rolling.MaxUnavailable = ptr.To(intstr.FromString("25%"))
		}
		if rolling.MaxSurge == nil {
			rolling.MaxSurge = ptr.To(intstr.FromString("25%"))
		}
	}
	if spec.RevisionHistoryLimit == nil {
		spec.RevisionHistoryLimit = ptr.To[int32](10)
	}
	if spec.ProgressDeadlineSeconds == nil {
		spec.ProgressDeadlineSeconds = ptr.To[int32](600)
	}
}

// prepareDeployment counts a change of the annotations as a new generation: the controller copies
// them to its replica sets.
func prepareDeployment(_ context.Context, d, old *appsv1.Deployment) {
	if old != nil && !apiequality.Semantic.DeepEqual(d.Annotations, old.Annotations) {
		d.Generation = old.Generation + 1
	}
}

func validateDeployment(_ context.Context, d, old *appsv1.Deployment) field.ErrorList {
	errs := validation.Meta(d, old, true, validation.SubdomainName)
	spec, at := &d.Spec, field.NewPath("spec")
	errs = append(errs, validation.OptionalNonNegative(spec.Replicas, at.Child("replicas"))...)
	errs = append(errs, validation.WorkloadSelector(spec.Selector, spec.Template.Labels, at)...)
	errs = append(errs, podtemplate.ValidateForever(&spec.Template, "ReplicaSet", at.Child("template"))...)
	errs = append(errs, validateStrategy(&spec.Strategy, at.Child("strategy"))...)
	errs = append(errs, validation.NonNegative(spec.MinReadySeconds, at.Child("minReadySeconds"))...)
	errs = append(errs, validation.OptionalNonNegative(spec.RevisionHistoryLimit, at.Child("revisionHistoryLimit"))...)
	if deadline := spec.ProgressDeadlineSeconds; deadline != nil {
		at := at.Child("progressDeadlineSeconds")
		errs = append(errs, validation.NonNegative(*deadline, at)...)
		if *deadline <= spec.MinReadySeconds {
			errs = append(errs, field.Invalid(at, *deadline, "must be greater than minReadySeconds"))
		}
	}
	if old != nil {
		errs = append(errs, validation.Immutable(spec.Selector, old.Spec.Selector, at.Child("selector"))...)
	}
	return errs
}

func validateStrategy(s *appsv1.DeploymentStrategy, at *field.Path) field.ErrorList {
	switch s.Type {
	case appsv1.RecreateDeploymentStrategyType:
		if s.RollingUpdate != nil {
			return field.ErrorList{
				field.Forbidden(at.Child("rollingUpdate"), "may not be specified when strategy `type` is 'Recreate'")}
		}
	case appsv1.RollingUpdateDeploymentStrategyType:
		if s.RollingUpdate == nil {
			return field.ErrorList{
				field.Required(at.Child("rollingUpdate"), "this should be defaulted and never be nil")}
		}
		return validateRollingUpdate(s.RollingUpdate, at.Child("rollingUpdate"))
	default:
		return field.ErrorList{
			field.NotSupported(at, s,
				[]appsv1.DeploymentStrategyType{appsv1.RecreateDeploymentStrategyType,
					appsv1.RollingUpdateDeploymentStrategyType})}
	}
	return nil
}

func validateRollingUpdate(r *appsv1.RollingUpdateDeployment, at *field.Path) field.ErrorList {
	unavailable, surge := ptr.Deref(r.MaxUnavailable, intstr.IntOrString{}), ptr.Deref(r.MaxSurge, intstr.IntOrString{})
	errs := validation.IntOrPercent(unavailable, at.Child("maxUnavailable"))
	errs = append(errs, validation.AtMost100Percent(unavailable, at.Child("maxUnavailable"))...)
	errs = append(errs, validation.IntOrPercent(surge, at.Child("maxSurge"))...)
	if isZero(unavailable) && isZero(surge) {
		errs = append(errs,
			field.Invalid(at.Child("maxUnavailable"), r.MaxUnavailable, "may not be 0 when `maxSurge` is 0"))
	}
	return errs
}

func isZero(v intstr.IntOrString) bool {
	if v.Type == intstr.Int {
		return v.IntVal == 0
	}
	percent, ok := validation.Percent(v)
	return !ok || percent == 0 // a value that is neither counts as none
}

func validateDeploymentStatus(_ context.Context, d, old *appsv1.Deployment) field.ErrorList {
	s, at := &d.Status, field.NewPath("status")
	errs := validation.Meta(d, old, true, validation.SubdomainName)
	for _, n := range []struct {
		name  string
		value int32
	}{
		{"replicas", s.Replicas},
		{"updatedReplicas", s.UpdatedReplicas},
		{"readyReplicas", s.ReadyReplicas},
		{"availableReplicas", s.AvailableReplicas},
		{"unavailableReplicas", s.UnavailableReplicas},
		{"terminatingReplicas", ptr.Deref(s.TerminatingReplicas, 0)},
	} {
		errs = append(errs, validation.NonNegative(n.value, at.Child(n.name))...)
	}
	errs = append(errs, validation.NonNegative(s.ObservedGeneration, at.Child("observedGeneration"))...)
	const tooMany = "cannot be greater than status.replicas"
	if s.UpdatedReplicas > s.Replicas {
		errs = append(errs, field.Invalid(at.Child("updatedReplicas"), s.UpdatedReplicas, tooMany))
	}
	if s.ReadyReplicas > s.Replicas {
		errs = append(errs, field.Invalid(at.Child("readyReplicas"), s.ReadyReplicas, tooMany))
	}
	if s.AvailableReplicas > s.Replicas {
		errs = append(errs, field.Invalid(at.Child("availableReplicas"), s.AvailableReplicas, tooMany))
	}
	if s.AvailableReplicas > s.ReadyReplicas {
		errs = append(errs,
			field.Invalid(at.Child("availableReplicas"), s.AvailableReplicas, "cannot be greater than readyReplicas"))
	}
	errs = append(errs, validation.OptionalNonNegative(s.CollisionCount, at.Child("collisionCount"))...)
	if was := old.Status.CollisionCount; was != nil && (s.CollisionCount == nil || *s.CollisionCount < *was) {
		errs = append(errs,
			field.Invalid(at.Child("collisionCount"), ptr.Deref(s.CollisionCount, 0), "cannot be decremented"))
	}
	return errs
}
