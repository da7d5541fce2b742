package main

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/cluster-test/suiterun"
)

var emptyPage = "# Title\n\nText.\n\n" + section.Begin + "\n" + section.End + "\nMore text.\n"

var (
	someResults = []result{
		{Spec: "[sig-apps] A", SIG: "apps", Verdict: passed},
		{Spec: "[sig-apps] B", SIG: "apps", Verdict: passed, Retried: true},
		{Spec: "[sig-apps] C", SIG: "apps", Verdict: failed, Reason: "want `3` (x.go:1)"},
		{Spec: "[sig-apps] Job runs", SIG: "apps", Verdict: leftOut, Part: "Job"},
		{Spec: "[sig-node] D", SIG: "node", Verdict: leftOut, Part: "DNS"},
		{Spec: "[sig-node] E", SIG: "node", Verdict: leftOut, Part: "Job"},
	}
	someRun = run{Barque: "1.2", Suite: "v1.37.1", Servers: 3, Agents: 2,
		Date:      time.Date(2026, 11, 3, 23, 0, 0, 0, time.UTC),
		Took:      40*time.Minute + 20*time.Second,
		Artefacts: []suiterun.Artefact{{Name: "first.json", Bytes: 12, SHA256: "abc"}}}
)

const writtenPage = `# Title

Text.

<!-- make conformance writes from here -->

Barque 1.2, the suite of Kubernetes v1.37.1, 3 servers and 2 agents,
3 November 2026.

| SIG | specs | passed | failed | left out |
|---|---|---|---|---|
| apps | 4 | 2 | 1 | 1 |
| node | 2 | 0 | 0 | 2 |
| **all** | **6** | **2** | **1** | **3** |

The specs took 40 minutes. Ginkgo's reports, in ` + "`bin/conformance-report`" + `:

| report | bytes | SHA-256 |
|---|---|---|
` + "| `first.json` | 12 | `abc` |" + `

Passed only when they ran once more, alone:

- [sig-apps] B

### Failed

- [sig-apps] C:` + "\n  `want '3' (x.go:1)`" + `

### Left out

Without DNS:

- [sig-node] D

Without Job:

- [sig-apps] Job runs
- [sig-node] E

### Passed

- [sig-apps] A
- [sig-apps] B

<!-- to here -->
More text.
`

func TestPage(t *testing.T) {
	page, err := update(emptyPage, someRun, someResults)
	if err != nil {
		t.Fatal(err)
	}
	if page != writtenPage {
		t.Errorf("got:\n%s", page)
	}
	if again, err := update(page, someRun, someResults); err != nil || again != page {
		t.Errorf("written twice it is another (%v):\n%s", err, again)
	}
	once, err := passing(page)
	if err != nil || !slices.Equal(once, []string{"[sig-apps] A", "[sig-apps] B"}) {
		t.Errorf("passing: %q, %v", once, err)
	}
	if once, err := passing(emptyPage); err != nil || len(once) > 0 {
		t.Errorf("passing on the empty page: %q, %v", once, err)
	}
}

func TestEmptyListsSayNone(t *testing.T) {
	page, err := update(emptyPage, someRun, someResults[:1])
	if want := "### Failed\n\nNone.\n\n### Left out\n\nNone.\n\n### Passed\n\n- [sig-apps] A\n"; err != nil ||
		!strings.Contains(page, want) {
		t.Errorf("%v, got:\n%s", err, page)
	}
}

func TestPageIsKept(t *testing.T) {
	for name, c := range map[string]struct {
		page    string
		results []result
		want    string
	}{
		"a spec was not reached": {emptyPage, append(slices.Clone(someResults), result{Verdict: notReached}),
			"1 specs were not reached"},
		"nothing ran": {emptyPage, nil, "no results"},
		"no marks":    {"# Title\n", someResults, "the page lacks the lines"},
		"no end":      {section.Begin, someResults, "the page lacks the lines"},
	} {
		if page, err := update(c.page, someRun, c.results); err == nil || !strings.Contains(err.Error(), c.want) ||
			page != "" {
			t.Errorf("%s: %q, %v", name, page, err)
		}
	}
}

func TestLost(t *testing.T) {
	once := []string{"kept", "failed now", "left out now", "not reached now", "gone from the suite"}
	now := []result{
		{Spec: "kept", Verdict: passed},
		{Spec: "failed now", Verdict: failed, Reason: "no pods"},
		{Spec: "left out now", Verdict: leftOut, Part: "Job"},
		{Spec: "not reached now", Verdict: notReached},
		{Spec: "always failed", Verdict: failed},
	}
	err := refuse(lost(once, now), "the page")
	want := `3 specs that the page lists as passed did not pass; mend that, or take them off its list:
  failed now: failed: no pods
  left out now: not counted, since the cluster has no Job
  not reached now: not reached`
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	if err := refuse(lost([]string{"kept"}, now), "the page"); err != nil {
		t.Error(err)
	}
}

// TestPageOfThisTree: a full run can read and write the page.
func TestPageOfThisTree(t *testing.T) {
	data, err := os.ReadFile("../../docs/conformance.md")
	if err != nil {
		t.Fatal(err)
	}
	once, err := passing(string(data))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(slices.Compact(slices.Sorted(slices.Values(once)))); n != len(once) {
		t.Errorf("%d of %d names are on the list twice", len(once)-n, len(once))
	}
	if _, err := update(string(data), someRun, someResults); err != nil {
		t.Error(err)
	}
}
