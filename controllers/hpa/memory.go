package hpa

import (
	"math"
	"slices"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// memory is the state of an autoscaler between two evaluations. It is replaced, never changed.
type memory struct {
	recommendations []recommendation // before they were stabilized
	ups, downs      []change
}

// recommendation is how many replicas the metrics proposed.
type recommendation struct {
	replicas int32
	at       time.Time
}

// change is by how many replicas the target was scaled.
type change struct {
	replicas int32 // positive
	at       time.Time
}

// scaled returns the memory after the target was scaled. Without a behavior it is not read.
func (m memory) scaled(
	behavior *autoscalingv2.HorizontalPodAutoscalerBehavior, before, after int32, now time.Time,
) memory {
	if behavior == nil {
		return m
	}
	var longest int32
	for _, rules := range []*autoscalingv2.HPAScalingRules{behavior.ScaleUp, behavior.ScaleDown} {
		if rules != nil {
			for _, policy := range rules.Policies {
				longest = max(longest, policy.PeriodSeconds)
			}
		}
	}
	since := now.Add(-seconds(longest))
	old := func(c change) bool { return !c.at.After(since) }
	m.ups = slices.DeleteFunc(slices.Clone(m.ups), old)
	m.downs = slices.DeleteFunc(slices.Clone(m.downs), old)
	if after > before {
		m.ups = append(m.ups, change{after - before, now})
	} else {
		m.downs = append(m.downs, change{before - after, now})
	}
	return m
}

// recommended returns the memory after another recommendation, without those of before a moment.
func (m memory) recommended(replicas int32, since, now time.Time) memory {
	m.recommendations = slices.DeleteFunc(slices.Clone(m.recommendations),
		func(r recommendation) bool { return r.at.Before(since) })
	m.recommendations = append(m.recommendations, recommendation{replicas, now})
	return m
}

func seconds(n int32) time.Duration { return time.Duration(n) * time.Second }

// limit returns the number of replicas for a proposal. It applies the stabilization windows, the
// rate limits, and the autoscaler's bounds.
func (s Settings) limit(
	p *plan, hpa *autoscalingv2.HorizontalPodAutoscaler, current, proposed int32, now time.Time,
) int32 {
	stable, reason, message := s.stabilize(p, hpa, current, proposed, now)
	if stable == proposed {
		reason, message = "ReadyForNewScale", "recommended size matches current size"
	}
	p.set(autoscalingv2.AbleToScale, corev1.ConditionTrue, now, reason, message)

	bounded, reason, message := bound(p.memory, hpa, current, stable, now)
	limited := corev1.ConditionTrue
	if bounded == stable {
		limited = corev1.ConditionFalse
	}
	p.set(autoscalingv2.ScalingLimited, limited, now, reason, message)
	return bounded
}

// stabilize holds to recent recommendations: the highest one when it goes down, the lowest one when
// it goes up. It notes the one that it is given.
func (s Settings) stabilize(
	p *plan, hpa *autoscalingv2.HorizontalPodAutoscaler, current, proposed int32, now time.Time,
) (replicas int32, reason, message string) {
	const higher = "recent recommendations were higher than current one, applying the highest recent recommendation"
	down := s.DownscaleStabilization
	if hpa.Spec.Behavior == nil {
		replicas = proposed
		for _, r := range p.memory.recommendations {
			if !r.at.Before(now.Add(-down)) {
				replicas = max(replicas, r.replicas)
			}
		}
		p.memory = p.memory.recommended(proposed, now.Add(-down), now)
		return replicas, "ScaleDownStabilized", higher
	}
	var up time.Duration
	if r := hpa.Spec.Behavior.ScaleUp; r != nil && r.StabilizationWindowSeconds != nil {
		up = seconds(*r.StabilizationWindowSeconds)
	}
	if r := hpa.Spec.Behavior.ScaleDown; r != nil && r.StabilizationWindowSeconds != nil {
		down = seconds(*r.StabilizationWindowSeconds)
	}
	lowest, highest := proposed, proposed
	for _, r := range p.memory.recommendations {
		if r.at.After(now.Add(-up)) {
			lowest = min(lowest, r.replicas)
		}
		if r.at.After(now.Add(-down)) {
			highest = max(highest, r.replicas)
		}
	}
	p.memory = p.memory.recommended(proposed, now.Add(-max(up, down)), now)
	replicas = min(max(current, lowest), highest)
	if proposed >= current {
		return replicas, "ScaleUpStabilized",
			"recent recommendations were lower than current one, applying the lowest recent recommendation"
	}
	return replicas, "ScaleDownStabilized", higher
}

// Without a behavior a target is scaled to at most max(scaleUpFactor × current, scaleUpMinimum).
const (
	scaleUpFactor  = 2
	scaleUpMinimum = 4
)

// bound keeps a number of replicas within the autoscaler's limits.
func bound(
	m memory, hpa *autoscalingv2.HorizontalPodAutoscaler, current, desired int32, now time.Time,
) (replicas int32, reason, message string) {
	least, most := minReplicas(hpa), hpa.Spec.MaxReplicas
	const (
		tooFew     = "the desired replica count is less than the minimum replica count"
		tooMany    = "the desired replica count is more than the maximum replica count"
		tooFast    = "the desired replica count is increasing faster than the maximum scale rate"
		tooFastOut = "the desired replica count is decreasing faster than the maximum scale rate"
	)
	if hpa.Spec.Behavior == nil {
		fastest := int32(min(max(scaleUpFactor*int64(current), scaleUpMinimum), math.MaxInt32))
		switch {
		case desired < least:
			return least, "TooFewReplicas", tooFew
		case desired > most && most <= fastest:
			return most, "TooManyReplicas", tooMany
		case desired > fastest && fastest < most:
			return fastest, "ScaleUpLimit", tooFast
		}
		return desired, "DesiredWithinRange", "the desired count is within the acceptable range"
	}
	up, down := rulesOf(hpa.Spec.Behavior)
	switch {
	case desired > current:
		fastest := max(current, m.highest(up, current, now))
		if desired > most && most <= fastest {
			return most, "TooManyReplicas", tooMany
		}
		if desired > fastest {
			return fastest, "ScaleUpLimit", tooFast
		}
	case desired < current:
		fastest := min(current, m.lowest(down, current, now))
		if desired < least && least >= fastest {
			return least, "TooFewReplicas", tooFew
		}
		if desired < fastest {
			return fastest, "ScaleDownLimit", tooFastOut
		}
	}
	return desired, "DesiredWithinRange", "the desired count is within the acceptable range"
}

// rulesOf sets the API server's defaults, for objects stored by another version.
func rulesOf(b *autoscalingv2.HorizontalPodAutoscalerBehavior) (up, down autoscalingv2.HPAScalingRules) {
	percent := autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: 15}
	pods := autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PodsScalingPolicy, Value: 4, PeriodSeconds: 15}
	up, down = ptr.Deref(b.ScaleUp, up), ptr.Deref(b.ScaleDown, down)
	if up.Policies == nil {
		up.Policies = []autoscalingv2.HPAScalingPolicy{pods, percent}
	}
	if down.Policies == nil {
		down.Policies = []autoscalingv2.HPAScalingPolicy{percent}
	}
	return up, down
}

// highest is the most replicas that the rules for going up allow now.
func (m memory) highest(rules autoscalingv2.HPAScalingRules, current int32, now time.Time) int32 {
	return m.allowed(rules, current, now, func(start int64, p autoscalingv2.HPAScalingPolicy) int64 {
		if p.Type == autoscalingv2.PodsScalingPolicy {
			return start + int64(p.Value)
		}
		return int64(math.Ceil(float64(start) * (1 + float64(p.Value)/100)))
	}, slices.Max[[]int64], slices.Min[[]int64])
}

// lowest is the least replicas that the rules for going down allow now.
func (m memory) lowest(rules autoscalingv2.HPAScalingRules, current int32, now time.Time) int32 {
	return m.allowed(rules, current, now, func(start int64, p autoscalingv2.HPAScalingPolicy) int64 {
		if p.Type == autoscalingv2.PodsScalingPolicy {
			return start - int64(p.Value)
		}
		return int64(float64(start) * (1 - float64(p.Value)/100))
	}, slices.Min[[]int64], slices.Max[[]int64])
}

// allowed returns the change that the rules' selected policy allows: the largest or the smallest
// one. Each policy counts from the replicas at the start of its period.
func (m memory) allowed(
	rules autoscalingv2.HPAScalingRules, current int32, now time.Time,
	by func(start int64, p autoscalingv2.HPAScalingPolicy) int64, largest, smallest func([]int64) int64,
) int32 {
	choose := ptr.Deref(rules.SelectPolicy, autoscalingv2.MaxChangePolicySelect)
	if choose == autoscalingv2.DisabledPolicySelect || len(rules.Policies) == 0 {
		return current
	}
	var proposals []int64
	for _, p := range rules.Policies {
		since := now.Add(-seconds(p.PeriodSeconds))
		proposals = append(proposals, by(int64(current)-sum(m.ups, since)+sum(m.downs, since), p))
	}
	chosen := largest(proposals)
	if choose == autoscalingv2.MinChangePolicySelect {
		chosen = smallest(proposals)
	}
	return int32(min(max(chosen, 0), math.MaxInt32))
}

// sum adds up the changes after a moment.
func sum(changes []change, since time.Time) (n int64) {
	for _, c := range changes {
		if c.at.After(since) {
			n += int64(c.replicas)
		}
	}
	return n
}
