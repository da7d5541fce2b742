package main

import (
	"fmt"
	"slices"
	"time"
)

// figure is one that was measured, on each side again and again.
type figure struct {
	name  string // with the unit
	value float64
}

// figures are those of one side, measured once, always the same ones in the same order.
type figures []figure

func (f *figures) add(name string, value float64) { *f = append(*f, figure{name, value}) }

// times adds the median and the 99th percentile of durations, in units.
func (f *figures) times(name string, all []time.Duration, unit time.Duration, symbol string) {
	f.add(name+", p50, "+symbol, float64(percentile(all, 50))/float64(unit))
	f.add(name+", p99, "+symbol, float64(percentile(all, 99))/float64(unit))
}

// percentile returns the smallest duration that so many of a hundred do not exceed. It is 0 of
// none.
func percentile(all []time.Duration, p int) time.Duration {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	return sorted[(len(sorted)*p+99)/100-1]
}

// table prints the medians of both sides in Markdown, and how many times as much ours is. Of
// theirs there may be none.
func table(title, their string, theirs, ours []figures) {
	fmt.Printf("\n| %s | %s | Barque | Barque : %[2]s |\n|---|---|---|---|\n", title, their)
	for i := range ours[0] {
		our := median(ours, i)
		if len(theirs) == 0 {
			fmt.Printf("| %s | | %s | |\n", ours[0][i].name, short(our))
			continue
		}
		their := median(theirs, i)
		ratio := ""
		if their > 0 {
			ratio = fmt.Sprintf("%.2f", our/their)
		}
		fmt.Printf("| %s | %s | %s | %s |\n", ours[0][i].name, short(their), short(our), ratio)
	}
}

func median(runs []figures, i int) float64 {
	var values []float64
	for _, run := range runs {
		values = append(values, run[i].value)
	}
	slices.Sort(values)
	return values[len(values)/2]
}

// short shows three digits, and all digits of a number above 1,000.
func short(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	default:
		return fmt.Sprintf("%.3g", v)
	}
}
