package main

import (
	"fmt"
	"io"
	"slices"

	"github.com/barque/barque/cluster-test/timeline"
)

// report writes the results of the run.
func (r *run) report(w io.Writer, page, repeat string) error {
	n := r.judged
	t := timeline.Run{
		Title:  fmt.Sprintf("Barque's store under faults, seed %d, log in %s", r.cfg.Seed, r.cfg.options.LogStore),
		Repeat: repeat,
		Facts: []string{
			fmt.Sprintf(
				"%d faults of %d kinds; %d armed fault points were not reached in %v, and others were armed instead",
				len(r.Spans()), len(r.cfg.Faults), r.missed, armedFor),
			fmt.Sprintf(
				"%d transactions (%d of unknown outcome), %d answers checked (%d could not be), %d batches of %d watches",
				n.Writes, n.Unknown, n.Checked, n.Skipped, n.Events, n.Watches),
		},
	}
	for _, m := range r.group.Members() {
		t.Servers = append(t.Servers, m.Name)
	}
	slices.Sort(t.Servers)
	return r.Report(w, page, t)
}
