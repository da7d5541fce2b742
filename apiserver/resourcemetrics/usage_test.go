package resourcemetrics

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// at is a point so many seconds after now.
func at(seconds, cpu float64, start time.Time) point {
	return point{cpu: uint64(cpu * 1e9), memory: 1000, at: now.Add(time.Duration(seconds * float64(time.Second))),
		start: start, has: complete}
}

func TestRates(t *testing.T) {
	long := now.Add(-time.Hour)
	none := usage{}
	of := func(cores float64, window time.Duration) usage {
		return usage{cpu: uint64(cores * 1e9), memory: 1000, window: window}
	}
	for name, test := range map[string]struct {
		points []point
		want   usage // of the last; without its time
	}{
		"one sample":  {[]point{at(0, 100, long)}, none},
		"two samples": {[]point{at(0, 100, long), at(15, 107.5, long)}, of(0.5, 15*time.Second)},
		"no start is told": {[]point{at(0, 100, time.Time{}), at(15, 107.5, time.Time{})},
			of(0.5, 15*time.Second)},
		"the same sample again": {[]point{at(0, 100, long), at(15, 107.5, long), at(15, 107.5, long)},
			of(0.5, 15*time.Second)},
		"only the same sample": {[]point{at(0, 100, long), at(0, 100, long)}, none},
		"idle":                 {[]point{at(0, 100, long), at(15, 100, long)}, of(0, 15*time.Second)},
		"restarted, 12 s ago": {[]point{at(0, 100, long), at(15, 6, now.Add(3*time.Second))},
			of(0.5, 12*time.Second)},
		"restarted with more use than was": {[]point{at(0, 1, long), at(15, 6, now.Add(3*time.Second))},
			of(0.5, 12*time.Second)},
		"restarted, 3 s ago":              {[]point{at(0, 100, long), at(15, 2, now.Add(12*time.Second))}, none},
		"restarted, and no start is told": {[]point{at(0, 100, time.Time{}), at(15, 2, time.Time{})}, none},
		"a node whose clock was set back": {[]point{at(15, 100, long), at(0, 107, long)}, none},
		"memory is missing": {
			[]point{at(0, 100, long), {cpu: 1, at: now.Add(time.Minute), has: seenCPU}}, none},
	} {
		t.Run(name, func(t *testing.T) {
			pod := types.NamespacedName{Namespace: "ns", Name: "p"}
			var s state
			for _, p := range test.points {
				node := p
				node.start = time.Time{}
				s = s.advance(
					&sample{node: at(p.at.Sub(now).Seconds(), 0, time.Time{}),
						pods: map[types.NamespacedName]map[string]point{pod: {"c": p}}}, p.at)
			}
			got := none
			if u := s.pods[pod]["c"].usage; u != nil {
				got = *u
				if last := test.points[len(test.points)-1].at; !got.at.Equal(last) {
					t.Errorf("it is of %s, not of %s", got.at, last)
				}
				got.at = time.Time{}
			}
			if got != test.want {
				t.Errorf("%+v, want %+v", got, test.want)
			}
		})
	}
}

// A container that a kubelet no longer reports is dropped with the next sample.
func TestForgets(t *testing.T) {
	gone := types.NamespacedName{Namespace: "ns", Name: "gone"}
	s := state{}.advance(
		&sample{node: at(0, 1, time.Time{}),
			pods: map[types.NamespacedName]map[string]point{gone: {"c": at(0, 1, time.Time{})}}}, now)
	s = s.advance(&sample{node: at(15, 2, time.Time{})}, now)
	if len(s.pods) != 0 || s.node.usage == nil {
		t.Errorf("%+v", s)
	}
}
