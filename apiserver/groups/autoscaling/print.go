package autoscaling

import (
	"fmt"
	"strings"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/resource"
)

// unknown is shown for a current value that has not been reported.
const unknown = "<unknown>"

// shownMetrics is how many metrics fit into a table.
const shownMetrics = 2

// formatMetrics shows the current and the target value of each metric. The statuses are in the
// order of the metrics.
func formatMetrics(specs []autoscalingv2.MetricSpec, statuses []autoscalingv2.MetricStatus) string {
	if len(specs) == 0 {
		return "<none>"
	}
	var shown []string
	for i := range specs[:min(len(specs), shownMetrics)] {
		status := autoscalingv2.MetricStatus{}
		if i < len(statuses) {
			status = statuses[i]
		}
		shown = append(shown, formatMetric(&specs[i], &status))
	}
	text := strings.Join(shown, ", ")
	if more := len(specs) - shownMetrics; more > 0 {
		return fmt.Sprintf("%s + %d more...", text, more)
	}
	return text
}

func formatMetric(spec *autoscalingv2.MetricSpec, status *autoscalingv2.MetricStatus) string {
	current := currentValue(status, spec.Type)
	switch {
	case spec.Type == autoscalingv2.ExternalMetricSourceType && spec.External != nil:
		return formatValue(&spec.External.Target, current)
	case spec.Type == autoscalingv2.ObjectMetricSourceType && spec.Object != nil:
		return formatValue(&spec.Object.Target, current)
	case spec.Type == autoscalingv2.PodsMetricSourceType && spec.Pods != nil:
		return quantity(current.AverageValue) + "/" + quantity(spec.Pods.Target.AverageValue)
	case spec.Type == autoscalingv2.ResourceMetricSourceType && spec.Resource != nil:
		return string(spec.Resource.Name) + ": " + formatUsage(&spec.Resource.Target, current)
	case spec.Type == autoscalingv2.ContainerResourceMetricSourceType && spec.ContainerResource != nil:
		return string(spec.ContainerResource.Name) + ": " + formatUsage(&spec.ContainerResource.Target, current)
	}
	return "<unknown type>"
}

// currentValue is the status's value of a metric of some type; nothing if it is of another one.
func currentValue(
	status *autoscalingv2.MetricStatus, of autoscalingv2.MetricSourceType,
) autoscalingv2.MetricValueStatus {
	switch {
	case of == autoscalingv2.ExternalMetricSourceType && status.External != nil:
		return status.External.Current
	case of == autoscalingv2.ObjectMetricSourceType && status.Object != nil:
		return status.Object.Current
	case of == autoscalingv2.PodsMetricSourceType && status.Pods != nil:
		return status.Pods.Current
	case of == autoscalingv2.ResourceMetricSourceType && status.Resource != nil:
		return status.Resource.Current
	case of == autoscalingv2.ContainerResourceMetricSourceType && status.ContainerResource != nil:
		return status.ContainerResource.Current
	}
	return autoscalingv2.MetricValueStatus{}
}

// formatValue shows a metric that has a value as a whole or an average over the pods.
func formatValue(target *autoscalingv2.MetricTarget, current autoscalingv2.MetricValueStatus) string {
	if target.AverageValue != nil {
		return quantity(current.AverageValue) + "/" + quantity(target.AverageValue) + " (avg)"
	}
	return quantity(current.Value) + "/" + quantity(target.Value)
}

// formatUsage shows a resource, as an amount or as a share of the requests.
func formatUsage(target *autoscalingv2.MetricTarget, current autoscalingv2.MetricValueStatus) string {
	if target.AverageValue != nil {
		return quantity(current.AverageValue) + "/" + quantity(target.AverageValue)
	}
	return percent(current.AverageUtilization, unknown) + "/" + percent(target.AverageUtilization, "<auto>")
}

func quantity(q *resource.Quantity) string {
	if q == nil {
		return unknown
	}
	return q.String()
}

func percent(n *int32, missing string) string {
	if n == nil {
		return missing
	}
	return fmt.Sprintf("%d%%", *n)
}
