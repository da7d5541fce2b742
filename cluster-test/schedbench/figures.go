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

// percentiles are two figures of how long something took: the median and the 99th percentile. There
// are none of nothing.
func percentiles(what, unit string, all []time.Duration) []figure {
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
	return []figure{one(what+", p50", unit, in(percentile(all, 0.5))), one(what+", p99", unit, in(percentile(all, 0.99)))}
}

// percentile returns the least of sorted values that is no less than a share of them.
func percentile(sorted []time.Duration, share float64) time.Duration {
	return sorted[max(0, int(math.Ceil(share*float64(len(sorted))))-1)]
}

func rate(n int, took time.Duration) float64 { return float64(n) / took.Seconds() }

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

// String shows all values.
func (f figure) String() string {
	var out []string
	for _, v := range f.values {
		out = append(out, short(v))
	}
	return strings.Join(out, " / ")
}

func (f figure) median() float64 {
	if len(f.values) == 0 {
		return math.NaN()
	}
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

// table shows the figures of a case as rows: one column for each side, and how many times the first
// side's median the last one's is.
func table(name string, whose []string, of map[string][]figure) string {
	var order []figure
	for _, w := range whose {
		for _, f := range of[w] {
			if !slices.ContainsFunc(order, func(o figure) bool { return o.what == f.what }) {
				order = append(order, f)
			}
		}
	}
	var out strings.Builder
	for _, o := range order {
		cells := []string{name, strings.TrimSuffix(o.what+", "+o.unit, ", ")}
		first, last := math.NaN(), math.NaN()
		for i, w := range whose {
			at := slices.IndexFunc(of[w], func(f figure) bool { return f.what == o.what })
			if at < 0 {
				cells = append(cells, "")
				continue
			}
			cells = append(cells, of[w][at].String())
			switch m := of[w][at].median(); i {
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

// header is that of the tables.
func header(whose []string) string {
	return "| case | figure | " + strings.Join(whose, " | ") + " | ratio |\n" + strings.Repeat("|---", len(whose)+3) + "|"
}
