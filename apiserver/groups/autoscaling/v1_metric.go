package autoscaling

import (
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

// The metrics of v1 show the type of a target by which of its fields is set. A field that must have
// a value there has 0 for none.

func metricToV1(in *autoscalingv2.MetricSpec) autoscalingv1.MetricSpec {
	out := autoscalingv1.MetricSpec{Type: autoscalingv1.MetricSourceType(in.Type)}
	if m := in.Object; m != nil {
		out.Object = &autoscalingv1.ObjectMetricSource{
			Target:       autoscalingv1.CrossVersionObjectReference(m.DescribedObject),
			MetricName:   m.Metric.Name,
			Selector:     m.Metric.Selector,
			TargetValue:  ptr.Deref(m.Target.Value, resource.Quantity{}),
			AverageValue: m.Target.AverageValue,
		}
	}
	if m := in.Pods; m != nil {
		out.Pods = &autoscalingv1.PodsMetricSource{
			MetricName:         m.Metric.Name,
			Selector:           m.Metric.Selector,
			TargetAverageValue: ptr.Deref(m.Target.AverageValue, resource.Quantity{}),
		}
	}
	if m := in.Resource; m != nil {
		out.Resource = &autoscalingv1.ResourceMetricSource{
			Name:                     m.Name,
			TargetAverageUtilization: m.Target.AverageUtilization,
			TargetAverageValue:       m.Target.AverageValue,
		}
	}
	if m := in.ContainerResource; m != nil {
		out.ContainerResource = &autoscalingv1.ContainerResourceMetricSource{
			Name:                     m.Name,
			Container:                m.Container,
			TargetAverageUtilization: m.Target.AverageUtilization,
			TargetAverageValue:       m.Target.AverageValue,
		}
	}
	if m := in.External; m != nil {
		out.External = &autoscalingv1.ExternalMetricSource{
			MetricName:         m.Metric.Name,
			MetricSelector:     m.Metric.Selector,
			TargetValue:        m.Target.Value,
			TargetAverageValue: m.Target.AverageValue,
		}
	}
	return out
}

func metricFromV1(in *autoscalingv1.MetricSpec) autoscalingv2.MetricSpec {
	out := autoscalingv2.MetricSpec{Type: autoscalingv2.MetricSourceType(in.Type)}
	if m := in.Object; m != nil {
		out.Object = &autoscalingv2.ObjectMetricSource{
			DescribedObject: autoscalingv2.CrossVersionObjectReference(m.Target),
			Metric:          autoscalingv2.MetricIdentifier{Name: m.MetricName, Selector: m.Selector},
			Target:          autoscalingv2.MetricTarget{Type: autoscalingv2.ValueMetricType, Value: &m.TargetValue},
		}
		if m.AverageValue != nil {
			out.Object.Target = autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType,
				AverageValue: m.AverageValue}
			if !m.TargetValue.IsZero() {
				out.Object.Target.Value = &m.TargetValue
			}
		}
	}
	if m := in.Pods; m != nil {
		out.Pods = &autoscalingv2.PodsMetricSource{
			Metric: autoscalingv2.MetricIdentifier{Name: m.MetricName, Selector: m.Selector},
			Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType,
				AverageValue: &m.TargetAverageValue},
		}
	}
	if m := in.Resource; m != nil {
		out.Resource = &autoscalingv2.ResourceMetricSource{Name: m.Name,
			Target: usageFromV1(m.TargetAverageUtilization, m.TargetAverageValue)}
	}
	if m := in.ContainerResource; m != nil {
		out.ContainerResource = &autoscalingv2.ContainerResourceMetricSource{
			Name:      m.Name,
			Container: m.Container,
			Target:    usageFromV1(m.TargetAverageUtilization, m.TargetAverageValue),
		}
	}
	if m := in.External; m != nil {
		out.External = &autoscalingv2.ExternalMetricSource{
			Metric: autoscalingv2.MetricIdentifier{Name: m.MetricName, Selector: m.MetricSelector},
			Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, Value: m.TargetValue,
				AverageValue: m.TargetAverageValue},
		}
		if m.TargetValue != nil {
			out.External.Target.Type = autoscalingv2.ValueMetricType
		}
	}
	return out
}

func usageFromV1(utilization *int32, amount *resource.Quantity) autoscalingv2.MetricTarget {
	t := autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageUtilization: utilization,
		AverageValue: amount}
	if utilization != nil {
		t.Type = autoscalingv2.UtilizationMetricType
	}
	return t
}

func statusToV1(in *autoscalingv2.MetricStatus) autoscalingv1.MetricStatus {
	out := autoscalingv1.MetricStatus{Type: autoscalingv1.MetricSourceType(in.Type)}
	if m := in.Object; m != nil {
		out.Object = &autoscalingv1.ObjectMetricStatus{
			Target:       autoscalingv1.CrossVersionObjectReference(m.DescribedObject),
			MetricName:   m.Metric.Name,
			Selector:     m.Metric.Selector,
			CurrentValue: ptr.Deref(m.Current.Value, resource.Quantity{}),
			AverageValue: m.Current.AverageValue,
		}
	}
	if m := in.Pods; m != nil {
		out.Pods = &autoscalingv1.PodsMetricStatus{
			MetricName:          m.Metric.Name,
			Selector:            m.Metric.Selector,
			CurrentAverageValue: ptr.Deref(m.Current.AverageValue, resource.Quantity{}),
		}
	}
	if m := in.Resource; m != nil {
		out.Resource = &autoscalingv1.ResourceMetricStatus{
			Name:                      m.Name,
			CurrentAverageUtilization: m.Current.AverageUtilization,
			CurrentAverageValue:       ptr.Deref(m.Current.AverageValue, resource.Quantity{}),
		}
	}
	if m := in.ContainerResource; m != nil {
		out.ContainerResource = &autoscalingv1.ContainerResourceMetricStatus{
			Name:                      m.Name,
			Container:                 m.Container,
			CurrentAverageUtilization: m.Current.AverageUtilization,
			CurrentAverageValue:       ptr.Deref(m.Current.AverageValue, resource.Quantity{}),
		}
	}
	if m := in.External; m != nil {
		out.External = &autoscalingv1.ExternalMetricStatus{
			MetricName:          m.Metric.Name,
			MetricSelector:      m.Metric.Selector,
			CurrentValue:        ptr.Deref(m.Current.Value, resource.Quantity{}),
			CurrentAverageValue: m.Current.AverageValue,
		}
	}
	return out
}

func statusFromV1(in *autoscalingv1.MetricStatus) autoscalingv2.MetricStatus {
	out := autoscalingv2.MetricStatus{Type: autoscalingv2.MetricSourceType(in.Type)}
	if m := in.Object; m != nil {
		out.Object = &autoscalingv2.ObjectMetricStatus{
			DescribedObject: autoscalingv2.CrossVersionObjectReference(m.Target),
			Metric:          autoscalingv2.MetricIdentifier{Name: m.MetricName, Selector: m.Selector},
			Current:         autoscalingv2.MetricValueStatus{Value: &m.CurrentValue, AverageValue: m.AverageValue},
		}
	}
	if m := in.Pods; m != nil {
		out.Pods = &autoscalingv2.PodsMetricStatus{
			Metric:  autoscalingv2.MetricIdentifier{Name: m.MetricName, Selector: m.Selector},
			Current: autoscalingv2.MetricValueStatus{AverageValue: &m.CurrentAverageValue},
		}
	}
	if m := in.Resource; m != nil {
		out.Resource = &autoscalingv2.ResourceMetricStatus{
			Name: m.Name,
			Current: autoscalingv2.MetricValueStatus{AverageUtilization: m.CurrentAverageUtilization,
				AverageValue: &m.CurrentAverageValue},
		}
	}
	if m := in.ContainerResource; m != nil {
		out.ContainerResource = &autoscalingv2.ContainerResourceMetricStatus{
			Name:      m.Name,
			Container: m.Container,
			Current: autoscalingv2.MetricValueStatus{AverageUtilization: m.CurrentAverageUtilization,
				AverageValue: &m.CurrentAverageValue},
		}
	}
	if m := in.External; m != nil {
		out.External = &autoscalingv2.ExternalMetricStatus{
			Metric:  autoscalingv2.MetricIdentifier{Name: m.MetricName, Selector: m.MetricSelector},
			Current: autoscalingv2.MetricValueStatus{Value: &m.CurrentValue, AverageValue: m.CurrentAverageValue},
		}
	}
	return out
}
