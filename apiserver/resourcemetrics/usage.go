package resourcemetrics

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// fresh is the shortest life of a container for a meaningful rate since its start.
const fresh = 10 * time.Second

// usage is the usage of a node or a container.
type usage struct {
	cpu    uint64 // nanocores, the mean of the window
	memory uint64 // working set in bytes
	at     time.Time
	window time.Duration // before at
}

// entry is the newest point of a node or a container, and the usage computed from it and an
// earlier one.
type entry struct {
	point point
	usage *usage // nil while there is one point only
}

// state has the figures of one node.
type state struct {
	heard time.Time // by this server's clock, when it last answered; zero while it never has
	node  entry
	pods  map[types.NamespacedName]map[string]entry
}

// advance returns the state after another sample.
func (s state) advance(next *sample, now time.Time) state {
	out := state{heard: now, node: s.node.advance(next.node, time.Time{}),
		pods: make(map[types.NamespacedName]map[string]entry, len(next.pods))}
	before := s.node.point.at
	for pod, containers := range next.pods {
		was := s.pods[pod]
		is := make(map[string]entry, len(containers))
		for name, p := range containers {
			is[name] = was[name].advance(p, before)
		}
		out.pods[pod] = is
	}
	return out
}

// advance returns the entry after another point. before is when the node was sampled before: a
// container that has started since has a rate from its start on.
func (e entry) advance(next point, before time.Time) entry {
	if next.has != complete {
		return entry{}
	}
	same := e.point.has == complete && e.point.cpu <= next.cpu && !next.start.After(e.point.at)
	switch {
	case same && next.at.After(e.point.at):
		return entry{next, rate(e.point.cpu, e.point.at, next)}
	case same && next.at.Equal(e.point.at):
		return e // the kubelet has reported the same sample again
	case !before.IsZero() && next.start.After(before) && next.at.Sub(next.start) >= fresh:
		return entry{next, rate(0, next.start, next)}
	default:
		return entry{point: next}
	}
}

// rate is the use since an earlier moment.
func rate(cpu uint64, since time.Time, now point) *usage {
	window := now.at.Sub(since)
	return &usage{cpu: uint64(float64(now.cpu-cpu) / window.Seconds()), memory: now.memory, at: now.at, window: window}
}
