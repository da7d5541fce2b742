package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// spec is a spec in the suite's report.
type spec struct {
	Name    string // whole, with all its tags
	Labels  []string
	State   string // Ginkgo's word: passed, failed, timedout, skipped …
	Message string // why it failed, or why it skipped itself
	Where   string // FILE:LINE of that
}

// ran reports whether the suite came to the spec, and not to an interruption in the middle of it.
func (s spec) ran() bool {
	switch s.State {
	case "", "pending", "interrupted":
		return false
	}
	return s.State != "skipped" || s.Message != ""
}

func (s spec) conformance() bool { return strings.Contains(s.Name, "[Conformance]") }

// errNoSpecs is returned for a report without a wanted spec.
var errNoSpecs = errors.New("the suite's report has no specs of those that were asked for")

// readReport reads the wanted specs of a report as Ginkgo writes it (--json-report). It is an
// error when the suite itself has failed, for the specs' states say nothing then.
func readReport(r io.Reader, wanted func(spec) bool) ([]spec, error) {
	var suites []struct {
		SpecReports []struct {
			ContainerHierarchyTexts  []string
			ContainerHierarchyLabels [][]string
			LeafNodeType             string
			LeafNodeText             string
			LeafNodeLabels           []string
			State                    string
			Failure                  struct {
				Message  string
				Location struct {
					FileName   string
					LineNumber int
				}
			}
		}
	}
	if err := json.NewDecoder(r).Decode(&suites); err != nil {
		return nil, fmt.Errorf("read the suite's report: %w", err)
	}
	var out []spec
	for _, suite := range suites {
		for _, s := range suite.SpecReports {
			where := s.Failure.Location.FileName
			if parts := strings.Split(where, "/"); len(parts) > 2 {
				where = strings.Join(parts[len(parts)-2:], "/")
			}
			if s.Failure.Location.LineNumber > 0 {
				where = fmt.Sprintf("%s:%d", where, s.Failure.Location.LineNumber)
			}
			name := strings.Join(append(s.ContainerHierarchyTexts, s.LeafNodeText), " ")
			labels := slices.Concat(append(s.ContainerHierarchyLabels, s.LeafNodeLabels)...)
			of := spec{Name: name, Labels: labels, State: s.State, Message: s.Failure.Message, Where: where}
			switch {
			case s.LeafNodeType == "It" && wanted(of):
				out = append(out, of)
			case strings.Contains(s.LeafNodeType, "BeforeSuite") && s.State != "passed":
				return nil, fmt.Errorf("the suite did not begin: %s (%s)", cause(s.Failure.Message), where)
			}
		}
	}
	if len(out) == 0 {
		return nil, errNoSpecs
	}
	return out, nil
}

// verdict on a spec.
type verdict int

const (
	passed verdict = iota
	failed
	leftOut    // it needs a part that the cluster has not
	notReached // the run ended before it, or was not to reach it; then Part is why
)

// result is the verdict on a spec, as the page has it.
type result struct {
	Spec    string // without the tags that say nothing about its subject
	SIG     string
	Verdict verdict
	Part    string // the missing one of a spec that is left out, or why it is
	Reason  string // why it failed
	Retried bool   // it failed first, and this is the result of its second try
}

// judge makes results of the first reports, and of the second try of those that failed. absent are
// the parts that the cluster has not: a spec that needs one does not count, whatever it reported.
// Some specs return before they test anything when they cannot make the object that they test.
func judge(first, again []spec, absent []part) []result {
	second := map[string]spec{}
	for _, s := range again {
		second[s.Name] = s
	}
	var out []result
	for _, s := range first {
		r, _ := judgeSpec(s, second[s.Name])
		if part := missing(absent, s.Name); part != "" {
			r.Verdict, r.Part, r.Reason = leftOut, part, ""
		}
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b result) int { return cmp.Compare(a.Spec, b.Spec) })
	return out
}

// judgeSpec is the verdict on a spec by its last try. The second one has not run if it needed none.
func judgeSpec(first, second spec) (r result, last spec) {
	r, last = result{Spec: short(first.Name), SIG: sig(first.Name)}, first
	if second.ran() {
		last, r.Retried = second, true
	}
	switch {
	case last.State == "passed":
		r.Verdict = passed
	case last.ran():
		r.Verdict, r.Reason = failed, last.reason()
	default:
		r.Verdict = notReached
	}
	return r, last
}

func (s spec) reason() string {
	reason := cause(s.Message)
	if s.State != "failed" {
		reason = s.State + ": " + reason
	}
	if s.Where != "" {
		reason += " (" + s.Where + ")"
	}
	return reason
}

var (
	sigTag = regexp.MustCompile(`\[sig-([\w-]+)\]`)
	// The tags that nearly all have, or that say how a spec is run.
	dullTags = regexp.MustCompile(`\s*\[(Conformance|NodeConformance|Serial|LinuxOnly|Slow|Disruptive|` +
		`Privileged:ClusterAdmin|MinimumKubeletVersion[^\]]*)\]`)
	// An object that gomega has dumped over several lines.
	dump = regexp.MustCompile(`(?s)\n\s+&?[\w.]*\{.*?\n\s+\}`)
)

func sig(name string) string {
	if m := sigTag.FindStringSubmatch(name); m != nil {
		return m[1]
	}
	return "none"
}

func short(name string) string {
	return strings.Join(strings.Fields(dullTags.ReplaceAllString(name, "")), " ")
}

// cause is the beginning of a failure's message, on one line.
func cause(message string) string {
	var lines []string
	for line := range strings.Lines(dump.ReplaceAllString(message, "")) {
		if line = strings.Join(strings.Fields(line), " "); line != "" && len(lines) < 4 {
			lines = append(lines, line)
		}
	}
	text := []rune(strings.Join(lines, " / "))
	if len(text) > 300 {
		text = append(text[:300], '…')
	}
	return string(text)
}

// row of the table: how many specs of a SIG, by verdict.
type row struct {
	sig    string
	counts [notReached + 1]int
}

func (r row) total() (n int) {
	for _, c := range r.counts {
		n += c
	}
	return n
}

// rows has one for each SIG, and the sum.
func rows(results []result) []row {
	bySIG := map[string]*row{}
	all := row{sig: "all"}
	for _, r := range results {
		if bySIG[r.SIG] == nil {
			bySIG[r.SIG] = &row{sig: r.SIG}
		}
		bySIG[r.SIG].counts[r.Verdict]++
		all.counts[r.Verdict]++
	}
	var out []row
	for _, s := range slices.Sorted(maps.Keys(bySIG)) {
		out = append(out, *bySIG[s])
	}
	return append(out, all)
}

// with returns the results with the verdict.
func with(results []result, v verdict) []result {
	return slices.DeleteFunc(slices.Clone(results), func(r result) bool { return r.Verdict != v })
}

// outcome describes the spec's result in words.
func (r result) outcome() string {
	switch {
	case r.Verdict == failed:
		return "failed: " + r.Reason
	case r.Verdict == leftOut:
		return "not counted, since the cluster has no " + r.Part
	case r.Verdict == notReached:
		return "not reached"
	case r.Retried:
		return "passed only when it ran once more, alone"
	}
	return "passed"
}
