package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// verdict on a test.
type verdict int

const (
	passed verdict = iota
	failed
	leftOut // the GatewayClass has not the feature that it is about
)

// result is the verdict on a test.
type result struct {
	Name    string
	Verdict verdict
	Reason  string // why it failed
	Feature string // the missing one of a test that is left out
}

// outcome describes the result in words.
func (r result) outcome() string {
	switch r.Verdict {
	case failed:
		return "failed: " + r.Reason
	case leftOut:
		return "left out, without the feature " + r.Feature
	}
	return "passed"
}

// event is a line of test2json.
type event struct {
	Action, Test, Output string
}

var notSupported = regexp.MustCompile(`suite does not support (\S+)`)

// readEvents makes results of the output of the suite's one Go test, whose subtests are the tests
// of the suite. It writes the output to a log.
func readEvents(events io.Reader, log io.Writer, progress bool) ([]result, error) {
	said := map[string]*strings.Builder{} // by test of the suite
	var failing = map[string][]string{}   // parts of a test that have failed
	var results []result
	scanner := bufio.NewScanner(events)
	scanner.Buffer(nil, 64<<20)
	for scanner.Scan() {
		var e event
		if err := json.Unmarshal(scanner.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("%w: %s", err, scanner.Bytes())
		}
		if _, err := io.WriteString(log, e.Output); err != nil {
			return nil, err
		}
		_, path, ok := strings.Cut(e.Test, "/")
		if !ok {
			continue
		}
		test, part, isPart := strings.Cut(path, "/")
		if said[test] == nil {
			said[test] = &strings.Builder{}
		}
		said[test].WriteString(e.Output)
		if isPart {
			if e.Action == "fail" {
				failing[test] = append(failing[test], strings.ReplaceAll(part, "_", " "))
			}
			continue
		}
		r := result{Name: test}
		switch e.Action {
		case "pass":
		case "fail":
			r.Verdict, r.Reason = failed, reason(said[test].String(), failing[test])
		case "skip":
			r.Verdict, r.Feature = leftOut, "of its own"
			if m := notSupported.FindStringSubmatch(said[test].String()); m != nil {
				r.Feature = m[1]
			}
		default:
			continue
		}
		results = append(results, r)
		if progress && r.Verdict != leftOut {
			say("%s: %s", r.Name, r.outcome())
		}
	}
	slices.SortFunc(results, func(a, b result) int { return cmp.Compare(a.Name, b.Name) })
	return results, scanner.Err()
}

var (
	testifyError = regexp.MustCompile(`(?s)Error:\s+(.*?)\n\s+Test:`)
	// The suite logs each try, and ends with a line that says only how many there were.
	lastTry        = regexp.MustCompile(`(?s).*not ready yet: (.*?) \(after `)
	lastLine       = regexp.MustCompile(`(?s).*\n\s*[\w./-]+\.go:\d+: ([^\n]*)`)
	testifyMessage = regexp.MustCompile(`(?s)Messages:\s+(.*?)\n\s*(?:[\w./-]+\.go:\d+:|---|===|$)`)
)

// reason is the beginning of an error in the output of a test: the first one that is marked as
// such, or else the last one. Before it stands the first part that has failed.
func reason(output string, parts []string) string {
	text := "no error in its output"
	if m := testifyError.FindStringSubmatch(output); m != nil {
		text = m[1]
		if m := testifyMessage.FindStringSubmatch(output); m != nil {
			text += ": " + m[1]
		}
	} else if m := lastTry.FindStringSubmatch(output); m != nil {
		text = m[1]
	} else if m := lastLine.FindStringSubmatch("\n" + output); m != nil {
		text = m[1]
	}
	if len(parts) > 0 { // the innermost end first
		text = parts[0] + ": " + text
	}
	runes := []rune(strings.Join(strings.Fields(text), " "))
	if len(runes) > 300 {
		runes = append(runes[:300], '…')
	}
	return string(runes)
}

// report is the suite's own, as far as the page has it.
type report struct {
	GatewayAPIChannel string    `json:"gatewayAPIChannel"`
	Profiles          []profile `json:"profiles"`
}

type profile struct {
	Name     string   `json:"name"`
	Core     status   `json:"core"`
	Extended extended `json:"extended"`
}

type status struct {
	Statistics struct{ Passed, Failed, Skipped int } `json:"statistics"`
}

type extended struct {
	status
	SupportedFeatures   []string `json:"supportedFeatures"`
	UnsupportedFeatures []string `json:"unsupportedFeatures"`
}

func readReport(file string) (*report, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("the suite has written no report: %w", err)
	}
	r := &report{}
	if err := yaml.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("read the suite's report: %w", err)
	}
	slices.SortFunc(r.Profiles, func(a, b profile) int {
		return cmp.Compare(slices.Index(profiles, a.Name), slices.Index(profiles, b.Name))
	})
	if len(r.Profiles) != len(profiles) {
		return nil,
			fmt.Errorf("the suite's report has %d profiles, and not the %d that were asked for", len(r.Profiles),
				len(profiles))
	}
	return r, nil
}

// with returns the results with the verdict.
func with(results []result, v verdict) []result {
	return slices.DeleteFunc(slices.Clone(results), func(r result) bool { return r.Verdict != v })
}

// lost returns the tests that once passed and no longer do, also those that are left out now. One
// that the suite has no more is not lost.
func lost(once []string, now []result) []result {
	return slices.DeleteFunc(slices.Clone(now), func(r result) bool {
		return r.Verdict == passed || !slices.Contains(once, r.Name)
	})
}

// refuse is an error when tests are lost.
func refuse(lost []result, page string) error {
	if len(lost) == 0 {
		return nil
	}
	var b strings.Builder
	for _, r := range lost {
		fmt.Fprintf(&b, "\n  %s: %s", r.Name, r.outcome())
	}
	return fmt.Errorf("%d tests that %s lists as passed did not pass; mend that, or take them off its list:%s",
		len(lost), page, b.String())
}
