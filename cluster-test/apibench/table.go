package main

import (
	"fmt"
	"slices"

	"github.com/barque/barque/cluster-test/figure"
)

// header is that of the table of cases. A figure that was measured several times is the median,
// with the least and the greatest one in parentheses.
const header = `| case | kube-apiserver: a second, p50 | CPU s for 1,000 of servers + clients | Barque: a second, p50 | CPU s for 1,000 | as many | CPU |
|---|---|---|---|---|---|---|`

// row shows a case. The ratios are those of the medians, of Barque to kube-apiserver.
func row(name string, theirs, ours []sample) string {
	ratio := func(of func(sample) float64) float64 { return middle(ours, of) / middle(theirs, of) }
	return fmt.Sprintf("| %s | %s | %s | %s | %s | %.1fx | %.2fx |", name, rates(theirs), costs(theirs), rates(ours),
		costs(ours),
		ratio(func(s sample) float64 { return s.perSecond }), ratio(func(s sample) float64 { return s.cpu.Seconds() }))
}

func values(samples []sample, of func(sample) float64) (out []float64) {
	for _, s := range samples {
		out = append(out, of(s))
	}
	return out
}

func middle(samples []sample, of func(sample) float64) float64 {
	return figure.Median(values(samples, of))
}

// rates shows how often something was answered, and how fast.
func rates(samples []sample) string {
	text := figure.Range(values(samples, func(s sample) float64 { return s.perSecond }), digits)
	took := func(s sample) float64 { return s.median.Seconds() * 1000 }
	if middle(samples, took) > 0 {
		text += ", " + figure.Range(values(samples, took), tenths) + " ms"
	}
	if most := slices.Max(values(samples, func(s sample) float64 { return s.most.Seconds() * 1000 })); most > 0 {
		text += ", at most " + tenths(most) + " ms"
	}
	if throughput := middle(samples, func(s sample) float64 { return s.megabytes }); throughput > 0 {
		text += ", " + digits(throughput) + " MB/s"
	}
	failed := 0
	for _, s := range samples {
		failed += s.failed
	}
	if failed > 0 {
		text += fmt.Sprintf(" (%d failed)", failed)
	}
	return text
}

// costs shows the CPU time of the servers, the median of the clients', and the servers' writes.
func costs(samples []sample) string {
	text := figure.Range(values(samples, func(s sample) float64 { return s.cpu.Seconds() }), significant) +
		" + " + significant(middle(samples, func(s sample) float64 { return s.clients.Seconds() }))
	if writes := middle(samples, func(s sample) float64 { return s.writes }); writes > 0 {
		text += fmt.Sprintf(", %.2f writes", writes)
	}
	return text
}

func significant(v float64) string { return fmt.Sprintf("%.3g", v) }

func tenths(v float64) string { return fmt.Sprintf("%.1f", v) }

func digits(v float64) string {
	if v < 100 {
		return tenths(v)
	}
	return fmt.Sprintf("%.0f", v)
}
