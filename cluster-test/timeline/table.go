package timeline

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// Table writes the lines for people.
func (r *Run) Table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "FAULT\tTIMES\tWRITE GAP median\tworst\tWHOLE AGAIN median\tworst")
	for _, l := range r.Lines() {
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%s\n", l.Kind, l.Times, gap(l.GapMedian, l.Unheard),
			gap(l.GapWorst, l.Unheard), short(l.SettledMedian), short(l.SettledMax))
	}
	return t.Flush()
}

// short is a duration with the digits that matter: milliseconds, from ten seconds on tenths of
// a second.
func short(d time.Duration) string {
	if d >= 10*time.Second {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Millisecond).String()
}

// gap is a write gap; a dash where no client wrote.
func gap(d time.Duration, unheard bool) string {
	if unheard {
		return "-"
	}
	return short(d)
}
