package autoscaling

import (
	"encoding/json"
	"maps"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// annotationPrefix begins the names of the annotations of autoscaling/v1 for values that have no
// field there. They exist on the wire of v1 only.
const annotationPrefix = "autoscaling.alpha.kubernetes.io/"

const (
	// []autoscalingv1.MetricSpec, without that of CPU utilization
	metricsAnnotation        = annotationPrefix + "metrics"
	currentMetricsAnnotation = annotationPrefix + "current-metrics" // []autoscalingv1.MetricStatus
	conditionsAnnotation     = annotationPrefix + "conditions"      // []autoscalingv1.HorizontalPodAutoscalerCondition
	behaviorAnnotation       = annotationPrefix + "behavior"        // wireBehavior
)

// dropAnnotations returns the annotations without those of the conversion.
func dropAnnotations(annotations map[string]string) map[string]string {
	var kept map[string]string
	for _, name := range []string{"metrics", "current-metrics", "conditions", "behavior", "scale-down-tolerance",
		"scale-up-tolerance"} {
		if _, has := annotations[annotationPrefix+name]; !has {
			continue
		}
		if kept == nil {
			kept = maps.Clone(annotations)
		}
		delete(kept, annotationPrefix+name)
	}
	if kept == nil {
		return annotations
	}
	return kept
}

// isCPUUtilization reports whether a metric is the one that v1 has a field for.
func isCPUUtilization(m *autoscalingv2.MetricSpec) bool {
	return m.Type == autoscalingv2.ResourceMetricSourceType && m.Resource != nil &&
		m.Resource.Name == corev1.ResourceCPU && m.Resource.Target.AverageUtilization != nil
}

// toV1 shows an autoscaler as autoscaling/v1.
func toV1(in *autoscalingv2.HorizontalPodAutoscaler, out *autoscalingv1.HorizontalPodAutoscaler) error {
	out.TypeMeta, out.ObjectMeta = in.TypeMeta, in.ObjectMeta
	out.Spec.ScaleTargetRef = autoscalingv1.CrossVersionObjectReference(in.Spec.ScaleTargetRef)
	out.Spec.MinReplicas, out.Spec.MaxReplicas = in.Spec.MinReplicas, in.Spec.MaxReplicas
	out.Status.ObservedGeneration, out.Status.LastScaleTime = in.Status.ObservedGeneration, in.Status.LastScaleTime
	out.Status.CurrentReplicas, out.Status.DesiredReplicas = in.Status.CurrentReplicas, in.Status.DesiredReplicas

	notes := annotations{}
	var others []autoscalingv1.MetricSpec
	for i := range in.Spec.Metrics {
		m := &in.Spec.Metrics[i]
		if !isCPUUtilization(m) {
			others = append(others, metricToV1(m))
		} else if out.Spec.TargetCPUUtilizationPercentage == nil {
			out.Spec.TargetCPUUtilizationPercentage = m.Resource.Target.AverageUtilization
		}
	}
	if len(others) > 0 {
		notes.put(metricsAnnotation, others)
	}
	if in.Spec.Behavior != nil {
		notes.put(behaviorAnnotation,
			wireBehavior{newWireRules(in.Spec.Behavior.ScaleUp), newWireRules(in.Spec.Behavior.ScaleDown)})
	}

	var current []autoscalingv1.MetricStatus
	for i := range in.Status.CurrentMetrics {
		m := &in.Status.CurrentMetrics[i]
		current = append(current, statusToV1(m))
		if r := m.Resource; m.Type == autoscalingv2.ResourceMetricSourceType && r != nil &&
			r.Name == corev1.ResourceCPU && r.Current.AverageUtilization != nil {
			out.Status.CurrentCPUUtilizationPercentage = r.Current.AverageUtilization
		}
	}
	if len(current) > 0 {
		notes.put(currentMetricsAnnotation, current)
	}
	if len(in.Status.Conditions) > 0 {
		notes.put(conditionsAnnotation, conditionsToV1(in.Status.Conditions))
	}
	out.Annotations = notes.over(dropAnnotations(in.Annotations))
	return notes.err
}

// annotations are gathered for an object.
type annotations struct {
	set map[string]string
	err error
}

func (a *annotations) put(name string, value any) {
	text, err := json.Marshal(value)
	if err != nil {
		a.err = err
		return
	}
	if a.set == nil {
		a.set = map[string]string{}
	}
	a.set[name] = string(text)
}

// over returns the base with the gathered ones, and leaves the base as it is.
func (a *annotations) over(base map[string]string) map[string]string {
	if a.set == nil {
		return base
	}
	maps.Copy(a.set, base)
	return a.set
}

// fromV1 reads an autoscaler of autoscaling/v1. Annotations that cannot be read are dropped, as if
// they were not there.
func fromV1(in *autoscalingv1.HorizontalPodAutoscaler, out *autoscalingv2.HorizontalPodAutoscaler) error {
	out.TypeMeta, out.ObjectMeta = in.TypeMeta, in.ObjectMeta
	out.Annotations = dropAnnotations(in.Annotations)
	out.Spec.ScaleTargetRef = autoscalingv2.CrossVersionObjectReference(in.Spec.ScaleTargetRef)
	out.Spec.MinReplicas, out.Spec.MaxReplicas = in.Spec.MinReplicas, in.Spec.MaxReplicas
	out.Status.ObservedGeneration, out.Status.LastScaleTime = in.Status.ObservedGeneration, in.Status.LastScaleTime
	out.Status.CurrentReplicas, out.Status.DesiredReplicas = in.Status.CurrentReplicas, in.Status.DesiredReplicas

	out.Spec.Metrics = nil
	if others, ok := read[[]autoscalingv1.MetricSpec](in.Annotations, metricsAnnotation); ok {
		for i := range others {
			out.Spec.Metrics = append(out.Spec.Metrics, metricFromV1(&others[i]))
		}
	}
	if target := in.Spec.TargetCPUUtilizationPercentage; target != nil {
		out.Spec.Metrics = append(out.Spec.Metrics, cpuUtilization(*target))
	}
	// Defaults are applied to the whole, with the values of the annotations.
	defaultTarget(&out.Spec)
	out.Spec.Behavior = nil
	if b, ok := read[autoscalingv2.HorizontalPodAutoscalerBehavior](in.Annotations, behaviorAnnotation); ok &&
		b != (autoscalingv2.HorizontalPodAutoscalerBehavior{}) {
		out.Spec.Behavior = &b
	}

	out.Status.CurrentMetrics = nil
	if current, ok := read[[]autoscalingv1.MetricStatus](in.Annotations, currentMetricsAnnotation); ok {
		for i := range current {
			out.Status.CurrentMetrics = append(out.Status.CurrentMetrics, statusFromV1(&current[i]))
		}
	} else if now := in.Status.CurrentCPUUtilizationPercentage; now != nil {
		out.Status.CurrentMetrics = []autoscalingv2.MetricStatus{{
			Type: autoscalingv2.ResourceMetricSourceType,
			Resource: &autoscalingv2.ResourceMetricStatus{Name: corev1.ResourceCPU,
				Current: autoscalingv2.MetricValueStatus{AverageUtilization: now}},
		}}
	}
	conditions, _ := read[[]autoscalingv1.HorizontalPodAutoscalerCondition](in.Annotations, conditionsAnnotation)
	out.Status.Conditions = conditionsFromV1(conditions)
	return nil
}

// read decodes an annotation, if it is there and well-formed.
func read[T any](annotations map[string]string, name string) (T, bool) {
	var value T
	text, ok := annotations[name]
	if !ok || json.Unmarshal([]byte(text), &value) != nil {
		var zero T
		return zero, false
	}
	return value, true
}

// wireBehavior is the behavior as the annotation spells it: by the names of Go's fields, since
// before it had a field in any version. Reading does not mind the case.
type wireBehavior struct{ ScaleUp, ScaleDown *wireRules }

type wireRules struct {
	StabilizationWindowSeconds *int32
	SelectPolicy               *autoscalingv2.ScalingPolicySelect
	Policies                   []wirePolicy
	Tolerance                  *resource.Quantity
}

type wirePolicy struct {
	Type          autoscalingv2.HPAScalingPolicyType
	Value         int32
	PeriodSeconds int32
}

func newWireRules(rules *autoscalingv2.HPAScalingRules) *wireRules {
	if rules == nil {
		return nil
	}
	w := &wireRules{StabilizationWindowSeconds: rules.StabilizationWindowSeconds, SelectPolicy: rules.SelectPolicy,
		Tolerance: rules.Tolerance}
	for _, p := range rules.Policies {
		w.Policies = append(w.Policies, wirePolicy(p))
	}
	return w
}

func conditionsToV1(
	in []autoscalingv2.HorizontalPodAutoscalerCondition,
) []autoscalingv1.HorizontalPodAutoscalerCondition {
	var out []autoscalingv1.HorizontalPodAutoscalerCondition
	for _, c := range in {
		out = append(out, autoscalingv1.HorizontalPodAutoscalerCondition{
			Type:               autoscalingv1.HorizontalPodAutoscalerConditionType(c.Type),
			Status:             c.Status,
			LastTransitionTime: c.LastTransitionTime,
			Reason:             c.Reason,
			Message:            c.Message,
			ObservedGeneration: c.ObservedGeneration,
		})
	}
	return out
}

func conditionsFromV1(
	in []autoscalingv1.HorizontalPodAutoscalerCondition,
) []autoscalingv2.HorizontalPodAutoscalerCondition {
	var out []autoscalingv2.HorizontalPodAutoscalerCondition
	for _, c := range in {
		out = append(out, autoscalingv2.HorizontalPodAutoscalerCondition{
			Type:               autoscalingv2.HorizontalPodAutoscalerConditionType(c.Type),
			Status:             c.Status,
			LastTransitionTime: c.LastTransitionTime,
			Reason:             c.Reason,
			Message:            c.Message,
			ObservedGeneration: c.ObservedGeneration,
		})
	}
	return out
}
