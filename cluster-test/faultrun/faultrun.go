// Package faultrun is the common part of the programs that break a system and check its promises:
// the progress and the failures of a run, the effects of the faults on clients that wrote, and the
// report. Package schedule chooses the faults.
package faultrun

import (
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/barque/barque/cluster-test/timeline"
)

// Run has the notes of a run. Its methods may be called from many goroutines.
type Run struct {
	out   io.Writer
	start time.Time

	mu       sync.Mutex
	failures []string
	spans    []timeline.Span
	samples  []timeline.Sample
	writing  []timeline.Stretch
}

// Start begins the run now. It writes progress to out, which may be nil.
func (r *Run) Start(out io.Writer) { r.out, r.start = out, time.Now() }

// Elapsed is the time since the run began.
func (r *Run) Elapsed() time.Duration { return time.Since(r.start) }

// Say writes progress.
func (r *Run) Say(format string, args ...any) {
	if r.out != nil {
		fmt.Fprintf(r.out, "%8.1fs  %s\n", r.Elapsed().Seconds(), fmt.Sprintf(format, args...))
	}
}

// Fail notes that a promise was broken.
func (r *Run) Fail(format string, args ...any) {
	text := fmt.Sprintf("at %v: ", r.Elapsed().Round(time.Millisecond)) + fmt.Sprintf(format, args...)
	r.mu.Lock()
	r.failures = append(r.failures, text)
	r.mu.Unlock()
	r.Say("FAILURE %s", text)
}

// Failed reports whether anything has failed.
func (r *Run) Failed() bool { return len(r.Failures()) > 0 }

// Failures returns the failures so far.
func (r *Run) Failures() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.failures)
}

// Wrote notes a write that has returned. aside is for timeline.Sample.
func (r *Run) Wrote(server string, begin, end time.Time, ok, aside bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.samples = append(r.samples,
		timeline.Sample{Server: server, Begin: begin.Sub(r.start), End: end.Sub(r.start), OK: ok, Aside: aside})
}

// Writing notes that a client wanted to write from a time until now.
func (r *Run) Writing(from time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writing = append(r.writing, timeline.Stretch{From: from, To: r.Elapsed()})
}

// Made notes a fault that is over, and writes it as progress.
func (r *Run) Made(s timeline.Span) {
	r.mu.Lock()
	r.spans = append(r.spans, s)
	number, gaps := len(r.spans), (&timeline.Run{Spans: []timeline.Span{s}, Samples: r.samples}).Gaps()
	r.mu.Unlock()
	r.Say("%d %s: %s; longest time without a write %v; whole after %v", number, s.Kind, s.Note,
		gaps[0].Round(time.Millisecond), (s.Settled - s.End).Round(time.Millisecond))
}

// Spans returns the faults.
func (r *Run) Spans() []timeline.Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.spans)
}

// Report writes the results of the run: facts, a table of the faults, the failures, and, if it
// has a name, the page with the time line. t has a title, the command that repeats the run, facts
// and servers.
func (r *Run) Report(w io.Writer, page string, t timeline.Run) error {
	r.mu.Lock()
	t.Verdict, t.Spans, t.Samples, t.Writing = r.failures, r.spans, r.samples, r.writing
	r.mu.Unlock()
	for _, s := range t.Spans {
		t.Length = max(t.Length, s.Settled)
	}
	for _, s := range t.Writing {
		t.Length = max(t.Length, s.To)
	}
	t.Facts = append(t.Facts,
		fmt.Sprintf("longest time without an acknowledged write: %v", t.Longest().Round(time.Millisecond)))
	fmt.Fprintln(w)
	for _, f := range t.Facts {
		fmt.Fprintln(w, f)
	}
	fmt.Fprintln(w)
	if err := t.Table(w); err != nil {
		return err
	}
	for _, f := range t.Verdict {
		fmt.Fprintf(w, "\nFAILURE %s\n", f)
	}
	if len(t.Verdict) == 0 {
		fmt.Fprintln(w, "\nno broken promise was found")
	}
	if page == "" {
		return nil
	}
	fmt.Fprintf(w, "\nthe time line is in %s\n", page)
	return t.WriteFile(page)
}
