package autoscaling

import (
	"context"
	"errors"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/barque/barque/apiserver/groups/validation"
)

const (
	longestPeriod        = 1800 // seconds
	longestStabilization = 3600 // seconds
)

func validateAutoscaler(_ context.Context, a, old *autoscalingv2.HorizontalPodAutoscaler) field.ErrorList {
	errs := validation.Meta(a, old, true, validation.SubdomainName)
	spec, at := &a.Spec, field.NewPath("spec")
	errs = append(errs, validateReplicas(spec, at)...)
	errs = append(errs, validateScaled(&spec.ScaleTargetRef, old, at.Child("scaleTargetRef"))...)
	check := metricChecker{keepVersions: hasBadVersion(old)}
	for i := range spec.Metrics {
		errs = append(errs, check.validateMetric(&spec.Metrics[i], at.Child("metrics").Index(i))...)
	}
	if b := spec.Behavior; b != nil {
		errs = append(errs, validateRules(b.ScaleUp, at.Child("behavior", "scaleUp"))...)
		errs = append(errs, validateRules(b.ScaleDown, at.Child("behavior", "scaleDown"))...)
	}
	return errs
}

func validateReplicas(spec *autoscalingv2.HorizontalPodAutoscalerSpec, at *field.Path) field.ErrorList {
	errs := validation.OptionalNonNegative(spec.MinReplicas, at.Child("minReplicas"))
	switch {
	case spec.MaxReplicas == 0:
		errs = append(errs, field.Required(at.Child("maxReplicas"), "must be set and greater than 0"))
	case spec.MaxReplicas < 0:
		errs = append(errs,
			field.Invalid(at.Child("maxReplicas"), spec.MaxReplicas, "must be greater than or equal to 1"))
	}
	if spec.MinReplicas == nil {
		return errs
	}
	if spec.MaxReplicas < *spec.MinReplicas {
		errs = append(errs,
			field.Invalid(at.Child("maxReplicas"), spec.MaxReplicas, "must be greater than or equal to `minReplicas`"))
	}
	if *spec.MinReplicas == 0 && !measuredWithoutPods(spec.Metrics) {
		errs = append(errs,
			field.Forbidden(at.Child("metrics"),
				"must specify at least one Object or External metric to support scaling to zero replicas"))
	}
	return errs
}

// measuredWithoutPods reports whether a metric is left when there are no pods to measure.
func measuredWithoutPods(metrics []autoscalingv2.MetricSpec) bool {
	for i := range metrics {
		if t := metrics[i].Type; t == autoscalingv2.ObjectMetricSourceType ||
			t == autoscalingv2.ExternalMetricSourceType {
			return true
		}
	}
	return false
}

// validateScaled checks the target of scaling. Its version must name a group, as every scalable
// kind except ReplicationController has one; a stored value may stay.
func validateScaled(
	ref *autoscalingv2.CrossVersionObjectReference, old *autoscalingv2.HorizontalPodAutoscaler, at *field.Path,
) field.ErrorList {
	errs := validateReference(ref, at)
	if old != nil && old.Spec.ScaleTargetRef.APIVersion == ref.APIVersion && old.Spec.ScaleTargetRef.Kind == ref.Kind {
		return errs
	}
	if err := checkVersion(ref, ref.Kind != "ReplicationController"); err != nil {
		errs = append(errs, field.Invalid(at.Child("apiVersion"), ref.APIVersion, err.Error()))
	}
	return errs
}

func validateReference(ref *autoscalingv2.CrossVersionObjectReference, at *field.Path) field.ErrorList {
	errs := validation.PathSegment(ref.Kind, at.Child("kind"))
	return append(errs, validation.PathSegment(ref.Name, at.Child("name"))...)
}

func checkVersion(ref *autoscalingv2.CrossVersionObjectReference, needsGroup bool) error {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err == nil && needsGroup && gv.Group == "" {
		return errors.New("apiVersion must specify API group")
	}
	return err
}

// hasBadVersion reports whether a stored metric is of an object with an invalid version.
func hasBadVersion(old *autoscalingv2.HorizontalPodAutoscaler) bool {
	if old == nil {
		return false
	}
	for i := range old.Spec.Metrics {
		m := &old.Spec.Metrics[i]
		if m.Type == autoscalingv2.ObjectMetricSourceType && m.Object != nil &&
			checkVersion(&m.Object.DescribedObject, false) != nil {
			return true
		}
	}
	return false
}

func validateRules(rules *autoscalingv2.HPAScalingRules, at *field.Path) field.ErrorList {
	if rules == nil {
		return nil
	}
	var errs field.ErrorList
	if s := rules.StabilizationWindowSeconds; s != nil {
		at := at.Child("stabilizationWindowSeconds")
		switch {
		case *s < 0:
			errs = append(errs, field.Invalid(at, *s, "must be greater than or equal to zero"))
		case *s > longestStabilization:
			errs = append(errs, field.Invalid(at, *s, "must be less than or equal to 3600"))
		}
	}
	if s := rules.SelectPolicy; s != nil {
		switch *s {
		case autoscalingv2.DisabledPolicySelect, autoscalingv2.MaxChangePolicySelect,
			autoscalingv2.MinChangePolicySelect:
		default:
			errs = append(errs, field.NotSupported(at.Child("selectPolicy"), *s, []autoscalingv2.ScalingPolicySelect{
				autoscalingv2.DisabledPolicySelect, autoscalingv2.MaxChangePolicySelect,
				autoscalingv2.MinChangePolicySelect,
			}))
		}
	}
	if len(rules.Policies) == 0 {
		errs = append(errs, field.Required(at.Child("policies"), "must specify at least one Policy"))
	}
	for i := range rules.Policies {
		errs = append(errs, validatePolicy(&rules.Policies[i], at.Child("policies").Index(i))...)
	}
	if t := rules.Tolerance; t != nil && t.Sign() < 0 {
		errs = append(errs, field.Invalid(at.Child("tolerance"), t.String(), "must be greater than or equal to 0"))
	}
	return errs
}

func validatePolicy(p *autoscalingv2.HPAScalingPolicy, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if p.Type != autoscalingv2.PodsScalingPolicy && p.Type != autoscalingv2.PercentScalingPolicy {
		errs = append(errs, field.NotSupported(at.Child("type"), p.Type,
			[]autoscalingv2.HPAScalingPolicyType{autoscalingv2.PercentScalingPolicy, autoscalingv2.PodsScalingPolicy}))
	}
	if p.Value <= 0 {
		errs = append(errs, field.Invalid(at.Child("value"), p.Value, "must be greater than zero"))
	}
	switch {
	case p.PeriodSeconds <= 0:
		errs = append(errs, field.Invalid(at.Child("periodSeconds"), p.PeriodSeconds, "must be greater than zero"))
	case p.PeriodSeconds > longestPeriod:
		errs = append(errs,
			field.Invalid(at.Child("periodSeconds"), p.PeriodSeconds, "must be less than or equal to 1800"))
	}
	return errs
}

func validateAutoscalerStatus(_ context.Context, a, _ *autoscalingv2.HorizontalPodAutoscaler) field.ErrorList {
	at := field.NewPath("status")
	errs := validation.NonNegative(a.Status.CurrentReplicas, at.Child("currentReplicas"))
	errs = append(errs, validation.NonNegative(a.Status.DesiredReplicas, at.Child("desiredReplicas"))...)
	for i, c := range a.Status.Conditions {
		errs = append(errs,
			validation.OptionalNonNegative(c.ObservedGeneration,
				at.Child("conditions").Index(i).Child("observedGeneration"))...)
	}
	return errs
}
