package sim

import (
	"sync"
	"time"
)

// The bounds within which clocks and timers are wrong.
const (
	maxOffset = 2 * time.Second // of a wall clock, when it starts and after a jump
	maxDrift  = 0.02            // wall clocks run up to 2 % too fast or too slow
	maxTimer  = 0.3             // and timers of Raft up to 30 %
)

// clock is the wall clock of one server.
type clock struct {
	rate float64

	mu   sync.Mutex
	sets []setting // the newest is the last
}

// setting is that a clock was set.
type setting struct{ when, to time.Time }

func newClock(offset time.Duration, drift float64) *clock {
	c := &clock{rate: 1 + drift}
	c.jump(offset)
	return c
}

// jump sets the clock that far from the true time.
func (c *clock) jump(offset time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	c.sets = append(c.sets, setting{now, now.Add(offset)})
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.show(len(c.sets)-1, time.Now())
}

// show returns the clock's time at a moment after it was set, before it is set again.
func (c *clock) show(set int, at time.Time) time.Time {
	s := c.sets[set]
	return s.to.Add(time.Duration(float64(at.Sub(s.when)) * c.rate))
}

// span returns the least and the most that the clock showed between two times.
func (c *clock) span(from, to time.Time) (least, most time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.sets {
		begin, end := c.sets[i].when, to
		if i+1 < len(c.sets) && c.sets[i+1].when.Before(to) {
			end = c.sets[i+1].when
		}
		if begin.Before(from) {
			begin = from
		}
		if end.Before(begin) {
			continue
		}
		if first := c.show(i, begin); least.IsZero() || first.Before(least) {
			least = first
		}
		if last := c.show(i, end); last.After(most) {
			most = last
		}
	}
	return least, most
}

// clocks implements check.Clocks.
type clocks struct {
	start time.Time // of the record
	all   []*clock
}

func (c *cluster) clocks(start time.Time) *clocks {
	all := &clocks{start: start}
	for _, s := range c.servers {
		all.all = append(all.all, s.clock)
	}
	return all
}

func (c *clocks) Earliest(from, to int64) int64 {
	var earliest time.Time
	for _, each := range c.all {
		if least, _ := each.span(c.start.Add(time.Duration(from)), c.start.Add(time.Duration(to))); earliest.IsZero() ||
			least.Before(earliest) {
			earliest = least
		}
	}
	return earliest.UnixMilli()
}

func (c *clocks) Latest(by int64) int64 {
	var latest time.Time
	for _, each := range c.all {
		if _, most := each.span(c.start, c.start.Add(time.Duration(by))); most.After(latest) {
			latest = most
		}
	}
	return latest.UnixMilli()
}
