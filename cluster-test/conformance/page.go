package main

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// The page has the text of a person, and between these lines the results of the last full run.
const (
	beginMark = "<!-- make conformance writes from here -->"
	endMark   = "<!-- to here -->"
)

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
	Artefacts       []artefact
}

// heading is the lines above the results of a run.
func (r run) heading() string {
	return fmt.Sprintf("Barque %s, the suite of Kubernetes %s, %d servers and %d agents,\n%s.\n",
		r.Barque, r.Suite, r.Servers, r.Agents, r.Date.Format("2 January 2006"))
}

// artefact is a file of the run, by which its holder can check the page.
type artefact struct {
	Name   string
	Bytes  int
	SHA256 string
}

// describe reads the files in a directory.
func describe(dir string, names []string) ([]artefact, error) {
	var out []artefact
	for _, name := range names {
		raw, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		out = append(out, artefact{Name: name, Bytes: len(raw), SHA256: fmt.Sprintf("%x", sha256.Sum256(raw))})
	}
	return out, nil
}

// split returns the text before, between and after the marks, without them.
func split(page string) (before, between, after string, err error) {
	before, rest, ok := strings.Cut(page, beginMark)
	between, after, closed := strings.Cut(rest, endMark)
	if !ok || !closed {
		return "", "", "", fmt.Errorf("the page lacks the lines %q and %q: results go between them", beginMark, endMark)
	}
	return before, between, after, nil
}

// passing returns the specs that the page lists as passed.
func passing(page string) ([]string, error) {
	_, between, _, err := split(page)
	if err != nil {
		return nil, err
	}
	var out []string
	heading := ""
	for line := range strings.Lines(between) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "#") {
			heading = line
		} else if name, ok := strings.CutPrefix(line, "- "); ok && heading == passedHeading {
			out = append(out, name)
		}
	}
	return out, nil
}

// lost returns those of the specs that once passed and no longer do. One that was not reached
// counts as lost; one that the suite has no more does not.
func lost(once []string, now []result) []result {
	return slices.DeleteFunc(slices.Clone(now), func(r result) bool {
		return r.Verdict == passed || !slices.Contains(once, r.Spec)
	})
}

// update returns the page with the results of a full run.
func update(page string, of run, results []result) (string, error) {
	before, _, after, err := split(page)
	if err != nil {
		return "", err
	}
	if n := len(with(results, notReached)); n > 0 {
		return "", fmt.Errorf("%d specs were not reached", n)
	}
	if len(results) == 0 {
		return "", errors.New("there are no results")
	}
	var b strings.Builder
	b.WriteString(of.heading() + "\n" + table(results))
	fmt.Fprintf(&b, "\nThe specs took %d minutes. Ginkgo's reports, in `bin/conformance-report`:\n\n| report | bytes | SHA-256 |\n|---|---|---|\n",
		int(of.Took.Round(time.Minute).Minutes()))
	for _, a := range of.Artefacts {
		fmt.Fprintf(&b, "| `%s` | %d | `%s` |\n", a.Name, a.Bytes, a.SHA256)
	}
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
	return before + beginMark + "\n\n" + b.String() + "\n" + endMark + after, nil
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
