package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/barque/barque/cluster-test/suiterun"
)

// The page has the text of a person, and between these lines the results of the last full run.
var section = suiterun.Section{Begin: "<!-- make conformance writes from here -->", End: "<!-- to here -->"}

// The headings of the lists; the specs under passedHeading must go on passing.
const (
	failedHeading  = "### Failed"
	leftOutHeading = "### Left out"
	passedHeading  = "### Passed"
)

// run describes a run: its programs and its machine.
type run struct {
	Barque          string // version of the binary
	Suite           string // version of k8s.io/kubernetes
	Servers, Agents int
	Date            time.Time
	Took            time.Duration // of the specs alone
	Artefacts       []suiterun.Artefact
}

// heading is the lines above the results of a run.
func (r run) heading() string {
	return fmt.Sprintf("Barque %s, the suite of Kubernetes %s, %d servers and %d agents,\n%s.\n",
		r.Barque, r.Suite, r.Servers, r.Agents, r.Date.Format("2 January 2006"))
}

// passing returns the specs that the page lists as passed.
func passing(page string) ([]string, error) { return section.List(page, passedHeading) }

// lost returns those of the specs that once passed and no longer do. One that was not reached
// counts as lost; one that the suite has no more does not.
func lost(once []string, now []result) []result {
	return slices.DeleteFunc(slices.Clone(now), func(r result) bool {
		return r.Verdict == passed || !slices.Contains(once, r.Spec)
	})
}

// update returns the page with the results of a full run.
func update(page string, of run, results []result) (string, error) {
	if n := len(with(results, notReached)); n > 0 {
		return "", fmt.Errorf("%d specs were not reached", n)
	}
	if len(results) == 0 {
		return "", errors.New("there are no results")
	}
	var b strings.Builder
	b.WriteString(of.heading() + "\n" + table(results))
	fmt.Fprintf(&b, "\nThe specs took %d minutes. Ginkgo's reports, in `bin/conformance-report`:\n\n%s",
		int(of.Took.Round(time.Minute).Minutes()), suiterun.Table(of.Artefacts))
	late := slices.DeleteFunc(with(results, passed), func(r result) bool { return !r.Retried })
	if len(late) > 0 {
		b.WriteString("\nPassed only when they ran once more, alone:\n\n")
	}
	for _, r := range late {
		fmt.Fprintf(&b, "- %s\n", r.Spec)
	}
	fmt.Fprintf(&b, "\n%s\n\n", failedHeading)
	bad := with(results, failed)
	if len(bad) == 0 {
		b.WriteString("None.\n")
	}
	for _, r := range bad {
		fmt.Fprintf(&b, "- %s:\n  `%s`\n", r.Spec, strings.ReplaceAll(r.Reason, "`", "'"))
	}
	fmt.Fprintf(&b, "\n%s\n", leftOutHeading)
	left := with(results, leftOut)
	if len(left) == 0 {
		b.WriteString("\nNone.\n")
	}
	slices.SortStableFunc(left, func(a, b result) int { return cmp.Compare(a.Part, b.Part) })
	for i, r := range left {
		if i == 0 || r.Part != left[i-1].Part {
			fmt.Fprintf(&b, "\nWithout %s:\n\n", r.Part)
		}
		fmt.Fprintf(&b, "- %s\n", r.Spec)
	}
	fmt.Fprintf(&b, "\n%s\n\n", passedHeading)
	for _, r := range with(results, passed) {
		fmt.Fprintf(&b, "- %s\n", r.Spec)
	}
	return section.Replace(page, b.String())
}

// table is the number of specs for each SIG, by verdict.
func table(results []result) string {
	var b strings.Builder
	b.WriteString("| SIG | specs | passed | failed | left out |\n|---|---|---|---|---|\n")
	for _, r := range rows(results) {
		format := "| %s | %d | %d | %d | %d |\n"
		if r.sig == "all" {
			format = "| **%s** | **%d** | **%d** | **%d** | **%d** |\n"
		}
		fmt.Fprintf(&b, format, r.sig, r.total(), r.counts[passed], r.counts[failed], r.counts[leftOut])
	}
	return b.String()
}
