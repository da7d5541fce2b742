package main

import (
	"strings"
	"testing"
)

func TestOthersReplaceTheirOwnSIGsAlone(t *testing.T) {
	const page = "Text.\n\n" + othersBegin + "\n" + othersEnd + "\n\nMore text.\n"
	obstacles, err := parseObstacles("# a comment\nno such link\t\\] Privileged\n")
	if err != nil {
		t.Fatal(err)
	}
	first := []spec{
		{Name: "[sig-node] A", State: "passed"},
		{Name: "[sig-node] B", State: "failed", Message: "want `3`", Where: "x.go:1"},
		{Name: "[sig-node] Privileged C", State: "skipped"},
		{Name: "[sig-node] D", State: "skipped", Message: "Only for gce"},
		{Name: "[sig-node] E", State: "failed", Message: "slow"},
		{Name: "[sig-node] E [Alpha]", State: "skipped", Labels: []string{"sig-node", "Slow", "Alpha"}},
		{Name: "[sig-node] Privileged F", State: "skipped",
			Labels: []string{"Alpha", "Feature:G", "Feature:OffByDefault"}},
		{Name: "[sig-node] H", State: "pending"},
		{Name: "[sig-apps] I", State: "passed"},
	}
	again := []spec{{Name: "[sig-node] E", State: "passed"},
		{Name: "[sig-node] B", State: "failed", Message: "want `4`", Where: "x.go:1"}}
	text, err := updateOthers(page, someRun, judgeOthers(first, again, obstacles))
	if err != nil {
		t.Fatal(err)
	}
	const want = "Text.\n\n" + othersBegin + `

| SIG | specs | passed | failed | cannot run here | not run |
|---|---|---|---|---|---|
| apps | 1 | 1 | 0 | 0 | 0 |
| node | 8 | 2 | 1 | 2 | 3 |
| **all** | **9** | **3** | **1** | **2** | **3** |

#### apps

Barque 1.2, the suite of Kubernetes v1.37.1, 3 servers and 2 agents,
3 November 2026.

All that ran passed, at the first try.

#### node

Barque 1.2, the suite of Kubernetes v1.37.1, 3 servers and 2 agents,
3 November 2026.

Passed only when they ran once more, alone:

- [sig-node] E

Failed:

- [sig-node] B:
  ` + "`want '4' (x.go:1)`" + `

Cannot run here:

- no such link:
  - [sig-node] Privileged C
- skips itself: Only for gce:
  - [sig-node] D

Not run: 1 of a feature gate that is off, 1 of an alpha feature, 1 pending.

` + othersEnd + "\n\nMore text.\n"
	if text != want {
		t.Fatalf("got\n%s\nwant\n%s", text, want)
	}
	// A run of one SIG leaves the others as they are.
	text, err = updateOthers(text, someRun,
		judgeOthers([]spec{{Name: "[sig-node] A", State: "passed"}}, nil, obstacles))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"| apps | 1 | 1 | 0 | 0 | 0 |\n| node | 1 | 1 | 0 | 0 | 0 |\n| **all** | **2** | **2** | **0** | **0** | **0** |\n", "#### apps\n\nBarque 1.2"} {
		if !strings.Contains(text, line) {
			t.Errorf("%q is not in\n%s", line, text)
		}
	}
	if strings.Contains(text, "Privileged") {
		t.Errorf("the former results of node are still there:\n%s", text)
	}
	if _, err := updateOthers("Text.", someRun, someResults); err == nil {
		t.Error("a page without the marks was written")
	}
	if _, err := updateOthers(page, someRun,
		judgeOthers([]spec{{Name: "[sig-node] A", State: "skipped"}}, nil, obstacles)); err == nil {
		t.Error("a page was written though a spec was not reached")
	}
}

func TestAnInterruptedRunIsWritten(t *testing.T) {
	results := unfinished(judgeOthers([]spec{
		{Name: "[sig-node] A", State: "passed"},
		{Name: "[sig-node] B", State: "interrupted", Message: "Interrupted by User"},
		{Name: "[sig-node] C", State: "skipped"},
		{Name: "[sig-node] D", State: "skipped", Labels: []string{"Alpha"}},
		{Name: "[sig-node] E", State: "failed", Message: "too small"},
	}, []spec{{Name: "[sig-node] E", State: "interrupted", Message: "Interrupted by User"}}, nil))
	text, err := updateOthers(othersBegin+othersEnd, someRun, results)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| node | 5 | 1 | 1 | 0 | 3 |", "Not run: 1 of an alpha feature, 2 not reached before the run was interrupted.",
		"`too small`",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
}

// TestRestartsOfGuaranteedPods: the pattern prevents the specs that restart a container alone.
func TestRestartsOfGuaranteedPods(t *testing.T) {
	obstacles, err := parseObstacles(reasonsTable)
	if err != nil {
		t.Fatal(err)
	}
	const table = "[sig-node] Pod InPlace Resize guaranteed qos - 1 container with resize policy "
	for name, want := range map[string]bool{
		"no restart resizing cpu":                                               false,
		"no restart + resize initContainers resizing mem":                       false,
		"cpu restart resizing cpu":                                              true,
		"cpu restart resizing mem":                                              false,
		"cpu restart resizing cpu & mem in the same direction":                  true,
		"cpu restart resizing pod-level cpu":                                    false,
		"cpu restart resizing only pod-level cpu":                               true,
		"mem restart resizing cpu":                                              false,
		"mem restart resizing cpu & mem in opposite directions":                 true,
		"mem restart resizing only pod-level mem":                               true,
		"cpu & mem restart + resize initContainers resizing mem":                true,
		"cpu & mem restart resizing cpu":                                        true,
		"cpu & mem restart resizing pod-level cpu & mem in the same one":        false,
		"cpu & mem restart + resize initContainers resizing only pod-level mem": true,
	} {
		for _, tag := range []string{"", "[Environment:NotInUserNS] "} {
			if got := prevented(obstacles, table+tag+name+" [Beta]") != ""; got != want {
				t.Errorf("%s%s: prevented is %t", tag, name, got)
			}
		}
	}
}

func TestReasonsAreWellFormed(t *testing.T) {
	if _, err := parseObstacles(reasonsTable); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"no pattern\n", "\tpattern\n", "bad\t(\n"} {
		if _, err := parseObstacles(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestSelectionOfOthers(t *testing.T) {
	obstacles, err := parseObstacles("no such link\tPrivileged|Raw\nno such image\tDRA\n")
	if err != nil {
		t.Fatal(err)
	}
	which := ordinary(chosenSIGs("node, network"), obstacles)
	for _, want := range []string{
		"!Conformance && (sig-node || sig-network) && !(Feature: containsAny OffByDefault) && ", " && !Alpha",
		" && !Flaky"} {
		if !strings.Contains(which.labels, want) || strings.HasSuffix(which.labels, "&& ") {
			t.Errorf("%q is not in %q", want, which.labels)
		}
	}
	for _, run := range []string{"Serial", "Slow", "isEmpty"} {
		if strings.Contains(which.labels, run) {
			t.Errorf("%q leaves %s specs out", which.labels, run)
		}
	}
	if which.skip != "(?:Privileged|Raw)|(?:DRA)" {
		t.Error(which.skip)
	}
	for name, want := range map[string]bool{"[sig-node] A": true, "[sig-network] B": true, "[sig-apps] C": false,
		"[sig-node] D [Conformance]": false} {
		if which.wanted(spec{Name: name}) != want {
			t.Errorf("%s: want %t", name, want)
		}
	}
	if got := chosenSIGs("all"); len(got) != len(otherSIGs) {
		t.Error(got)
	}
}
