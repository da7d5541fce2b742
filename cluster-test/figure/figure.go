// Package figure holds the figures of benchmarks of two sides, and shows them side by side: `make
// bench-scheduler`, `make bench-node`.
package figure

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Figure is one that was measured: once, or once each time.
type Figure struct {
	What   string
	Unit   string
	Values []float64
	// Spread shows the median, the least and the greatest value in place of all.
	Spread bool
}

// One is a figure that was measured once.
func One(what, unit string, value float64) Figure {
	return Figure{What: what, Unit: unit, Values: []float64{value}}
}

// Spread is a figure that is measured again and again: see Merge.
func Spread(what, unit string, value float64) Figure {
	return Figure{What: what, Unit: unit, Values: []float64{value}, Spread: true}
}

// Percentiles are two figures of how long something took: the median and the 99th percentile. There
// are none of nothing.
func Percentiles(what, unit string, all []time.Duration) []Figure {
	if len(all) == 0 {
		return nil
	}
	slices.Sort(all)
	in := func(d time.Duration) float64 {
		if unit == "ms" {
			return d.Seconds() * 1000
		}
		return d.Seconds()
	}
	return []Figure{One(what+", p50", unit, in(percentile(all, 0.5))),
		One(what+", p99", unit, in(percentile(all, 0.99)))}
}

// percentile returns the least of sorted values that is no less than a share of them.
func percentile(sorted []time.Duration, share float64) time.Duration {
	return sorted[max(0, int(math.Ceil(share*float64(len(sorted))))-1)]
}

// Merge adds the figures of a repeated measurement to the earlier ones.
func Merge(before, again []Figure) []Figure {
	for _, f := range again {
		if i := slices.IndexFunc(before, func(b Figure) bool { return b.What == f.What }); i >= 0 {
			before[i].Values = append(before[i].Values, f.Values...)
		} else {
			before = append(before, f)
		}
	}
	return before
}

// String shows all values, in the order in which they were measured, or their spread.
func (f Figure) String() string {
	if f.Spread {
		return Range(f.Values, short)
	}
	var out []string
	for _, v := range f.Values {
		out = append(out, short(v))
	}
	return strings.Join(out, " / ")
}

// Median is the lesser one of the two in the middle of an even number of values.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[(len(sorted)-1)/2]
}

// Range shows the median, and the least and the greatest value if there are several values.
func Range(values []float64, show func(float64) string) string {
	switch len(values) {
	case 0:
		return ""
	case 1:
		return show(values[0])
	}
	return fmt.Sprintf("%s (%s to %s)", show(Median(values)), show(slices.Min(values)), show(slices.Max(values)))
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

// Table shows the figures of a case as rows: one column for each side, and how many times the first
// side's median the last one's is.
func Table(name string, whose []string, of map[string][]Figure) string {
	var order []Figure
	for _, w := range whose {
		for _, f := range of[w] {
			if !slices.ContainsFunc(order, func(o Figure) bool { return o.What == f.What }) {
				order = append(order, f)
			}
		}
	}
	var out strings.Builder
	for _, o := range order {
		cells := []string{name, strings.TrimSuffix(o.What+", "+o.Unit, ", ")}
		first, last := math.NaN(), math.NaN()
		for i, w := range whose {
			at := slices.IndexFunc(of[w], func(f Figure) bool { return f.What == o.What })
			if at < 0 {
				cells = append(cells, "")
				continue
			}
			cells = append(cells, of[w][at].String())
			switch m := Median(of[w][at].Values); i {
			case 0:
				first = m
			case len(whose) - 1:
				last = m
			}
		}
		ratio := ""
		if r := last / first; !math.IsNaN(r) && !math.IsInf(r, 0) {
			ratio = short(r) + "x"
		}
		fmt.Fprintf(&out, "| %s |\n", strings.Join(append(cells, ratio), " | "))
	}
	return out.String()
}

// Header is that of the tables.
func Header(whose []string) string {
	return "| case | figure | " + strings.Join(whose, " | ") + " | ratio |\n" + strings.Repeat("|---", len(whose)+3) +
		"|"
}
