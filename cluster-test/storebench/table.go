package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// series has the results of the repeats of one load.
type series struct {
	ops    []float64 // per second
	p50    []time.Duration
	p99    []time.Duration
	cpu    []float64 // microseconds for each, on all members together
	failed int
}

func (s *series) add(o outcome) {
	s.ops = append(s.ops, o.perSecond())
	s.p50 = append(s.p50, o.P50)
	s.p99 = append(s.p99, o.P99)
	s.cpu = append(s.cpu, cpuEach(o))
	s.failed += o.Errors
}

func cpuEach(o outcome) float64 { return o.CPU.Seconds() * 1e6 / float64(max(o.Ops, 1)) }

// cells are those of throughput and latency.
func (s *series) cells() string {
	failed := ""
	if s.failed > 0 {
		failed = fmt.Sprintf(" (%d failed)", s.failed)
	}
	return fmt.Sprintf("%.0f / %.0f / %.0f%s | %s | %s", slices.Min(s.ops), median(s.ops), slices.Max(s.ops), failed,
		short(median(s.p50)), short(median(s.p99)))
}

func median[T float64 | time.Duration](values []T) T {
	return slices.Sorted(slices.Values(values))[len(values)/2]
}

// table is one of loads, with etcd beside Barque where it was measured.
type table struct {
	title string
	unit  string // of the counts; empty: ops
	rows  []tableRow
}

type tableRow struct {
	what   string
	barque series
	etcd   *series // nil when it was not measured
}

// print writes the table in Markdown. Latencies are medians over the repeats.
func (t *table) print(w io.Writer) {
	compared := slices.ContainsFunc(t.rows, func(r tableRow) bool { return r.etcd != nil })
	unit := cmp.Or(t.unit, "ops")
	head := fmt.Sprintf("| | %s/s min / median / max | p50 | p99 | CPU µs each |", unit)
	if compared {
		head += fmt.Sprintf(" etcd: %s/s min / median / max | p50 | p99 | CPU µs each | %s/s, barque : etcd |", unit,
			unit)
	}
	fmt.Fprintf(w, "\n### %s\n\n%s\n|%s\n", t.title, head, strings.Repeat("---|", strings.Count(head, "|")-1))
	for _, r := range t.rows {
		fmt.Fprintf(w, "| %s | %s | %.3g |", r.what, r.barque.cells(), median(r.barque.cpu))
		switch {
		case r.etcd != nil:
			fmt.Fprintf(w, " %s | %.3g | %.1f |", r.etcd.cells(), median(r.etcd.cpu),
				median(r.barque.ops)/median(r.etcd.ops))
		case compared:
			fmt.Fprint(w, " | | | | |")
		}
		fmt.Fprintln(w)
	}
}

// short is a duration with three digits.
func short(d time.Duration) string {
	switch {
	case d >= time.Second:
		return fmt.Sprintf("%.3g s", d.Seconds())
	case d >= time.Millisecond:
		return fmt.Sprintf("%.3g ms", float64(d)/1e6)
	}
	return fmt.Sprintf("%.3g µs", float64(d)/1e3)
}
