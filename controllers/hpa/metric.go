package hpa

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/barque/barque/controllers/pods"
)

// sample is a metric's value of one pod, in thousandths.
type sample struct {
	value  int64
	at     time.Time
	window time.Duration // before at
}

// reading has the samples of one metric of the spec.
type reading struct {
	samples map[string]sample // by pod: Resource, ContainerResource and Pods
	values  []int64           // in thousandths: one of Object, any number of External
	err     error
}

// proposal is the result of one metric.
type proposal struct {
	replicas int32
	name     string // of the metric, for humans
	status   autoscalingv2.MetricStatus
}

// metricError is why a metric proposes nothing.
type metricError struct {
	reason string // of the condition and the event
	cause  error  // their message
	what   string // failed
}

func (e *metricError) Error() string { return fmt.Sprintf("failed to get %s: %v", e.what, e.cause) }

func (e *metricError) Unwrap() error { return e.cause }

// tolerance is by how much the ratio of usage and target may differ from 1, each way.
type tolerance struct{ down, up float64 }

func (t tolerance) holds(ratio float64) bool { return 1-t.down <= ratio && ratio <= 1+t.up }

// calculation is the common input of all metrics of one evaluation.
type calculation struct {
	Settings
	tolerance tolerance
	pods      []*corev1.Pod
	current   int32 // replicas that the target wants
	counted   int32 // replicas that it has by its status
	now       time.Time
}

func (s Settings) calculation(o observed, now time.Time) calculation {
	c := calculation{
		Settings: s, tolerance: tolerance{s.Tolerance, s.Tolerance},
		pods: o.pods, current: o.target.Spec.Replicas, counted: o.target.Status.Replicas, now: now,
	}
	if b := o.hpa.Spec.Behavior; b != nil {
		if b.ScaleDown != nil && b.ScaleDown.Tolerance != nil {
			c.tolerance.down = b.ScaleDown.Tolerance.AsApproximateFloat64()
		}
		if b.ScaleUp != nil && b.ScaleUp.Tolerance != nil {
			c.tolerance.up = b.ScaleUp.Tolerance.AsApproximateFloat64()
		}
	}
	return c
}

// metric computes the proposal of one metric.
func (c calculation) metric(spec *autoscalingv2.MetricSpec, r reading) (proposal, *metricError) {
	var p proposal
	var err error
	var reason, what string
	switch spec.Type {
	case autoscalingv2.ResourceMetricSourceType:
		m := spec.Resource
		reason, what = "FailedGetResourceMetric", fmt.Sprintf("%s resource metric value", m.Name)
		var value autoscalingv2.MetricValueStatus
		p, value, err = c.ofResource(m.Name, "", m.Target, r)
		p.status.Resource = &autoscalingv2.ResourceMetricStatus{Name: m.Name, Current: value}
	case autoscalingv2.ContainerResourceMetricSourceType:
		m := spec.ContainerResource
		reason, what = "FailedGetContainerResourceMetric", fmt.Sprintf("%s container metric value", m.Container)
		var value autoscalingv2.MetricValueStatus
		p, value, err = c.ofResource(m.Name, m.Container, m.Target, r)
		p.status.ContainerResource = &autoscalingv2.ContainerResourceMetricStatus{Name: m.Name, Container: m.Container,
			Current: value}
	case autoscalingv2.PodsMetricSourceType:
		m := spec.Pods
		reason, what = "FailedGetPodsMetric", "pods metric value"
		p.name = "pods metric " + m.Metric.Name
		var value autoscalingv2.MetricValueStatus
		p.replicas, value, err = c.ofPods(m, r)
		p.status.Pods = &autoscalingv2.PodsMetricStatus{Metric: m.Metric, Current: value}
	case autoscalingv2.ObjectMetricSourceType:
		m := spec.Object
		reason, what = "FailedGetObjectMetric", "object metric value"
		p.name = fmt.Sprintf("%s metric %s", m.DescribedObject.Kind, m.Metric.Name)
		var value autoscalingv2.MetricValueStatus
		p.replicas, value, err = c.ofValues(m.Target, r)
		p.status.Object = &autoscalingv2.ObjectMetricStatus{DescribedObject: m.DescribedObject, Metric: m.Metric,
			Current: value}
	case autoscalingv2.ExternalMetricSourceType:
		m := spec.External
		reason, what = "FailedGetExternalMetric", fmt.Sprintf("%s external metric value", m.Metric.Name)
		p.name = fmt.Sprintf("external metric %s(%+v)", m.Metric.Name, m.Metric.Selector)
		var value autoscalingv2.MetricValueStatus
		p.replicas, value, err = c.ofValues(m.Target, r)
		p.status.External = &autoscalingv2.ExternalMetricStatus{Metric: m.Metric, Current: value}
	default: // the API server lets none of them in
		reason, what = "InvalidMetricSourceType", "metric value"
		err = fmt.Errorf("unknown metric source type %q", spec.Type)
	}
	if err != nil {
		return proposal{}, &metricError{reason, err, what}
	}
	p.status.Type = spec.Type
	return p, nil
}

// ofResource computes the proposal for the pods' usage of a resource, or that of one container of
// each. The usage is absolute, or a share of the requests.
func (c calculation) ofResource(
	name corev1.ResourceName, container string, target autoscalingv2.MetricTarget, r reading,
) (p proposal, value autoscalingv2.MetricValueStatus, err error) {
	quantity := func(milli int64) *resource.Quantity {
		if name == corev1.ResourceMemory {
			return resource.NewMilliQuantity(milli, resource.BinarySI)
		}
		return resource.NewMilliQuantity(milli, resource.DecimalSI)
	}
	failed := func(what string, err error) error { return fmt.Errorf("failed to get %s %s: %w", name, what, err) }
	switch {
	case target.AverageValue != nil:
		p.name = fmt.Sprintf("%s resource", name)
		wanted := target.AverageValue.MilliValue()
		var mean int64
		p.replicas, mean, err = c.byMean(name, r, wanted, fmt.Sprintf("unable to get metrics for resource %s", name))
		if err != nil {
			return p, value, failed("usage", err)
		}
		value.AverageValue = quantity(mean)
	case target.AverageUtilization != nil:
		p.name = fmt.Sprintf("%s resource utilization (percentage of request)", name)
		if container != "" {
			p.name = fmt.Sprintf("%s container resource utilization (percentage of request)", name)
		}
		replicas, percent, mean, err := c.byUtilization(name, container, *target.AverageUtilization, r)
		if err != nil {
			return p, value, failed("utilization", err)
		}
		p.replicas = replicas
		value.AverageUtilization, value.AverageValue = &percent, quantity(mean)
	default:
		err = errors.New(
			"invalid resource metric source: neither an average utilization target nor an average value (usage) target was set")
	}
	return p, value, err
}

// ofPods goes by the mean of a metric over the pods.
func (c calculation) ofPods(
	m *autoscalingv2.PodsMetricSource, r reading,
) (replicas int32, value autoscalingv2.MetricValueStatus, err error) {
	if m.Target.AverageValue == nil {
		return 0, value, errors.New("invalid pods metric source: no average value target was set")
	}
	replicas, mean, err := c.byMean("", r, m.Target.AverageValue.MilliValue(), "unable to get metric "+m.Metric.Name)
	value.AverageValue = resource.NewMilliQuantity(mean, resource.DecimalSI)
	return replicas, value, err
}

// byMean computes replicas so that the mean over the pods becomes the target.
func (c calculation) byMean(
	name corev1.ResourceName, r reading, target int64, unread string,
) (replicas int32, mean int64, err error) {
	if r.err != nil {
		return 0, 0, fmt.Errorf("%s: %w", unread, r.err)
	}
	values, g, err := c.group(name, r.samples)
	if err != nil {
		return 0, 0, err
	}
	meanOf := func(values map[string]int64) int64 {
		var total int64
		for _, v := range values {
			total += v
		}
		return total / int64(len(values))
	}
	ratio := func(values map[string]int64) float64 { return float64(meanOf(values)) / float64(target) }
	return c.replicas(g, values, ratio, func(string) int64 { return target }), meanOf(values), nil
}

// byUtilization computes the replicas at which the pods use the target's percentage of their
// requests.
func (c calculation) byUtilization(
	name corev1.ResourceName, container string, target int32, r reading,
) (replicas, percent int32, mean int64, err error) {
	if r.err != nil {
		return 0, 0, 0, fmt.Errorf("unable to get metrics for resource %s: %w", name, r.err)
	}
	values, g, err := c.group(name, r.samples)
	if err != nil {
		return 0, 0, 0, err
	}
	requests, err := requestsOf(c.pods, container, name)
	if err != nil {
		return 0, 0, 0, err
	}
	percentOf := func(values map[string]int64) (percent, total, requested, n int64) {
		for pod, v := range values {
			if request, ok := requests[pod]; ok {
				total, requested, n = total+v, requested+request, n+1
			}
		}
		if requested == 0 {
			return 0, total, 0, n
		}
		return int64(float64(total) * 100 / float64(requested)), total, requested, n
	}
	now, total, requested, n := percentOf(values)
	if requested == 0 {
		return 0, 0, 0, errors.New("no metrics returned matched known pods")
	}
	ratio := func(values map[string]int64) float64 {
		percent, _, _, _ := percentOf(values)
		return float64(percent) / float64(target)
	}
	full := func(pod string) int64 { return requests[pod] * int64(max(100, target)) / 100 }
	return c.replicas(g, values, ratio, full), int32(min(now, math.MaxInt32)), total / n, nil
}

// groups are the pods by whether their samples count.
type groups struct {
	ready            int
	unready, missing []string
}

// group returns the values that count. Values of pods that end do not count, nor CPU usage of pods
// that are starting.
func (c calculation) group(name corev1.ResourceName, samples map[string]sample) (map[string]int64, groups, error) {
	if len(c.pods) == 0 {
		return nil, groups{}, errors.New("no pods returned by selector while calculating replica count")
	}
	values := make(map[string]int64, len(samples))
	for pod, s := range samples {
		values[pod] = s.value
	}
	var g groups
	for _, pod := range c.pods {
		s, measured := samples[pod.Name]
		switch {
		case pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodFailed:
			delete(values, pod.Name)
		case pod.Status.Phase == corev1.PodPending || measured && name == corev1.ResourceCPU && c.starting(pod, s):
			delete(values, pod.Name)
			g.unready = append(g.unready, pod.Name)
		case !measured:
			g.missing = append(g.missing, pod.Name)
		default:
			g.ready++
		}
	}
	if len(values) == 0 {
		return nil, g, errors.New("did not receive metrics for targeted pods (pods might be unready)")
	}
	return values, g, nil
}

// starting reports whether a pod's CPU usage may be that of its start.
func (c calculation) starting(pod *corev1.Pod, s sample) bool {
	ready := pods.Condition(pod, corev1.PodReady)
	if ready == nil || pod.Status.StartTime == nil {
		return true
	}
	began := pod.Status.StartTime.Time
	if began.Add(c.CPUInitialization).After(c.now) {
		return ready.Status == corev1.ConditionFalse || s.at.Before(ready.LastTransitionTime.Add(s.window))
	}
	return ready.Status == corev1.ConditionFalse &&
		began.Add(c.InitialReadinessDelay).After(ready.LastTransitionTime.Time)
}

// replicas computes the number of replicas that makes the ratio 1. A pod without a value is assumed
// to be idle when the number would rise, and fully used when it would fall. If that reverses the
// direction, nothing changes.
func (c calculation) replicas(
	g groups, values map[string]int64, ratio func(map[string]int64) float64, full func(pod string) int64,
) int32 {
	known := ratio(values)
	if len(g.missing) == 0 && (len(g.unready) == 0 || known <= 1) {
		if c.tolerance.holds(known) {
			return c.current
		}
		return ceil(known * float64(g.ready))
	}
	values = maps.Clone(values)
	for _, pod := range g.missing {
		if known < 1 {
			values[pod] = full(pod)
		} else if known > 1 {
			values[pod] = 0
		}
	}
	if known > 1 {
		for _, pod := range g.unready {
			values[pod] = 0
		}
	}
	careful := ratio(values)
	if c.tolerance.holds(careful) || (known < 1) != (careful < 1) || (known > 1) != (careful > 1) {
		return c.current
	}
	wanted := ceil(careful * float64(len(values)))
	if careful < 1 && wanted > c.current || careful > 1 && wanted < c.current {
		return c.current
	}
	return wanted
}

// ofValues goes by a metric of something else than the pods, in total or for each pod.
func (c calculation) ofValues(
	target autoscalingv2.MetricTarget, r reading,
) (replicas int32, value autoscalingv2.MetricValueStatus, err error) {
	if r.err != nil {
		return 0, value, r.err
	}
	usage := total(r.values)
	switch {
	case target.AverageValue != nil && target.Type != autoscalingv2.ValueMetricType:
		wanted := float64(target.AverageValue.MilliValue())
		replicas = c.counted
		if !c.tolerance.holds(float64(usage) / (wanted * float64(c.counted))) {
			replicas = ceil(float64(usage) / wanted)
		}
		mean := usage
		if c.counted > 0 && usage < math.MaxInt64 {
			mean = int64(math.Ceil(float64(usage) / float64(c.counted)))
		}
		value.AverageValue = resource.NewMilliQuantity(mean, resource.DecimalSI)
	case target.Value != nil:
		value.Value = resource.NewMilliQuantity(usage, resource.DecimalSI)
		replicas, err = c.byRatio(float64(usage) / float64(target.Value.MilliValue()))
	default:
		err = errors.New("neither a value target nor an average value target was set")
	}
	return replicas, value, err
}

// total adds values up, and stops at the largest number there is.
func total(values []int64) (sum int64) {
	for _, v := range values {
		if v > 0 && sum > math.MaxInt64-v {
			return math.MaxInt64
		}
		sum += v
	}
	return sum
}

// byRatio takes the ratio for that of the pods that are ready.
func (c calculation) byRatio(ratio float64) (int32, error) {
	if c.current == 0 {
		return ceil(ratio), nil
	}
	if c.tolerance.holds(ratio) {
		return c.current, nil
	}
	if len(c.pods) == 0 {
		return 0,
			errors.New("unable to calculate ready pods: no pods returned by selector while calculating replica count")
	}
	ready := 0
	for _, pod := range c.pods {
		if pod.Status.Phase == corev1.PodRunning && pods.Ready(pod) {
			ready++
		}
	}
	return ceil(ratio * float64(ready)), nil
}

// ceil rounds up to a number of replicas.
func ceil(v float64) int32 {
	if math.IsNaN(v) || v <= 0 {
		return 0
	}
	return int32(min(math.Ceil(v), math.MaxInt32))
}
