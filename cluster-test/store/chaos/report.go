package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// report writes what the run has shown: a table of the faults, the time line, and what is wrong.
func (r *run) report(w io.Writer) {
	fmt.Fprintf(w, "\n%s\n%d writes acknowledged in %v\n", r.summary(), len(r.acks.at), time.Since(r.start).Round(time.Second))
	r.table(w)
	if r.missed > 0 {
		fmt.Fprintf(w, "\n%d armed fault points were not reached in %v: others were armed instead\n", r.missed, armedFor)
	}
	r.timeline(w)
	for _, f := range r.failures {
		fmt.Fprintf(w, "\nFAILURE %s\n", f)
	}
	if len(r.failures) == 0 {
		fmt.Fprintln(w, "\nno fault of the store was found")
	}
}

// summary tells in a line what was judged.
func (r *run) summary() string {
	n := r.judged
	return fmt.Sprintf("%d transactions (%d of unknown outcome), %d answers checked (%d could not be), %d batches of %d watches",
		n.Writes, n.Unknown, n.Checked, n.Skipped, n.Events, n.Watches)
}

// table has a line for each kind of fault, in the order of allFaults.
func (r *run) table(w io.Writer) {
	byName := make(map[string][]record)
	for _, rec := range r.records {
		byName[rec.fault.name] = append(byName[rec.fault.name], rec)
	}
	fmt.Fprintf(w, "\n%-24s %5s  %-23s  %s\n", "fault", "times", "longest write gap", "until whole again")
	fmt.Fprintf(w, "%-24s %5s  %11s %11s  %11s %11s\n", "", "", "median", "longest", "median", "longest")
	for _, f := range r.cfg.Faults {
		records := byName[f.name]
		if len(records) == 0 {
			continue
		}
		var gaps, whole []time.Duration
		for _, rec := range records {
			gaps, whole = append(gaps, rec.gap), append(whole, rec.settled-rec.end)
		}
		fmt.Fprintf(w, "%-24s %5d  %11s %11s  %11s %11s\n", f.name, len(records), median(gaps), longest(gaps), median(whole), longest(whole))
	}
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2].Round(time.Millisecond)
}

func longest(d []time.Duration) time.Duration { return slices.Max(d).Round(time.Millisecond) }

const (
	// partOfLine is the time of one character of the time line, and lineParts how many a line has.
	partOfLine = 250 * time.Millisecond
	lineParts  = 80
)

// timeline draws how many writes were acknowledged, against what the best of times had, and under
// it where faults were on.
func (r *run) timeline(w io.Writer) {
	counts := r.acks.counts(partOfLine)
	if len(counts) == 0 {
		return
	}
	levels := []rune("▁▂▃▄▅▆▇█")
	best := slices.Sorted(slices.Values(counts))[len(counts)*9/10]
	fmt.Fprintf(w, "\nwrites in each %v, █ is %d, a blank is none; below: a fault begins (letter), is on (-), the group is whole (.)\n",
		partOfLine, best)
	marks, legend := r.marks(len(counts))
	for from := 0; from < len(counts); from += lineParts {
		to := min(from+lineParts, len(counts))
		line := make([]rune, 0, lineParts)
		for _, n := range counts[from:to] {
			if n == 0 {
				line = append(line, ' ')
			} else {
				line = append(line, levels[min(n*len(levels)/(best+1), len(levels)-1)])
			}
		}
		fmt.Fprintf(w, "%6.1fs %s\n%8s%s\n", (time.Duration(from) * partOfLine).Seconds(), string(line), "", strings.TrimRight(string(marks[from:to]), " "))
	}
	fmt.Fprintln(w, legend)
}

// marks is the lower line, and its legend.
func (r *run) marks(parts int) (marks []byte, legend string) {
	marks = []byte(strings.Repeat(" ", parts))
	put := func(at time.Duration, mark byte) {
		if i := int(at / partOfLine); i < parts && (marks[i] == ' ' || mark != '-' && mark != '.') {
			marks[i] = mark
		}
	}
	var s strings.Builder
	for i, rec := range r.records {
		letter := byte('a' + i%26)
		put(rec.begin, letter)
		for at := rec.begin; at < rec.end; at += partOfLine {
			put(at, '-')
		}
		put(rec.settled, '.')
		fmt.Fprintf(&s, "  %c %7.1fs  %s: %s; gap %v, whole after %v\n", letter, rec.begin.Seconds(), rec.fault.name, rec.note,
			rec.gap.Round(time.Millisecond), (rec.settled - rec.end).Round(time.Millisecond))
	}
	return marks, s.String()
}
