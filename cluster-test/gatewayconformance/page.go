package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/barque/barque/cluster-test/suiterun"
)

// The part of the page that a run writes. The tests under passedHeading must go on passing.
var section = suiterun.Section{
	Begin: "<!-- make conformance-gateway writes from here -->", End: "<!-- to here, of the gateway -->",
}

const passedHeading = "#### Passed"

// run describes a run.
type run struct {
	Barque string // version of the binary
	Suite  string // version of the suite
	// The size of the cluster.
	Servers, Agents int

	Date  time.Time
	Took  time.Duration
	Files []suiterun.Artefact
}

// update returns the page with the results of a full run.
func update(page string, of run, r *report, results []result) (string, error) {
	if len(results) == 0 {
		return "", errors.New("there are no results")
	}
	var b strings.Builder
	fmt.Fprintf(&b,
		"Barque %s, the suite of Gateway API %s (%s channel),\nservers: %d, agents: %d, %s, %d minutes.\n\n%s\n%s",
		of.Barque, of.Suite, r.GatewayAPIChannel, of.Servers, of.Agents, of.Date.Format("2 January 2006"),
		int(of.Took.Round(time.Minute).Minutes()), table(r), suiterun.Table(of.Files))
	b.WriteString("\n#### Failed\n\n")
	bad := with(results, failed)
	if len(bad) == 0 {
		b.WriteString("None.\n")
	}
	for _, f := range bad {
		fmt.Fprintf(&b, "- %s:\n  `%s`\n", f.Name, strings.ReplaceAll(f.Reason, "`", "'"))
	}
	b.WriteString("\n#### Left out\n\n")
	left := with(results, leftOut)
	slices.SortStableFunc(left, func(a, b result) int { return cmp.Compare(a.Feature, b.Feature) })
	if len(left) == 0 {
		b.WriteString("None.\n")
	}
	for i, l := range left {
		if i == 0 || l.Feature != left[i-1].Feature {
			if i > 0 {
				b.WriteString("\n")
			}
			fmt.Fprintf(&b, "Without %s:\n\n", l.Feature)
		}
		fmt.Fprintf(&b, "- %s\n", l.Name)
	}
	fmt.Fprintf(&b, "\n%s\n\n", passedHeading)
	for _, p := range with(results, passed) {
		fmt.Fprintf(&b, "- %s\n", p.Name)
	}
	return section.Replace(page, b.String())
}

// table has a line for each profile.
func table(r *report) string {
	var b strings.Builder
	b.WriteString(
		"| profile | core: passed | failed | skipped | extended: passed | failed | skipped | features: claimed | not |\n" +
			"|---|---|---|---|---|---|---|---|---|\n")
	for _, p := range r.Profiles {
		c, e := p.Core.Statistics, p.Extended.Statistics
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d | %d | %d | %d | %d |\n", strings.TrimPrefix(p.Name, "GATEWAY-"),
			c.Passed, c.Failed, c.Skipped,
			e.Passed, e.Failed, e.Skipped, len(p.Extended.SupportedFeatures), len(p.Extended.UnsupportedFeatures))
	}
	return b.String()
}

// summarize prints the tests that failed, the number of those that were left out, and the table.
func summarize(w io.Writer, r *report, results []result) {
	fmt.Fprintln(w)
	for _, f := range with(results, failed) {
		fmt.Fprintf(w, "%s: %s\n", f.Name, f.outcome())
	}
	fmt.Fprintf(w, "left out, without their features: %d\n\n%s", len(with(results, leftOut)), table(r))
}
