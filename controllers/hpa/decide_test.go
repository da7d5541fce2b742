package hpa

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/controllers/runtime"
)

var (
	settings = Settings{}.withDefaults()
	start    = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
)

// autoscaler is one of 2 to 10 replicas that goes by 50 % of the requested CPU.
func autoscaler(change ...func(*autoscalingv2.HorizontalPodAutoscaler)) *autoscalingv2.HorizontalPodAutoscaler {
	hpa := &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", UID: "u", Generation: 3},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment",
				Name: "web"},
			MinReplicas: ptr.To[int32](2), MaxReplicas: 10,
			Metrics: []autoscalingv2.MetricSpec{cpu(50)},
		},
	}
	for _, f := range change {
		f(hpa)
	}
	return hpa
}

func cpu(percent int32) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{Type: autoscalingv2.ResourceMetricSourceType,
		Resource: &autoscalingv2.ResourceMetricSource{
			Name: corev1.ResourceCPU,
			Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType,
				AverageUtilization: &percent}}}
}

func metrics(m ...autoscalingv2.MetricSpec) func(*autoscalingv2.HorizontalPodAutoscaler) {
	return func(hpa *autoscalingv2.HorizontalPodAutoscaler) { hpa.Spec.Metrics = m }
}

func bounds(least, most int32) func(*autoscalingv2.HorizontalPodAutoscaler) {
	return func(hpa *autoscalingv2.HorizontalPodAutoscaler) {
		hpa.Spec.MinReplicas, hpa.Spec.MaxReplicas = &least, most
	}
}

func behavior(b autoscalingv2.HorizontalPodAutoscalerBehavior) func(*autoscalingv2.HorizontalPodAutoscaler) {
	return func(hpa *autoscalingv2.HorizontalPodAutoscaler) { hpa.Spec.Behavior = &b }
}

func target(replicas int32) *autoscalingv1.Scale {
	return &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"},
		Spec:   autoscalingv1.ScaleSpec{Replicas: replicas},
		Status: autoscalingv1.ScaleStatus{Replicas: replicas, Selector: "app=web"}}
}

// pod is one that has been ready for long, and whose container c requests one CPU and 1 GiB.
func pod(n int, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("web-%d", n),
			Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: *resource.NewQuantity(1, resource.DecimalSI),
				corev1.ResourceMemory: *resource.NewQuantity(1<<30, resource.BinarySI)}}}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, StartTime: ptr.To(metav1.NewTime(start.Add(-time.Hour))),
			Conditions: []corev1.PodCondition{
				{Type: corev1.PodReady, Status: corev1.ConditionTrue,
					LastTransitionTime: metav1.NewTime(start.Add(-time.Hour))}}},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

func pending(p *corev1.Pod) { p.Status.Phase, p.Status.Conditions = corev1.PodPending, nil }

func failed(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }

func leaving(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.NewTime(start)) }

// since makes a pod that began and has been ready, or not, for so long.
func since(began, changed time.Duration, ready corev1.ConditionStatus) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.StartTime = ptr.To(metav1.NewTime(start.Add(-began)))
		p.Status.Conditions[0] = corev1.PodCondition{Type: corev1.PodReady, Status: ready,
			LastTransitionTime: metav1.NewTime(start.Add(-changed))}
	}
}

// using returns the pods' usage of a metric, in thousandths; -1 is unknown.
func using(values ...int64) reading {
	r := reading{samples: map[string]sample{}}
	for i, v := range values {
		if v >= 0 {
			r.samples[fmt.Sprintf("web-%d", i)] = sample{v, start.Add(-5 * time.Second), 15 * time.Second}
		}
	}
	return r
}

func podsOf(n int) []*corev1.Pod {
	var out []*corev1.Pod
	for i := range n {
		out = append(out, pod(i))
	}
	return out
}

// calculate returns the proposal of an autoscaler's metrics, without limits.
func calculate(
	hpa *autoscalingv2.HorizontalPodAutoscaler, current int32, pods []*corev1.Pod, readings ...reading,
) (int32, error) {
	p := &plan{}
	n, _, err := settings.propose(p, observed{hpa: hpa, target: target(current), pods: pods, readings: readings}, start)
	return n, err
}

// The expected numbers come from upstream's algorithm.
func TestProposals(t *testing.T) {
	quantity := func(s string) *resource.Quantity { return ptr.To(resource.MustParse(s)) }
	memory := autoscalingv2.MetricSpec{Type: autoscalingv2.ResourceMetricSourceType,
		Resource: &autoscalingv2.ResourceMetricSource{
			Name: corev1.ResourceMemory,
			Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType,
				AverageValue: quantity("100Mi")}}}
	container := autoscalingv2.MetricSpec{Type: autoscalingv2.ContainerResourceMetricSourceType,
		ContainerResource: &autoscalingv2.ContainerResourceMetricSource{
			Name: corev1.ResourceCPU, Container: "c",
			Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType,
				AverageUtilization: ptr.To[int32](50)}}}
	elsewhere := *container.DeepCopy()
	elsewhere.ContainerResource.Container = "other"
	perPod := autoscalingv2.MetricSpec{Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricSource{
		Metric: autoscalingv2.MetricIdentifier{Name: "qps"},
		Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: quantity("10")}}}
	object := autoscalingv2.MetricSpec{Type: autoscalingv2.ObjectMetricSourceType,
		Object: &autoscalingv2.ObjectMetricSource{
			DescribedObject: autoscalingv2.CrossVersionObjectReference{Kind: "Service", Name: "web", APIVersion: "v1"},
			Metric:          autoscalingv2.MetricIdentifier{Name: "qps"},
			Target:          autoscalingv2.MetricTarget{Type: autoscalingv2.ValueMetricType, Value: quantity("20")}}}
	external := autoscalingv2.MetricSpec{Type: autoscalingv2.ExternalMetricSourceType,
		External: &autoscalingv2.ExternalMetricSource{
			Metric: autoscalingv2.MetricIdentifier{Name: "queue"},
			Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType,
				AverageValue: quantity("10")}}}
	values := func(v ...int64) reading { return reading{values: v} }
	unrequested := func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests = nil }

	for name, test := range map[string]struct {
		metrics  []autoscalingv2.MetricSpec
		change   func(*autoscalingv2.HorizontalPodAutoscaler)
		current  int32
		pods     []*corev1.Pod
		readings []reading
		want     int32 // -1 for an error
		err      string
	}{
		"up": {current: 3, pods: podsOf(3), readings: []reading{using(800, 900, 1000)}, want: 6},
		"down": {current: 5, pods: podsOf(5), readings: []reading{using(100, 100, 100, 100, 100)},
			want: 1},
		"within the tolerance": {current: 3, pods: podsOf(3), readings: []reading{using(540, 540, 540)}, want: 3},
		"above the tolerance":  {current: 3, pods: podsOf(3), readings: []reading{using(560, 560, 560)}, want: 4},
		"its own tolerance": {current: 3, pods: podsOf(3), readings: []reading{using(560, 560, 560)}, want: 3,
			change: behavior(
				autoscalingv2.HorizontalPodAutoscalerBehavior{
					ScaleUp: &autoscalingv2.HPAScalingRules{Tolerance: quantity("0.2")}})},
		"its own, smaller one, for the way down": {current: 10, pods: podsOf(10), want: 10,
			readings: []reading{using(480, 480, 480, 480, 480, 480, 480, 480, 480, 480)},
			change: behavior(
				autoscalingv2.HorizontalPodAutoscalerBehavior{
					ScaleDown: &autoscalingv2.HPAScalingRules{Tolerance: quantity("0.01")}})},
		"idle": {current: 3, pods: podsOf(3), readings: []reading{using(0, 0, 0)}, want: 0},
		"unready pods use nothing on the way up": {current: 3, want: 4, readings: []reading{using(1000, 1000, 1000)},
			pods: []*corev1.Pod{pod(0), pod(1), pod(2, since(time.Minute, time.Minute, corev1.ConditionFalse))}},
		"unready pods that turn the direction": {current: 3, want: 3, readings: []reading{using(700, 0, 0)},
			pods: []*corev1.Pod{pod(0), pod(1, pending), pod(2, pending)}},
		"unready pods do not count on the way down": {current: 3, want: 1, readings: []reading{using(100, 100, 1000)},
			pods: []*corev1.Pod{pod(0), pod(1), pod(2, since(time.Minute, time.Minute, corev1.ConditionFalse))}},
		"a pod that has just become ready": {current: 2, want: 2, readings: []reading{using(600, 3000)},
			pods: []*corev1.Pod{pod(0), pod(1, since(time.Minute, 10*time.Second, corev1.ConditionTrue))}},
		"one that has been ready for a window": {current: 2, want: 8, readings: []reading{using(600, 3000)},
			pods: []*corev1.Pod{pod(0), pod(1, since(time.Minute, 30*time.Second, corev1.ConditionTrue))}},
		"an old one that was ready once, and is not now": {current: 2, want: 8, readings: []reading{using(600, 3000)},
			pods: []*corev1.Pod{pod(0), pod(1, since(time.Hour, time.Minute, corev1.ConditionFalse))}},
		"an old one that never was": {current: 2, want: 2, readings: []reading{using(600, 3000)},
			pods: []*corev1.Pod{pod(0), pod(1, since(time.Hour, time.Hour-10*time.Second, corev1.ConditionFalse))}},
		"readiness matters to CPU only": {metrics: []autoscalingv2.MetricSpec{memory}, current: 2, want: 4,
			readings: []reading{using(200<<20*1000, 200<<20*1000)},
			pods:     []*corev1.Pod{pod(0), pod(1, since(time.Minute, time.Minute, corev1.ConditionFalse))}},
		"missing ones use nothing on the way up": {current: 4, pods: podsOf(4),
			readings: []reading{using(1000, 1000, 1000, -1)}, want: 6},
		"missing ones use all on the way down": {current: 4, pods: podsOf(4),
			readings: []reading{using(100, 100, 100, -1)}, want: 3},
		"missing ones that turn the direction": {current: 2, pods: podsOf(2), readings: []reading{using(100, -1)},
			want: 2},
		"pods that end or have failed do not count": {current: 2, want: 4,
			readings: []reading{using(1000, 1000, 5000, 5000)},
			pods:     []*corev1.Pod{pod(0), pod(1), pod(2, failed), pod(3, leaving)}},
		"no pod is known": {current: 2, pods: podsOf(2), readings: []reading{using()}, want: -1,
			err: "did not receive metrics for targeted pods (pods might be unready)"},
		"no pod": {current: 2, readings: []reading{using()}, want: -1,
			err: "no pods returned by selector while calculating replica count"},
		"nothing is requested": {current: 1, pods: []*corev1.Pod{pod(0, unrequested)}, readings: []reading{using(100)},
			want: -1,
			err:  "missing request for cpu in container c of Pod web-0"},
		"the API is away": {current: 1, pods: podsOf(1), readings: []reading{{err: errors.New("away")}}, want: -1,
			err: "invalid metrics (1 invalid out of 1), first error is: failed to get cpu resource metric value: failed to get cpu utilization: unable to get metrics for resource cpu: away"},
		"memory by value": {metrics: []autoscalingv2.MetricSpec{memory}, current: 2, pods: podsOf(2),
			readings: []reading{using(150<<20*1000, 250<<20*1000)}, want: 4},
		"one container": {metrics: []autoscalingv2.MetricSpec{container}, current: 2, pods: podsOf(2),
			readings: []reading{using(1000, 1000)}, want: 4},
		"a container that is not there": {metrics: []autoscalingv2.MetricSpec{elsewhere}, current: 2, pods: podsOf(2),
			readings: []reading{using(1000, 1000)}, want: -1,
			err: "container other not found in Pod web-0"},
		"a metric of pods": {metrics: []autoscalingv2.MetricSpec{perPod}, current: 3, pods: podsOf(3),
			readings: []reading{using(20000, 10000, 30000)}, want: 6},
		"an object": {metrics: []autoscalingv2.MetricSpec{object}, current: 3, pods: podsOf(3),
			readings: []reading{values(40000)}, want: 6},
		"an object, by ready pods": {metrics: []autoscalingv2.MetricSpec{object}, current: 3,
			pods: []*corev1.Pod{pod(0), pod(1), pod(2, pending)}, readings: []reading{values(40000)}, want: 4},
		"an object, from zero": {metrics: []autoscalingv2.MetricSpec{object}, current: 0,
			readings: []reading{values(50000)}, want: 3},
		"external, per pod": {metrics: []autoscalingv2.MetricSpec{external}, current: 3, pods: podsOf(3),
			readings: []reading{values(30000, 41000)}, want: 8},
		"external, from zero": {metrics: []autoscalingv2.MetricSpec{external}, current: 0,
			readings: []reading{values(15000)}, want: 2},
		"external, empty queue": {metrics: []autoscalingv2.MetricSpec{external}, current: 3, pods: podsOf(3),
			readings: []reading{values(0)}, want: 0},
		"more than there are numbers": {metrics: []autoscalingv2.MetricSpec{external}, current: 3, pods: podsOf(3),
			readings: []reading{values(1<<62, 1<<62, 1<<62)}, want: 1<<31 - 1},
		"the highest of several": {metrics: []autoscalingv2.MetricSpec{cpu(50), perPod}, current: 2, pods: podsOf(2),
			readings: []reading{using(600, 600), using(40000, 40000)}, want: 8},
		"some fail, and the others are for more": {metrics: []autoscalingv2.MetricSpec{cpu(50), perPod}, current: 2,
			pods:     podsOf(2),
			readings: []reading{using(1000, 1000), {err: errors.New("away")}}, want: 4, err: "1 invalid out of 2"},
		"some fail, and the others are for less": {metrics: []autoscalingv2.MetricSpec{cpu(50), perPod}, current: 2,
			pods:     podsOf(2),
			readings: []reading{using(100, 100), {err: errors.New("away")}}, want: -1, err: "1 invalid out of 2"},
	} {
		t.Run(name, func(t *testing.T) {
			hpa := autoscaler()
			if test.metrics != nil {
				metrics(test.metrics...)(hpa)
			}
			if test.change != nil {
				test.change(hpa)
			}
			got, err := calculate(hpa, test.current, test.pods, test.readings...)
			if got != test.want || (err != nil) != (test.err != "") ||
				err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("%d replicas, %v; want %d, %q", got, err, test.want, test.err)
			}
		})
	}
}

func TestRequests(t *testing.T) {
	cpus := func(name, n string) corev1.Container {
		c := corev1.Container{Name: name}
		if n != "" {
			c.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(n)}
		}
		return c
	}
	sidecar := cpus("s", "300m")
	sidecar.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
	whole := &corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")}}
	for name, test := range map[string]struct {
		spec      corev1.PodSpec
		container string
		want      int64
		err       string
	}{
		"all that run": {
			corev1.PodSpec{Containers: []corev1.Container{cpus("a", "1"), cpus("b", "200m")},
				InitContainers: []corev1.Container{sidecar, cpus("i", "8")}}, "", 1500, ""},
		"one": {corev1.PodSpec{Containers: []corev1.Container{cpus("a", "1"), cpus("b", "")}}, "a",
			1000, ""},
		"one without a request": {corev1.PodSpec{Containers: []corev1.Container{cpus("a", "1"), cpus("b", "")}}, "",
			0, "missing request for cpu in container b of Pod p"},
		"of the pod": {
			corev1.PodSpec{Resources: whole, Containers: []corev1.Container{cpus("a", "1"), cpus("b", "")}}, "", 4000,
			""},
		"a container before a pod": {corev1.PodSpec{Resources: whole, Containers: []corev1.Container{cpus("a", "1")}},
			"a", 1000, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := requestOf(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: test.spec},
				test.container, corev1.ResourceCPU)
			if got != test.want || (err != nil) != (test.err != "") || err != nil && err.Error() != test.err {
				t.Errorf("%d, %v", got, err)
			}
		})
	}
}

// TestRequestsOfUnordered: the order of pods in informers does not change the conditions.
func TestRequestsOfUnordered(t *testing.T) {
	pod := func(name string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
	}
	for _, pods := range [][]*corev1.Pod{{pod("a"), pod("b")}, {pod("b"), pod("a")}} {
		_, err := requestsOf(pods, "", corev1.ResourceCPU)
		if want := "missing request for cpu in container c of Pod a"; err == nil || err.Error() != want {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func condition(
	s autoscalingv2.HorizontalPodAutoscalerStatus, kind autoscalingv2.HorizontalPodAutoscalerConditionType,
) string {
	for _, c := range s.Conditions {
		if c.Type == kind {
			return string(c.Status) + " " + c.Reason
		}
	}
	return ""
}

func reasons(p plan) (out []string) {
	for _, e := range p.events {
		out = append(out, e.reason)
	}
	return out
}

// Conditions and events have upstream's reasons.
func TestStatus(t *testing.T) {
	const (
		able, active, limited, zero = autoscalingv2.AbleToScale, autoscalingv2.ScalingActive,
			autoscalingv2.ScalingLimited, autoscalingv2.ScaledToZero
	)
	queue := autoscalingv2.MetricSpec{Type: autoscalingv2.ExternalMetricSourceType,
		External: &autoscalingv2.ExternalMetricSource{
			Metric: autoscalingv2.MetricIdentifier{Name: "queue"},
			Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType,
				AverageValue: ptr.To(resource.MustParse("10"))}}}
	asleep := func(hpa *autoscalingv2.HorizontalPodAutoscaler) {
		hpa.Status.Conditions = []autoscalingv2.HorizontalPodAutoscalerCondition{
			{Type: zero, Status: corev1.ConditionTrue, Reason: "ScaledToZero"}}
	}
	unselected, wrong := target(2), target(2)
	unselected.Status.Selector, wrong.Status.Selector = "", "=,"
	long := memory{recommendations: []recommendation{{0, start.Add(-time.Hour)}}} // nothing to hold to
	for name, test := range map[string]struct {
		o          observed
		refused    error
		replicas   int32 // that are desired after it
		conditions map[autoscalingv2.HorizontalPodAutoscalerConditionType]string
		events     string
	}{
		"up": {
			observed{hpa: autoscaler(), target: target(3), pods: podsOf(3), readings: []reading{using(800, 900, 1000)}},
			nil, 6,
			map[autoscalingv2.HorizontalPodAutoscalerConditionType]string{able: "True SucceededRescale",
				active: "True ValidMetricFound", limited: "False DesiredWithinRange", zero: "False NotScaledToZero"},
			"SuccessfulRescale"},
		"nothing to do": {
			observed{hpa: autoscaler(), target: target(3), pods: podsOf(3), readings: []reading{using(500, 500, 500)}},
			nil, 3,
			map[autoscalingv2.HorizontalPodAutoscalerConditionType]string{able: "True ReadyForNewScale",
				active: "True ValidMetricFound", limited: "False DesiredWithinRange"}, ""},
		"more than it may": {
			observed{hpa: autoscaler(bounds(1, 5)), target: target(3), pods: podsOf(3),
				readings: []reading{using(1000, 1000, 1000)}}, nil, 5,
			map[autoscalingv2.HorizontalPodAutoscalerConditionType]string{limited: "True TooManyReplicas"},
			"SuccessfulRescale"},
		"faster than it may": {
			observed{hpa: autoscaler(bounds(1, 50)), target: target(3), pods: podsOf(3),
				readings: []reading{using(5000, 5000, 5000)}}, nil, 6,
			map[autoscalingv2.HorizontalPodAutoscalerConditionType]string{limited: "True ScaleUpLimit"},
			"SuccessfulRescale"},
		"less than it may": {
			observed{hpa: autoscaler(), target: target(3), pods: podsOf(3), readings: []reading{using(1, 1, 1)}}, nil,
			2,
			map[autoscalingv2.HorizontalPodAutoscalerConditionType]string{limited: "True TooFewReplicas"},
			"SuccessfulRescale"},
		"above the bounds": {observed{hpa: autoscaler(), target: target(12)}, nil, 10,
			map[autoscalingv2.HorizontalPodAutoscalerConditionType]string{able: "True SucceededRescale"},
			"SuccessfulRescale"},
		"below the bounds": {observed{hpa: autoscaler(), target: target(1)}, nil, 2,
			map[autoscalingv2.HorizontalPodAutoscalerConditionType]string{able: "True SucceededRescale"},
			"SuccessfulRescale"},
		"switched off": {observed{hpa: autoscaler(), target: target(0)}, nil, 0,
			map[autoscalingv2.HorizontalPodAutoscalerConditionType]string{able: "True SucceededGetScale",
				active: "False ScalingDisabled"}, ""},
		"to zero": {
			observed{hpa: autoscaler(bounds(0, 5), metrics(queue)), target: target(1), pods: podsOf(1),
				readings: []reading{{values: []int64{0}}}}, nil, 0,
			map[autoscalingv2.HorizontalPodAutoscalerConditionType]string{zero: "True ScaledToZero"},
			"SuccessfulRescale"},
		"from zero": {
			observed{hpa: autoscaler(bounds(0, 5), metrics(queue), asleep), target: target(0),
				readings: []reading{{values: []int64{25000}}}}, nil, 3,
			map[autoscalingv2.HorizontalPodAutoscalerConditionType]string{zero: "False NotScaledToZero"},
			"SuccessfulRescale"},
		"stays at zero": {
			observed{hpa: autoscaler(bounds(0, 5), metrics(queue), asleep), target: target(0),
				readings: []reading{{values: []int64{0}}}}, nil, 0,
			map[autoscalingv2.HorizontalPodAutoscalerConditionType]string{zero: "True ScaledToZero"}, ""},
		"from zero to a minimum that has been raised": {
			observed{hpa: autoscaler(bounds(2, 5), metrics(queue), asleep), target: target(0),
				readings: []reading{{values: []int64{0}}}}, nil, 2,
			map[autoscalingv2.HorizontalPodAutoscalerConditionType]string{zero: "False NotScaledToZero"},
			"SuccessfulRescale"},
		"no target": {observed{hpa: autoscaler(), targetErr: errors.New("not found")}, nil, 0,
			map[autoscalingv2.HorizontalPodAutoscalerConditionType]string{able: "False FailedGetScale", active: ""},
			"FailedGetScale"},
		"no selector": {observed{hpa: autoscaler(), target: unselected}, nil, 0,
			map[autoscalingv2.HorizontalPodAutoscalerConditionType]string{active: "False InvalidSelector"},
			"SelectorRequired FailedComputeMetricsReplicas"},
		"a wrong selector": {observed{hpa: autoscaler(), target: wrong, selectorErr: errors.New("found '='")}, nil, 0,
			map[autoscalingv2.HorizontalPodAutoscalerConditionType]string{active: "False InvalidSelector"},
			"InvalidSelector FailedComputeMetricsReplicas"},
		"two for the same pods": {
			observed{hpa: autoscaler(), target: target(2), pods: podsOf(2),
				rivals: []runtime.Key{{Namespace: "ns", Name: "a"}, {Namespace: "ns", Name: "b"}}}, nil, 0,
			map[autoscalingv2.HorizontalPodAutoscalerConditionType]string{active: "False AmbiguousSelector"},
			"AmbiguousSelector FailedComputeMetricsReplicas"},
		"no metrics": {
			observed{hpa: autoscaler(), target: target(2), pods: podsOf(2),
				readings: []reading{{err: errors.New("away")}}}, nil, 0,
			map[autoscalingv2.HorizontalPodAutoscalerConditionType]string{able: "True SucceededGetScale",
				active: "False FailedGetResourceMetric"}, "FailedGetResourceMetric FailedComputeMetricsReplicas"},
		"the target refuses": {
			observed{hpa: autoscaler(), target: target(3), pods: podsOf(3), readings: []reading{using(800, 900, 1000)}},
			errors.New("forbidden"), 0,
			map[autoscalingv2.HorizontalPodAutoscalerConditionType]string{able: "False FailedUpdateScale", zero: ""},
			"FailedRescale"},
	} {
		t.Run(name, func(t *testing.T) {
			p := settings.decide(test.o, long, start)
			if p.rescale {
				p = p.outcome(test.o, test.refused, start)
			}
			for kind, want := range test.conditions {
				if got := condition(p.status, kind); got != want {
					t.Errorf("%s is %q, want %q", kind, got, want)
				}
			}
			if got := strings.Join(reasons(p), " "); got != test.events {
				t.Errorf("events %q, want %q", got, test.events)
			}
			if p.status.DesiredReplicas != test.replicas {
				t.Errorf("%d replicas are desired, want %d", p.status.DesiredReplicas, test.replicas)
			}
			if test.o.target != nil {
				if p.status.CurrentReplicas != test.o.target.Spec.Replicas ||
					ptr.Deref(p.status.ObservedGeneration, 0) != 3 {
					t.Errorf("it does not say what was seen: %+v", p.status)
				}
			}
			if scaled := p.status.LastScaleTime != nil; scaled != (p.rescale && test.refused == nil) {
				t.Errorf("the time of the last scaling: %v", p.status.LastScaleTime)
			}
			if len(test.o.hpa.Status.Conditions) > 1 {
				t.Error("what was observed has been changed")
			}
		})
	}
}

func TestMessages(t *testing.T) {
	o := observed{hpa: autoscaler(), target: target(3), pods: podsOf(3), readings: []reading{using(800, 900, 1000)}}
	p := settings.decide(o, memory{}, start).outcome(o, nil, start)
	if got, want := p.events[0].message,
		"New size: 6; reason: cpu resource utilization (percentage of request) above target"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	current := p.status.CurrentMetrics[0].Resource.Current
	if *current.AverageUtilization != 90 || current.AverageValue.String() != "900m" {
		t.Errorf("current metrics: %+v", current)
	}
}
