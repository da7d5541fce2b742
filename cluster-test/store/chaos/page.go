package main

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/barque/barque/cluster-test/store"
	"github.com/barque/barque/cluster-test/timeline"
)

// samples are the writes of all writers, for the page.
type samples struct {
	mu  sync.Mutex
	all []timeline.Sample
}

func (s *samples) add(m *store.Member, begin, end time.Duration, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, timeline.Sample{Server: m.Name, Begin: begin, End: end, OK: ok})
}

// page is what the run has shown, with the faults drawn against the writes.
func (r *run) page(repeat string) *timeline.Run {
	p := &timeline.Run{
		Title:   fmt.Sprintf("Barque's store under faults, seed %d, log in %s", r.cfg.Seed, r.cfg.options.LogStore),
		Repeat:  repeat,
		Verdict: r.failures,
		Facts:   []string{r.summary()},
		Length:  time.Since(r.start),
		Samples: r.samples.all,
		Writing: r.writing,
	}
	for _, m := range r.group.Members() {
		p.Servers = append(p.Servers, m.Name)
	}
	slices.Sort(p.Servers)
	p.Facts = append(p.Facts, fmt.Sprintf("longest time without an acknowledged write: %v", p.Longest().Round(time.Millisecond)))
	for _, rec := range r.records {
		p.Spans = append(p.Spans, timeline.Span{Kind: rec.fault.name, Note: rec.target + " led; " + rec.note, Begin: rec.begin, End: rec.end, Settled: rec.settled})
	}
	return p
}
