package nodelifecycle

import (
	"time"
)

// zoneState says how much of a zone is gone.
type zoneState int

const (
	normal            zoneState = iota
	partialDisruption           // a large share of the nodes
	fullDisruption              // all nodes
)

// nodeCounts are the nodes of one zone by their health. Nothing was heard yet of the unheard ones,
// because this process has just started. They count neither as gone nor as ready.
type nodeCounts struct{ ready, gone, unheard int }

// nodeHealth is how one node counts in its zone.
type nodeHealth int

const (
	ready nodeHealth = iota
	gone
	unheard
)

func (c nodeCounts) with(h nodeHealth) nodeCounts {
	switch h {
	case ready:
		c.ready++
	case unheard:
		c.unheard++
	case gone:
		c.gone++
	}
	return c
}

func (c nodeCounts) state(s Settings) zoneState {
	switch total := c.ready + c.gone; {
	case c.gone > 0 && c.ready == 0 && c.unheard == 0:
		return fullDisruption
	case c.gone > 2 && float64(c.gone)/float64(total) >= s.UnhealthyShare:
		return partialDisruption
	}
	return normal
}

// allGone reports whether no zone has a node left: then it is the leader that is cut off.
func allGone(zones map[string]nodeCounts) bool {
	for _, c := range zones {
		if c.ready > 0 || c.unheard > 0 || c.gone == 0 {
			return false
		}
	}
	return len(zones) > 0
}

// rate is how many nodes of a zone may get an evicting taint per second.
func (c nodeCounts) rate(s Settings) float64 {
	switch {
	case c.state(s) != partialDisruption:
		return s.EvictionRate
	case c.ready+c.gone > s.LargeZone:
		return s.SecondaryEvictionRate
	}
	return 0
}

// budget hands out permissions at a rate that may change: one at once, then one per 1/rate.
type budget struct {
	last time.Time
}

func (b *budget) take(rate float64, now time.Time) bool {
	if rate <= 0 {
		return false
	}
	if !b.last.IsZero() && now.Sub(b.last) < time.Duration(float64(time.Second)/rate) {
		return false
	}
	b.last = now
	return true
}
