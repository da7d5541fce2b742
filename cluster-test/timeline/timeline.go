// Package timeline shows the effects of faults on clients that wrote meanwhile: a table of the
// longest time without an acknowledged write for each kind of fault, and a page with the faults
// drawn against the writes.
//
// It owns no clock and runs nothing: the maker of the faults hands over spans, and the clients hand
// over samples, all in time since the run began. The page is one file that needs nothing else, so
// that it can be sent around.
//
// A gap is the pause that a client feels: the time from one acknowledgement to the next one of any
// client, through whatever server. It belongs to all faults that were on, or not yet overcome, in a
// part of it.
package timeline

import (
	"cmp"
	"slices"
	"time"
)

// Span is one fault.
type Span struct {
	Kind    string        // the rows of the table
	Targets []string      // the servers that it met; none: the network, or all
	Note    string        // the outcome
	Begin   time.Duration // it is on from here
	End     time.Duration // to here
	Settled time.Duration // all was well again; not before End
	Unheard bool          // no client wrote meanwhile: it has no gap
}

// Sample is one write of one client.
type Sample struct {
	Server string        // that it was sent to
	Begin  time.Duration // when it was sent
	End    time.Duration // when the answer came, or the client gave up
	OK     bool          // it was acknowledged
	// Aside is true of clients that do not go to another server when theirs fails. They show in its
	// lane, and count for no gap.
	Aside bool
}

// Run is all that a run has shown.
type Run struct {
	Title   string
	Repeat  string        // the command that repeats it
	Verdict []string      // the faults that were found; none: nothing
	Facts   []string      // lines about the work and the checks
	Servers []string      // in the order in which they are drawn; those of samples that are not here come after them
	Length  time.Duration // until the drawing ends
	Writing []Stretch     // when a client wanted to write, in order; other time is never red, and is not in Longest
	Spans   []Span
	Samples []Sample
}

// Stretch is a part of a run's time.
type Stretch struct{ From, To time.Duration }

// acks returns when writes were acknowledged, in order.
func (r *Run) acks() []time.Duration {
	at := make([]time.Duration, 0, len(r.Samples))
	for _, s := range r.Samples {
		if s.OK && !s.Aside {
			at = append(at, s.End)
		}
	}
	slices.Sort(at)
	return at
}

// Gaps returns for each span the longest time without an acknowledged write that has a part in it,
// up to when all was well again; 0 where no client wrote.
func (r *Run) Gaps() []time.Duration {
	acks := r.acks()
	gaps := make([]time.Duration, len(r.Spans))
	for i, s := range r.Spans {
		if !s.Unheard {
			gaps[i] = longest(acks, s.Begin, s.Settled)
		}
	}
	return gaps
}

// Longest returns the longest time without an acknowledged write while a client wanted to write.
func (r *Run) Longest() (gap time.Duration) {
	acks := r.acks()
	for _, s := range r.Writing {
		first, _ := slices.BinarySearch(acks, s.From)
		before := s.From
		for _, at := range acks[first:] {
			if at > s.To {
				break
			}
			gap = max(gap, at-before)
			before = at
		}
		gap = max(gap, s.To-before)
	}
	return gap
}

// longest returns the longest time between two acknowledgements that has a part between from and
// to. Time that goes on after to counts as far as to.
func longest(acks []time.Duration, from, to time.Duration) (gap time.Duration) {
	first, _ := slices.BinarySearch(acks, from)
	var before time.Duration
	if first > 0 {
		before = acks[first-1]
	}
	for _, at := range acks[first:] {
		if before >= to {
			return gap
		}
		gap = max(gap, at-before)
		before = at
	}
	// It may go on beyond the known samples.
	if before < to {
		gap = max(gap, to-before)
	}
	return gap
}

// Line is one kind of fault in the table.
type Line struct {
	Kind                      string
	Times                     int
	GapMedian, GapWorst       time.Duration // without an acknowledged write
	SettledMedian, SettledMax time.Duration // from the fault's end until all was well
	Unheard                   bool          // no client wrote meanwhile
}

// Lines returns the kinds of faults in the order in which they came first.
func (r *Run) Lines() []Line {
	var kinds []string
	gaps, settled, unheard := map[string][]time.Duration{}, map[string][]time.Duration{}, map[string]bool{}
	all := r.Gaps()
	for i, s := range r.Spans {
		if len(gaps[s.Kind]) == 0 {
			kinds = append(kinds, s.Kind)
		}
		gaps[s.Kind] = append(gaps[s.Kind], all[i])
		settled[s.Kind] = append(settled[s.Kind], s.Settled-s.End)
		unheard[s.Kind] = s.Unheard
	}
	lines := make([]Line, 0, len(kinds))
	for _, k := range kinds {
		lines = append(lines,
			Line{k, len(gaps[k]), Median(gaps[k]), slices.Max(gaps[k]), Median(settled[k]), slices.Max(settled[k]),
				unheard[k]})
	}
	return lines
}

// Median returns the middle one, of two the larger; 0 of none.
func Median[T cmp.Ordered](values []T) T {
	if len(values) == 0 {
		var none T
		return none
	}
	return slices.Sorted(slices.Values(values))[len(values)/2]
}

// servers returns all in the order in which they are drawn.
func (r *Run) servers() []string {
	all := slices.Clone(r.Servers)
	var others []string
	for _, s := range r.Samples {
		if !slices.Contains(all, s.Server) && !slices.Contains(others, s.Server) {
			others = append(others, s.Server)
		}
	}
	slices.Sort(others)
	return append(all, others...)
}
