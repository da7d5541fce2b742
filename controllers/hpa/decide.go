package hpa

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/controllers/runtime"
)

// Settings of all autoscalers. They are options of kube-controller-manager elsewhere.
type Settings struct {
	// SyncPeriod is how often each autoscaler is looked at. Default 15 s.
	SyncPeriod time.Duration
	// DownscaleStabilization is how long a recommendation to have more replicas holds, where the
	// autoscaler does not say it. Default 5 min.
	DownscaleStabilization time.Duration
	// CPUInitialization is how long after its start an unready pod's CPU usage is ignored. Default
	// 5 min.
	CPUInitialization time.Duration
	// InitialReadinessDelay is how long after its start a pod that becomes unready counts as never
	// ready. Default 30 s.
	InitialReadinessDelay time.Duration
	// Tolerance is the difference of the ratio of usage and target from 1 that causes no scaling,
	// unless the autoscaler has its own. Default 0.1.
	Tolerance float64
}

// DefaultSettings returns the defaults of kube-controller-manager.
func DefaultSettings() Settings {
	return Settings{
		SyncPeriod: 15 * time.Second, DownscaleStabilization: 5 * time.Minute, CPUInitialization: 5 * time.Minute,
		InitialReadinessDelay: 30 * time.Second, Tolerance: 0.1,
	}
}

// Check returns an error about invalid settings, by their flags.
func (s Settings) Check() error {
	for _, d := range []struct {
		flag string
		of   time.Duration
	}{
		{"sync-period", s.SyncPeriod}, {"downscale-stabilization", s.DownscaleStabilization},
		{"cpu-initialization-period", s.CPUInitialization}, {"initial-readiness-delay", s.InitialReadinessDelay},
	} {
		if d.of <= 0 {
			return fmt.Errorf("--horizontal-pod-autoscaler-%s %s: want more than 0", d.flag, d.of)
		}
	}
	if s.Tolerance <= 0 || s.Tolerance >= 1 {
		return fmt.Errorf("--horizontal-pod-autoscaler-tolerance %v: want between 0 and 1", s.Tolerance)
	}
	return nil
}

// withDefaults fills in unset settings.
func (s Settings) withDefaults() Settings {
	d := DefaultSettings()
	s.SyncPeriod = cmp.Or(s.SyncPeriod, d.SyncPeriod)
	s.DownscaleStabilization = cmp.Or(s.DownscaleStabilization, d.DownscaleStabilization)
	s.CPUInitialization = cmp.Or(s.CPUInitialization, d.CPUInitialization)
	s.InitialReadinessDelay = cmp.Or(s.InitialReadinessDelay, d.InitialReadinessDelay)
	s.Tolerance = cmp.Or(s.Tolerance, d.Tolerance)
	return s
}

// observed is the input of decide about one autoscaler.
type observed struct {
	hpa       *autoscalingv2.HorizontalPodAutoscaler
	target    *autoscalingv1.Scale
	targetErr error // why there is no target

	// The fields from here on are set if wantsMetrics.
	selectorErr error         // of the target's selector
	pods        []*corev1.Pod // that the selector selects
	rivals      []runtime.Key // autoscalers of the same pods, this one included, in order; none when it is alone
	readings    []reading     // one for each metric of the spec
}

// event is one of upstream's.
type event struct {
	kind, reason, message string
}

// plan has the changes for one autoscaler.
type plan struct {
	rescale  bool
	replicas int32  // to rescale to
	reason   string // why
	status   autoscalingv2.HorizontalPodAutoscalerStatus
	events   []event
	memory   memory
	// problem is why nothing, or not all, could be computed. The next look is in time.
	problem error
}

// set sets a condition of the status to be written.
func (p *plan) set(
	kind autoscalingv2.HorizontalPodAutoscalerConditionType, status corev1.ConditionStatus, now time.Time,
	reason, message string,
) {
	var c *autoscalingv2.HorizontalPodAutoscalerCondition
	for i := range p.status.Conditions {
		if p.status.Conditions[i].Type == kind {
			c = &p.status.Conditions[i]
		}
	}
	if c == nil {
		p.status.Conditions = append(p.status.Conditions, autoscalingv2.HorizontalPodAutoscalerCondition{Type: kind})
		c = &p.status.Conditions[len(p.status.Conditions)-1]
	}
	if c.Status != status {
		c.LastTransitionTime = metav1.NewTime(now)
	}
	c.Status, c.Reason, c.Message = status, reason, message
}

func (p *plan) warn(reason, message string) {
	p.events = append(p.events, event{corev1.EventTypeWarning, reason, message})
}

// minReplicas is the least number of replicas that an autoscaler wants.
func minReplicas(hpa *autoscalingv2.HorizontalPodAutoscaler) int32 {
	if hpa.Spec.MinReplicas != nil {
		return *hpa.Spec.MinReplicas
	}
	return 1
}

// wantsMetrics reports whether the decision depends on metrics. It does not while the target's
// number of replicas is out of bounds. It does not either when another client scaled the target to
// zero, which switches the autoscaler off.
func wantsMetrics(hpa *autoscalingv2.HorizontalPodAutoscaler, target *autoscalingv1.Scale) bool {
	current := target.Spec.Replicas
	if current == 0 {
		return scaledToZero(hpa) && (minReplicas(hpa) != 0 || measuredWithoutPods(hpa))
	}
	return current >= minReplicas(hpa) && current <= hpa.Spec.MaxReplicas
}

// scaledToZero reports whether an autoscaler left no replica.
func scaledToZero(hpa *autoscalingv2.HorizontalPodAutoscaler) bool {
	for _, c := range hpa.Status.Conditions {
		if c.Type == autoscalingv2.ScaledToZero {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// measuredWithoutPods reports whether a metric has a value while there is no pod.
func measuredWithoutPods(hpa *autoscalingv2.HorizontalPodAutoscaler) bool {
	for _, m := range hpa.Spec.Metrics {
		if m.Type == autoscalingv2.ObjectMetricSourceType || m.Type == autoscalingv2.ExternalMetricSourceType {
			return true
		}
	}
	return false
}

// decide computes the number of replicas and the status. Where it wants to rescale, the status is
// complete only after outcome.
func (s Settings) decide(o observed, m memory, now time.Time) plan {
	hpa := o.hpa
	p := plan{status: *hpa.Status.DeepCopy(), memory: m}
	if o.targetErr != nil {
		p.warn("FailedGetScale", o.targetErr.Error())
		p.set(autoscalingv2.AbleToScale, corev1.ConditionFalse, now, "FailedGetScale",
			fmt.Sprintf("the HPA controller was unable to get the target's current scale: %v", o.targetErr))
		p.problem = fmt.Errorf("reading the scale of the target: %w", o.targetErr)
		return p
	}
	p.set(autoscalingv2.AbleToScale, corev1.ConditionTrue, now, "SucceededGetScale",
		"the HPA controller was able to get the target's current scale")
	current, least := o.target.Spec.Replicas, minReplicas(hpa)
	if len(p.memory.recommendations) == 0 {
		p.memory.recommendations = []recommendation{{current, now}}
	}
	p.observe(hpa, current)
	switch {
	case wantsMetrics(hpa, o.target):
		s.byMetrics(&p, o, now)
	case current == 0:
		p.set(autoscalingv2.ScalingActive, corev1.ConditionFalse, now, "ScalingDisabled",
			"scaling is disabled since the replica count of the target is zero")
	case current > hpa.Spec.MaxReplicas:
		p.rescale, p.replicas, p.reason = true, hpa.Spec.MaxReplicas,
			"Current number of replicas above Spec.MaxReplicas"
	case current < least:
		p.rescale, p.replicas, p.reason = true, least, "Current number of replicas below Spec.MinReplicas"
	}
	if p.problem == nil && !p.rescale {
		p.status.DesiredReplicas = current
	}
	return p
}

// observe records the target's size in the status.
func (p *plan) observe(hpa *autoscalingv2.HorizontalPodAutoscaler, current int32) {
	generation := hpa.Generation
	p.status.ObservedGeneration = &generation
	p.status.CurrentReplicas = current
	p.status.CurrentMetrics = nil
}

// byMetrics decides by the proposals of the metrics.
func (s Settings) byMetrics(p *plan, o observed, now time.Time) {
	hpa, current, least := o.hpa, o.target.Spec.Replicas, minReplicas(o.hpa)
	proposed, metric, err := s.propose(p, o, now)
	if err != nil && proposed < 0 {
		p.warn("FailedComputeMetricsReplicas", err.Error())
		p.problem = fmt.Errorf("computing replicas by metrics: %w", err)
		return
	}
	if proposed > current {
		p.reason = metric + " above target"
	} else if proposed < current {
		p.reason = "All metrics below target"
	}
	desired := s.limit(p, hpa, current, proposed, now)
	if current == 0 && desired < least {
		desired = least
		if p.reason == "" {
			p.reason = "Current number of replicas below Spec.MinReplicas"
		}
	}
	p.rescale, p.replicas = desired != current, desired
	if err != nil { // the readable metrics were enough
		p.status.DesiredReplicas = desired
		p.problem = err
	}
}

// propose returns the highest proposal of the metrics, and its metric. It returns -1 with an error
// when there is no metric, or when some failed and the others propose fewer replicas.
func (s Settings) propose(p *plan, o observed, now time.Time) (replicas int32, metric string, err error) {
	if reason, message, err := o.checkSelector(); err != nil {
		if reason != "" {
			p.warn(reason, err.Error())
		}
		if reason == "SelectorRequired" {
			reason = "InvalidSelector"
		}
		p.set(autoscalingv2.ScalingActive, corev1.ConditionFalse, now, reason, message)
		return -1, "", err
	}
	c := s.calculation(o, now)
	metrics := o.hpa.Spec.Metrics
	if len(metrics) == 0 { // the API server gives each autoscaler one
		return -1, "", errors.New("the autoscaler has no metrics")
	}
	p.status.CurrentMetrics = make([]autoscalingv2.MetricStatus, len(metrics))
	var failed []*metricError
	for i := range metrics {
		m, err := c.metric(&metrics[i], o.readings[i])
		if err != nil {
			failed = append(failed, err)
			p.warn(err.reason, err.cause.Error())
			continue
		}
		p.status.CurrentMetrics[i] = m.status
		if replicas == 0 || m.replicas > replicas {
			replicas, metric = m.replicas, m.name
		}
	}
	if len(failed) > 0 {
		err = fmt.Errorf("invalid metrics (%v invalid out of %v), first error is: %w", len(failed), len(metrics),
			failed[0])
	}
	if len(failed) == len(metrics) || len(failed) > 0 && replicas < o.target.Spec.Replicas {
		p.set(autoscalingv2.ScalingActive, corev1.ConditionFalse, now, failed[0].reason,
			fmt.Sprintf("the HPA was unable to compute the replica count: %v", failed[0].cause))
		return -1, "", err
	}
	p.set(autoscalingv2.ScalingActive, corev1.ConditionTrue, now, "ValidMetricFound",
		"the HPA was able to successfully calculate a replica count from "+metric)
	return replicas, metric, err
}

// checkSelector returns the fault of the target's selector.
func (o observed) checkSelector() (reason, message string, err error) {
	switch selector := o.target.Status.Selector; {
	case selector == "":
		return "SelectorRequired", "the HPA target's scale is missing a selector", errors.New("selector is required")
	case o.selectorErr != nil:
		err := fmt.Errorf("couldn't convert selector into a corresponding internal selector object: %w", o.selectorErr)
		return "InvalidSelector", err.Error(), err
	case len(o.rivals) > 1:
		err := fmt.Errorf("pods by selector %v are controlled by more than one HPA (e.g. %v)", selector, o.rivals)
		return "AmbiguousSelector", err.Error(), err
	}
	return "", "", nil
}

// outcome completes a plan to rescale, once the target has been scaled, or has refused it with err.
func (p plan) outcome(o observed, err error, now time.Time) plan {
	before := o.target.Spec.Replicas
	if err != nil {
		p.warn("FailedRescale", fmt.Sprintf("New size: %d; reason: %s; error: %v", p.replicas, p.reason, err))
		p.set(autoscalingv2.AbleToScale, corev1.ConditionFalse, now, "FailedUpdateScale",
			fmt.Sprintf("the HPA controller was unable to update the target scale: %v", err))
		p.status.DesiredReplicas = o.hpa.Status.DesiredReplicas
		p.problem = errors.Join(p.problem, fmt.Errorf("scaling the target: %w", err))
		return p
	}
	p.set(autoscalingv2.AbleToScale, corev1.ConditionTrue, now, "SucceededRescale",
		fmt.Sprintf("the HPA controller was able to update the target scale to %d", p.replicas))
	p.events = append(p.events,
		event{corev1.EventTypeNormal, "SuccessfulRescale",
			fmt.Sprintf("New size: %d; reason: %s", p.replicas, p.reason)})
	if p.replicas == 0 && minReplicas(o.hpa) == 0 && measuredWithoutPods(o.hpa) {
		p.set(autoscalingv2.ScaledToZero, corev1.ConditionTrue, now, "ScaledToZero",
			"the HPA controller scaled the workload to zero")
	} else {
		p.set(autoscalingv2.ScaledToZero, corev1.ConditionFalse, now, "NotScaledToZero",
			"the HPA controller did not scale the workload to zero")
	}
	p.status.DesiredReplicas = p.replicas
	scaled := metav1.NewTime(now)
	p.status.LastScaleTime = &scaled
	p.memory = p.memory.scaled(o.hpa.Spec.Behavior, before, p.replicas, now)
	return p
}
