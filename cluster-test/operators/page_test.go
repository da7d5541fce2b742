package main

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// The page keeps a person's text, and gets a line for each program.
func TestUpdate(t *testing.T) {
	page := "# Title\n\n" + beginMark + "\nold\n" + endMark + "\nafter\n"
	results := []result{
		{program: program{name: "A", version: "v1", scenario: "does a thing"},
			held: []round{installed, killed, restarted}},
		{program: program{name: "B", version: "v2", scenario: "fails"}, held: []round{installed},
			err: errors.New("killed: a | `b`\n  c")},
	}
	got, err := update(page,
		run{Barque: "v9", Date: time.Date(2026, 11, 28, 0, 0, 0, 0, time.UTC), Took: 61 * time.Minute}, results)
	if err != nil {
		t.Fatal(err)
	}
	want := "# Title\n\n" + beginMark + "\n\nBarque v9, 3 servers, 28 November 2026, 61 minutes.\n\n" +
		"| program | version | scenario | result |\n|---|---|---|---|\n" +
		"| A | v1 | does a thing | holds: installed, killed, restarted |\n" +
		"| B | v2 | fails | failed: `killed: a \\| 'b' c` |\n" +
		"\n" + endMark + "\nafter\n"
	if got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	if again, err := update(got, run{Barque: "v9"}, results); err != nil || strings.Count(again, "| A |") != 1 {
		t.Errorf("updated again: %v\n%s", err, again)
	}
	if _, err := update("# Title\n", run{}, results); err == nil {
		t.Error("a page without marks is updated")
	}
	if err := failures(results); err == nil || !strings.Contains(err.Error(), `1 of 2 programs failed: ["B"]`) {
		t.Errorf("failures: %v", err)
	}
}
