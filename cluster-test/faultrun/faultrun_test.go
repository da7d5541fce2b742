package faultrun

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/cluster-test/timeline"
)

// TestReport: the notes of a run are in its progress and its report, and the page goes on until the
// last fault is over.
func TestReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r Run
		var out, report strings.Builder
		r.Start(&out)
		write := func(after time.Duration) {
			begin := time.Now()
			time.Sleep(after) // of virtual time
			r.Wrote("s1", begin, time.Now(), true, false)
		}
		write(time.Second)
		span := timeline.Span{Kind: "kill", Note: "s1 led", Begin: r.Elapsed()}
		write(4 * time.Second)
		span.End = r.Elapsed()
		r.Fail("a promise")
		span.Settled = span.End + time.Second
		r.Made(span)
		r.Writing(0)
		page := filepath.Join(t.TempDir(), "page.html")
		if err := r.Report(&report, page,
			timeline.Run{Title: "t", Facts: []string{"a fact"}, Servers: []string{"s1"}}); err != nil {
			t.Fatal(err)
		}
		html, err := os.ReadFile(page)
		if err != nil || !strings.Contains(string(html), "a promise") {
			t.Errorf("the page lacks what has failed: %v", err)
		}
		for _, want := range []string{"FAILURE at 5s: a promise",
			"1 kill: s1 led; longest time without a write 4s; whole after 1s"} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("the progress lacks %q: %s", want, &out)
			}
		}
		for _, want := range []string{"a fact", "longest time without an acknowledged write: 4s", "kill",
			"FAILURE at 5s: a promise", page} {
			if !strings.Contains(report.String(), want) {
				t.Errorf("the report lacks %q: %s", want, &report)
			}
		}
		if !r.Failed() || len(r.Spans()) != 1 {
			t.Errorf("failures %q, faults %v", r.Failures(), r.Spans())
		}
	})
}
