package mvcc

import (
	"math/bits"
	"sync/atomic"
)

// Stats describe history and its watchers.
type Stats struct {
	Compacted uint64 // history holds the revisions after this one
	Revisions int    // in history
	// Oldest is the time of the oldest of them, as its command carried it, in Unix milliseconds; 0
	// when there is none.
	Oldest       int64
	HistoryBytes int

	Watchers int
	Events   uint64 // handed to watchers so far
	Expired  uint64 // watches that ended so far because history no longer held their next revision
	// Lag counts the batches handed to watchers so far by how many revisions newer than the batch's
	// there were: Lag[0] those with none, and Lag[i] those with 2^(i-1) up to 2^i-1, the last one
	// also those with more. LagSum is the sum of all.
	Lag    [LagClasses]uint64
	LagSum uint64
}

// LagClasses is how many classes Stats.Lag has.
const LagClasses = 18

// Stats returns numbers for metrics and status.
func (s *Store) Stats() Stats {
	l := s.log
	l.mu.RLock()
	stats := Stats{Compacted: l.compacted, Revisions: len(l.entries), HistoryBytes: l.bytes, Watchers: l.watchers}
	if len(l.entries) > 0 {
		stats.Oldest = l.entries[0].at
	}
	l.mu.RUnlock()
	stats.Events, stats.Expired, stats.LagSum = l.counts.events.Load(), l.counts.compacted.Load(),
		l.counts.lagSum.Load()
	for i := range stats.Lag {
		stats.Lag[i] = l.counts.lag[i].Load()
	}
	return stats
}

// counts are of the batches that watchers got.
type counts struct {
	events, compacted, lagSum atomic.Uint64
	lag                       [LagClasses]atomic.Uint64
}

func (c *counts) delivered(events int, lag uint64) {
	c.events.Add(uint64(events))
	c.lag[min(bits.Len64(lag), LagClasses-1)].Add(1)
	if lag > 0 {
		c.lagSum.Add(lag)
	}
}
