package main

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/cluster-test/suiterun"
)

var someRun = run{
	Barque: "1.2", Suite: "v1.6.3", Servers: 3, Agents: 1, Date: time.Date(2026, 11, 30, 11, 0, 0, 0, time.UTC),
	Took:  20*time.Minute + 20*time.Second,
	Files: []suiterun.Artefact{{Name: "report.yaml", Bytes: 12, SHA256: "abc"}},
}

const written = `Barque 1.2, the suite of Gateway API v1.6.3 (standard channel),
servers: 3, agents: 1, 30 November 2026, 20 minutes.

| profile | core: passed | failed | skipped | extended: passed | failed | skipped | features: claimed | not |
|---|---|---|---|---|---|---|---|---|
| HTTP | 36 | 1 | 2 | 50 | 0 | 0 | 2 | 1 |
| GRPC | 12 | 0 | 0 | 0 | 0 | 0 | 0 | 0 |
| TLS | 11 | 0 | 0 | 0 | 0 | 0 | 0 | 0 |

| report | bytes | SHA-256 |
|---|---|---|
` + "| `report.yaml` | 12 | `abc` |" + `

#### Failed

- Broken:
` + "  `0 request to '/': Received unexpected error: context deadline exceeded: error making a request`" + `
- Fatal:
` + "  `no error in its output`" + `

#### Left out

Without UDPRoute:

- UDPRoute

#### Passed

- Accepted
`

func TestPage(t *testing.T) {
	r, err := readReport(writeReport(t, reportText))
	if err != nil {
		t.Fatal(err)
	}
	empty := "# Title\n\n" + section.Begin + "\n" + section.End + "\nMore text.\n"
	page, err := update(empty, someRun, r, someResults)
	if err != nil {
		t.Fatal(err)
	}
	if want := "# Title\n\n" + section.Begin + "\n\n" + written + "\n" + section.End + "\nMore text.\n"; page != want {
		t.Errorf("got:\n%s", page)
	}
	if again, err := update(page, someRun, r, someResults); err != nil || again != page {
		t.Errorf("written twice it is another (%v):\n%s", err, again)
	}
	if once, err := section.List(page, passedHeading); err != nil || !slices.Equal(once, []string{"Accepted"}) {
		t.Errorf("passed on the page: %q, %v", once, err)
	}
	if _, err := update(empty, someRun, r, nil); err == nil || !strings.Contains(err.Error(), "no results") {
		t.Errorf("without results: %v", err)
	}
	if _, err := update("# Title\n", someRun, r, someResults); err == nil ||
		!strings.Contains(err.Error(), "the page lacks the lines") {
		t.Errorf("without the lines: %v", err)
	}
}

// A full run can read and write the page of this tree.
func TestPageOfThisTree(t *testing.T) {
	data, err := os.ReadFile("../../docs/conformance.md")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := section.List(string(data), passedHeading); err != nil {
		t.Error(err)
	}
}
