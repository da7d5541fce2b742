package shutdown

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubelet/config/v1beta1"
)

// Period is the time for pods of a priority, and of those above it up to the next one, to end.
type Period struct {
	Priority int32
	Within   time.Duration
}

// systemCriticalPriority is the lowest priority of the classes system-*-critical.
const systemCriticalPriority = 2000000000

// Periods returns those of a configuration, from the lowest priority to the highest. Without any, a
// shutdown does not wait for pods.
func Periods(c *v1beta1.KubeletConfiguration) []Period {
	var list []Period
	for _, p := range c.ShutdownGracePeriodByPodPriority {
		list = append(list, Period{p.Priority, time.Duration(p.ShutdownGracePeriodSeconds) * time.Second})
	}
	if len(list) == 0 && c.ShutdownGracePeriod.Duration > 0 {
		critical := c.ShutdownGracePeriodCriticalPods.Duration
		list = []Period{{0, (c.ShutdownGracePeriod.Duration - critical).Truncate(time.Second)},
			{systemCriticalPriority, critical.Truncate(time.Second)}}
	}
	slices.SortStableFunc(list, func(a, b Period) int { return cmp.Compare(a.Priority, b.Priority) })
	return list
}

// Validate returns the mistakes in a configuration's periods.
func Validate(c *v1beta1.KubeletConfiguration) (errs []error) {
	all, critical := c.ShutdownGracePeriod.Duration, c.ShutdownGracePeriodCriticalPods.Duration
	for _, each := range []struct {
		field string
		value time.Duration
	}{{"shutdownGracePeriod", all}, {"shutdownGracePeriodCriticalPods", critical}} {
		if each.value < 0 || each.value > 0 && each.value < time.Second {
			errs = append(errs, fmt.Errorf("%s: %s: want 0, or 1s or more", each.field, each.value))
		}
	}
	if critical > all {
		errs = append(errs,
			fmt.Errorf("shutdownGracePeriodCriticalPods: %s: want at most shutdownGracePeriod, %s", critical, all))
	}
	if len(c.ShutdownGracePeriodByPodPriority) > 0 && (all > 0 || critical > 0) {
		errs = append(errs,
			fmt.Errorf("shutdownGracePeriodByPodPriority and shutdownGracePeriod: want one of them, not both"))
	}
	for _, p := range c.ShutdownGracePeriodByPodPriority {
		if p.ShutdownGracePeriodSeconds < 0 {
			errs = append(errs,
				fmt.Errorf("shutdownGracePeriodByPodPriority: priority %d: %d seconds: want 0 or more", p.Priority,
					p.ShutdownGracePeriodSeconds))
		}
	}
	return errs
}

// total is the sum of all periods, one after the other.
func total(periods []Period) (sum time.Duration) {
	for _, p := range periods {
		sum += p.Within
	}
	return sum
}

// groupOf has the pods that end together.
type groupOf struct {
	Period
	pods []*v1.Pod
}

// group assigns each pod to the highest period that is not above its priority. Pods below all
// periods end with the first one.
func group(periods []Period, pods []*v1.Pod) []groupOf {
	groups := make([]groupOf, len(periods))
	for i, p := range periods {
		groups[i].Period = p
	}
	for _, pod := range pods {
		priority := int32(0)
		if pod.Spec.Priority != nil {
			priority = *pod.Spec.Priority
		}
		at := 0
		for i, p := range periods {
			if p.Priority <= priority {
				at = i
			}
		}
		groups[at].pods = append(groups[at].pods, pod)
	}
	return groups
}
