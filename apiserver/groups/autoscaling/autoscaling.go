// Package autoscaling declares the resources of the autoscaling API group: horizontal pod
// autoscalers, stored as autoscaling/v2 and served as autoscaling/v1 too.
//
// It owns their defaults, validation and printing, and the conversion to v1: one target of CPU
// utilization has a field there, everything else is in annotations that round-trip.
package autoscaling

import (
	"fmt"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/resource"
)

// Resources declares the group's resources.
func Resources() []resource.Resource { return []resource.Resource{podAutoscalers()} }

func podAutoscalers() resource.Resource {
	return &resource.Kind[autoscalingv2.HorizontalPodAutoscaler]{
		GroupVersion: autoscalingv2.SchemeGroupVersion,
		Name:         "horizontalpodautoscalers",
		Singular:     "horizontalpodautoscaler",
		ShortNames:   []string{"hpa"},
		Categories:   []string{"all"},
		List:         &autoscalingv2.HorizontalPodAutoscalerList{},
		Aliases: []resource.Alias{
			resource.AliasOf(autoscalingv1.SchemeGroupVersion, &autoscalingv1.HorizontalPodAutoscalerList{}, fromV1,
				toV1, nil),
		},
		Default:    defaultAutoscaler,
		Validate:   validateAutoscaler,
		Generation: true,
		Status:     &resource.Status[autoscalingv2.HorizontalPodAutoscaler]{Validate: validateAutoscalerStatus},
		Columns: []metav1.TableColumnDefinition{
			resource.Name(),
			resource.Column("Reference", "string", "What is scaled."),
			resource.Column("Targets", "string", "Current and target values of the metrics."),
			resource.Column("MinPods", "string", "The least number of pods."),
			resource.Column("MaxPods", "integer", "The greatest number of pods."),
			resource.Column("Replicas", "integer", "How many pods there are."),
			resource.Age(),
		},
		Row: autoscalerRow,
	}
}

func autoscalerRow(a *autoscalingv2.HorizontalPodAutoscaler, now time.Time) []any {
	least := "<unset>"
	if a.Spec.MinReplicas != nil {
		least = fmt.Sprint(*a.Spec.MinReplicas)
	}
	return []any{
		a.Name,
		a.Spec.ScaleTargetRef.Kind + "/" + a.Spec.ScaleTargetRef.Name,
		formatMetrics(a.Spec.Metrics, a.Status.CurrentMetrics),
		least,
		int64(a.Spec.MaxReplicas),
		int64(a.Status.CurrentReplicas),
		resource.Since(a.CreationTimestamp, now),
	}
}

func defaultAutoscaler(a *autoscalingv2.HorizontalPodAutoscaler) {
	defaultTarget(&a.Spec)
	if b := a.Spec.Behavior; b != nil {
		defaultRules(&b.ScaleUp, autoscalingv2.HPAScalingRules{
			StabilizationWindowSeconds: ptr.To[int32](0),
			Policies: []autoscalingv2.HPAScalingPolicy{
				{Type: autoscalingv2.PodsScalingPolicy, Value: 4, PeriodSeconds: 15},
				{Type: autoscalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: 15},
			},
		})
		// The default time that a scale-down waits is an option of the controller.
		defaultRules(&b.ScaleDown, autoscalingv2.HPAScalingRules{
			Policies: []autoscalingv2.HPAScalingPolicy{
				{Type: autoscalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: 15},
			},
		})
	}
}

// defaultTarget sets the default targets of scaling.
func defaultTarget(spec *autoscalingv2.HorizontalPodAutoscalerSpec) {
	if spec.MinReplicas == nil {
		spec.MinReplicas = ptr.To[int32](1)
	}
	if len(spec.Metrics) == 0 {
		spec.Metrics = []autoscalingv2.MetricSpec{cpuUtilization(80)}
	}
}

// cpuUtilization is the one metric that autoscaling/v1 has a field for.
func cpuUtilization(percent int32) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{
		Type: autoscalingv2.ResourceMetricSourceType,
		Resource: &autoscalingv2.ResourceMetricSource{
			Name:   corev1.ResourceCPU,
			Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: &percent},
		},
	}
}

func defaultRules(rules **autoscalingv2.HPAScalingRules, missing autoscalingv2.HPAScalingRules) {
	if *rules == nil {
		*rules = &autoscalingv2.HPAScalingRules{}
	}
	r := *rules
	if r.StabilizationWindowSeconds == nil {
		r.StabilizationWindowSeconds = missing.StabilizationWindowSeconds
	}
	if r.SelectPolicy == nil {
		r.SelectPolicy = ptr.To(autoscalingv2.MaxChangePolicySelect)
	}
	if r.Policies == nil {
		r.Policies = missing.Policies
	}
}
