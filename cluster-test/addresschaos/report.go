package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

// report writes the results of the run.
func (r *run) report(w io.Writer) {
	type line struct {
		name      string
		times     int
		api, most []time.Duration
		stated    time.Duration
	}
	var lines []*line
	for _, one := range r.results {
		i := slices.IndexFunc(lines, func(l *line) bool { return l.name == one.fault.name })
		if i < 0 {
			i = len(lines)
			lines = append(lines, &line{name: one.fault.name, stated: one.fault.stated})
		}
		l := lines[i]
		l.times++
		l.api, l.most = append(l.api, one.api), append(l.most, one.most)
	}
	slices.SortFunc(lines, func(a, b *line) int { return int(slices.Max(b.most) - slices.Max(a.most)) })
	asked, heard := r.watcher.Counts()
	fmt.Fprintf(w, "\n%d servers, %d agents, %d addresses, %d faults of %d kinds; %d questions, %d claims heard\n\n",
		servers, agents, len(r.addrs), len(r.results), len(lines), asked, heard)
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "fault\ttimes\tno answer: API, median\tworst\tServices, median\tworst\tstated\t")
	for _, l := range lines {
		stated := "-"
		if l.stated > 0 {
			stated = l.stated.String()
		}
		fmt.Fprintf(t, "%s\t%d\t%v\t%v\t%v\t%v\t%s\t\n", l.name, l.times, round(median(l.api)),
			round(slices.Max(l.api)), round(median(l.most)), round(slices.Max(l.most)), stated)
	}
	t.Flush()
	for _, f := range r.Failures() {
		fmt.Fprintf(w, "\nFAILURE %s\n", f)
	}
	if !r.Failed() {
		fmt.Fprintln(w, "\nnever two machines answered for one address")
	}
}

func median(all []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)/2]
}
