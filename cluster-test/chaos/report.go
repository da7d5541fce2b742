package main

import (
	"fmt"
	"io"
	"slices"

	"github.com/barque/barque/cluster-test/timeline"
)

// report writes the results of the run.
func (r *run) report(w io.Writer) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := timeline.Run{Title: fmt.Sprintf("chaos, seed %d", r.cfg.Seed), Repeat: r.cfg.repeat}
	for _, s := range r.servers {
		t.Servers = append(t.Servers, s.Name)
	}
	orderly, forced := r.evictions.Counts()
	r.pods.mu.Lock()
	t.Facts = []string{
		fmt.Sprintf("%d servers, %d agents, %d faults of %d kinds", servers, agents, len(r.Spans()), len(r.cfg.Faults)),
		fmt.Sprintf(
			"%d writes of the probe acknowledged, %d calls of clients judged, %d calls of the Service (%d failed)",
			r.acked, r.calls, r.pods.calls, r.pods.bad),
		fmt.Sprintf("%d pods evicted in order and %d removed by force, each after something had happened to its node",
			orderly, forced),
		fmt.Sprintf("changes of pods looked at, of the server whose watch told of the fewest: %d",
			r.fewestPodChanges()),
	}
	r.pods.mu.Unlock()
	return r.Report(w, r.cfg.page, t)
}

// fewestPodChanges is the least number of changes of pods that a server's watch has reported; mu
// is held.
func (r *run) fewestPodChanges() int {
	if len(r.podChanges) < len(r.servers) || len(r.podChanges) == 0 {
		return 0
	}
	return slices.Min(r.podChanges)
}
