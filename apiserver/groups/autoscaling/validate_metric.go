package autoscaling

import (
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/barque/barque/apiserver/groups/validation"
)

// metricChecker checks the metrics of one autoscaler.
type metricChecker struct {
	keepVersions bool // versions of described objects that are invalid are stored already
}

// source is one member of a metric's union.
type source struct {
	of    autoscalingv2.MetricSourceType
	name  string // of its field
	set   bool
	check func(at *field.Path) field.ErrorList
}

func (c metricChecker) sources(m *autoscalingv2.MetricSpec) []source {
	return []source{
		{autoscalingv2.ObjectMetricSourceType, "object", m.Object != nil,
			func(at *field.Path) field.ErrorList { return c.validateObject(m.Object, at) }},
		{autoscalingv2.ExternalMetricSourceType, "external", m.External != nil,
			func(at *field.Path) field.ErrorList { return validateExternal(m.External, at) }},
		{autoscalingv2.PodsMetricSourceType, "pods", m.Pods != nil,
			func(at *field.Path) field.ErrorList { return validatePods(m.Pods, at) }},
		{autoscalingv2.ResourceMetricSourceType, "resource", m.Resource != nil,
			func(at *field.Path) field.ErrorList { return validateResource(m.Resource, at) }},
		{autoscalingv2.ContainerResourceMetricSourceType, "containerResource", m.ContainerResource != nil,
			func(at *field.Path) field.ErrorList { return validateContainerResource(m.ContainerResource, at) }},
	}
}

// validateMetric checks that a metric has the one source of its type. Of several sources the first
// one is validated.
func (c metricChecker) validateMetric(m *autoscalingv2.MetricSpec, at *field.Path) field.ErrorList {
	const only = "must populate the given metric source only"
	var errs field.ErrorList
	if m.Type == "" {
		errs = append(errs, field.Required(at.Child("type"), "must specify a metric source type"))
	}
	known, set := false, 0
	for _, s := range c.sources(m) {
		if s.set {
			if set++; set == 1 {
				errs = append(errs, s.check(at.Child(s.name))...)
			}
		}
		if s.of != m.Type {
			continue
		}
		known = true
		if !s.set {
			errs = append(errs,
				field.Required(at.Child(s.name), "must populate information for the given metric source"))
		}
	}
	if !known {
		errs = append(errs, field.NotSupported(at.Child("type"), m.Type, []autoscalingv2.MetricSourceType{
			autoscalingv2.ContainerResourceMetricSourceType, autoscalingv2.ExternalMetricSourceType,
			autoscalingv2.ObjectMetricSourceType,
			autoscalingv2.PodsMetricSourceType, autoscalingv2.ResourceMetricSourceType,
		}))
	}
	if set > 1 {
		for _, s := range c.sources(m) {
			if s.set && s.of != m.Type {
				errs = append(errs, field.Forbidden(at.Child(s.name), only))
			}
		}
	}
	return errs
}

func (c metricChecker) validateObject(m *autoscalingv2.ObjectMetricSource, at *field.Path) field.ErrorList {
	object := at.Child("describedObject")
	errs := validateReference(&m.DescribedObject, object)
	if err := checkVersion(&m.DescribedObject, false); err != nil && !c.keepVersions {
		errs = append(errs, field.Invalid(object.Child("apiVersion"), m.DescribedObject.APIVersion, err.Error()))
	}
	errs = append(errs, validateIdentifier(&m.Metric, at.Child("metric"))...)
	errs = append(errs, validateTarget(&m.Target, at.Child("target"))...)
	if m.Target.Value == nil && m.Target.AverageValue == nil {
		errs = append(errs,
			field.Required(at.Child("target", "averageValue"), "must set either a target value or averageValue"))
	}
	return errs
}

func validateExternal(m *autoscalingv2.ExternalMetricSource, at *field.Path) field.ErrorList {
	errs := validateIdentifier(&m.Metric, at.Child("metric"))
	errs = append(errs, validateTarget(&m.Target, at.Child("target"))...)
	switch whole, average := m.Target.Value != nil, m.Target.AverageValue != nil; {
	case !whole && !average:
		errs = append(errs,
			field.Required(at.Child("target", "averageValue"),
				"must set either a target value for metric or a per-pod target"))
	case whole && average:
		errs = append(errs,
			field.Forbidden(at.Child("target", "value"),
				"may not set both a target value for metric and a per-pod target"))
	}
	return errs
}

func validatePods(m *autoscalingv2.PodsMetricSource, at *field.Path) field.ErrorList {
	errs := validateIdentifier(&m.Metric, at.Child("metric"))
	errs = append(errs, validateTarget(&m.Target, at.Child("target"))...)
	if m.Target.AverageValue == nil {
		errs = append(errs,
			field.Required(at.Child("target", "averageValue"), "must specify a positive target averageValue"))
	}
	return errs
}

func validateResource(m *autoscalingv2.ResourceMetricSource, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if m.Name == "" {
		errs = append(errs, field.Required(at.Child("name"), "must specify a resource name"))
	}
	return append(errs, validateUsage(&m.Target, at.Child("target"))...)
}

func validateContainerResource(m *autoscalingv2.ContainerResourceMetricSource, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if m.Name == "" {
		errs = append(errs, field.Required(at.Child("name"), "must specify a resource name"))
	} else {
		errs = append(errs, validation.ContainerResourceName(m.Name, at.Child("name"))...)
	}
	if m.Container == "" {
		errs = append(errs, field.Required(at.Child("container"), "must specify a container"))
	} else {
		errs = append(errs, validation.DNSLabel(m.Container, at.Child("container"))...)
	}
	return append(errs, validateUsage(&m.Target, at.Child("target"))...)
}

// validateUsage checks the target of a resource: an amount, or a share of the requests.
func validateUsage(t *autoscalingv2.MetricTarget, at *field.Path) field.ErrorList {
	errs := validateTarget(t, at)
	switch share, amount := t.AverageUtilization != nil, t.AverageValue != nil; {
	case !share && !amount:
		errs = append(errs,
			field.Required(at.Child("averageUtilization"),
				"must set either a target raw value or a target utilization"))
	case share && amount:
		errs = append(errs,
			field.Forbidden(at.Child("averageValue"), "may not set both a target raw value and a target utilization"))
	}
	return errs
}

func validateTarget(t *autoscalingv2.MetricTarget, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if t.Type == "" {
		errs = append(errs, field.Required(at.Child("type"), "must specify a metric target type"))
	}
	switch t.Type {
	case autoscalingv2.UtilizationMetricType, autoscalingv2.ValueMetricType, autoscalingv2.AverageValueMetricType:
	default:
		errs = append(errs,
			field.Invalid(at.Child("type"), t.Type, "must be either Utilization, Value, or AverageValue"))
	}
	if v := t.Value; v != nil && v.Sign() <= 0 {
		errs = append(errs, field.Invalid(at.Child("value"), v.String(), "must be positive"))
	}
	if v := t.AverageValue; v != nil && v.Sign() <= 0 {
		errs = append(errs, field.Invalid(at.Child("averageValue"), v.String(), "must be positive"))
	}
	if n := t.AverageUtilization; n != nil && *n < 1 {
		errs = append(errs, field.Invalid(at.Child("averageUtilization"), *n, "must be greater than 0"))
	}
	return errs
}

func validateIdentifier(m *autoscalingv2.MetricIdentifier, at *field.Path) field.ErrorList {
	if m.Name == "" {
		return field.ErrorList{field.Required(at.Child("name"), "must specify a metric name")}
	}
	return validation.PathSegment(m.Name, at.Child("name"))
}
