package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// figure is one that was measured: once, or once each time.
type figure struct {
	what   string
	unit   string
	values []float64
}

// one is a figure that was measured once.
func one(what, unit string, value float64) figure { return figure{what, unit, []float64{value}} }

// percentiles are two figures of how long something took: the median and the 99th percentile.
func percentiles(what string, all []time.Duration) []figure {
	slices.Sort(all)
	return []figure{one(what+", p50", "s", percentile(all, 0.5).Seconds()), one(what+", p99", "s", percentile(all, 0.99).Seconds())}
}

// percentile returns the least of sorted values that is no less than a share of them.
func percentile(sorted []time.Duration, share float64) time.Duration {
	return sorted[max(0, int(math.Ceil(share*float64(len(sorted))))-1)]
}

// merge adds what was measured again to what was measured before.
func merge(before, again []figure) []figure {
	for _, f := range again {
		if i := slices.IndexFunc(before, func(b figure) bool { return b.what == f.what }); i >= 0 {
			before[i].values = append(before[i].values, f.values...)
		} else {
			before = append(before, f)
		}
	}
	return before
}

// String shows the median, and of several values the least and the greatest.
func (f figure) String() string {
	if len(f.values) < 2 {
		return short(f.median())
	}
	return fmt.Sprintf("%s (%s to %s)", short(f.median()), short(slices.Min(f.values)), short(slices.Max(f.values)))
}

func (f figure) median() float64 {
	sorted := slices.Sorted(slices.Values(f.values))
	return sorted[(len(sorted)-1)/2]
}

// short shows three digits, or all of those before the point.
func short(v float64) string {
	switch a := math.Abs(v); {
	case a >= 99.95:
		return fmt.Sprintf("%.0f", v)
	case a >= 9.995:
		return fmt.Sprintf("%.1f", v)
	case a >= 0.9995 || a == 0:
		return fmt.Sprintf("%.2f", v)
	default:
		return fmt.Sprintf("%.3f", v)
	}
}

// table has a row for each figure, a column for each side, and the ratio of Barque's median to
// upstream's.
func table(whose []string, of map[string][]figure) string {
	var order []figure
	for _, w := range whose {
		for _, f := range of[w] {
			if !slices.ContainsFunc(order, func(o figure) bool { return o.what == f.what }) {
				order = append(order, f)
			}
		}
	}
	var out strings.Builder
	fmt.Fprintf(&out, "| figure | %s | ratio |\n%s|\n", strings.Join(whose, " | "), strings.Repeat("|---", len(whose)+2))
	for _, o := range order {
		cells := []string{o.what + ", " + o.unit}
		medians := map[string]float64{}
		for _, w := range whose {
			cell := ""
			if i := slices.IndexFunc(of[w], func(f figure) bool { return f.what == o.what }); i >= 0 {
				cell, medians[w] = of[w][i].String(), of[w][i].median()
			}
			cells = append(cells, cell)
		}
		ratio := ""
		if theirs, ours := medians[upstream], medians[barque]; theirs > 0 && ours > 0 {
			ratio = short(ours/theirs) + "x"
		}
		fmt.Fprintf(&out, "| %s |\n", strings.Join(append(cells, ratio), " | "))
	}
	return out.String()
}
