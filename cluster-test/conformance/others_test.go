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
		{Name: "[sig-node] Privileged C", State: "failed", Message: "RTNETLINK"},
		{Name: "[sig-node] D", State: "skipped", Message: "Only for gce"},
		{Name: "[sig-node] E", State: "failed", Message: "slow"},
		{Name: "[sig-apps] F", State: "passed"},
	}
	again := []spec{{Name: "[sig-node] E", State: "passed"}, {Name: "[sig-node] B", State: "failed", Message: "want `4`", Where: "x.go:1"}}
	text, err := updateOthers(page, someRun, judgeOthers(first, again, obstacles))
	if err != nil {
		t.Fatal(err)
	}
	const want = "Text.\n\n" + othersBegin + `

| SIG | specs | passed | failed | cannot run here |
|---|---|---|---|---|
| apps | 1 | 1 | 0 | 0 |
| node | 5 | 2 | 1 | 2 |
| **all** | **6** | **3** | **1** | **2** |

#### apps

Barque 1.2, the suite of Kubernetes v1.37.1, 3 servers and 2 agents, 3 November 2026.

All passed, at the first try.

#### node

Barque 1.2, the suite of Kubernetes v1.37.1, 3 servers and 2 agents, 3 November 2026.

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

` + othersEnd + "\n\nMore text.\n"
	if text != want {
		t.Fatalf("got\n%s\nwant\n%s", text, want)
	}
	// A run of one SIG leaves the others as they are.
	text, err = updateOthers(text, someRun, judgeOthers([]spec{{Name: "[sig-node] A", State: "passed"}}, nil, obstacles))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"| apps | 1 | 1 | 0 | 0 |\n| node | 1 | 1 | 0 | 0 |\n| **all** | **2** | **2** | **0** | **0** |\n", "#### apps\n\nBarque 1.2"} {
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

func TestFilterOfOthers(t *testing.T) {
	if got := othersFilter(chosenSIGs("node, network")); got != ordinary+" && (sig-node || sig-network)" {
		t.Error(got)
	}
	if got := chosenSIGs("all"); len(got) != len(otherSIGs) {
		t.Error(got)
	}
}
