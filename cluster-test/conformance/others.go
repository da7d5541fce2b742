package main

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/barque/barque/cluster-test/suiterun"
)

// otherSIGs are those that OTHERS=all runs: all but Windows.
var otherSIGs = []string{
	"api-machinery", "apps", "architecture", "auth", "autoscaling", "cli", "instrumentation", "network", "node",
	"scheduling", "storage", "testing",
}

// othersArgs are arguments of servers that specs outside of conformance expect, as upstream's own
// clusters for tests have them: a spec makes 1,000 pods that have ended, and wants 100 to stay.
var othersArgs = []string{"--terminated-pod-gc-threshold=100"}

// exclusion is a condition of Ginkgo's label filter that keeps specs outside of conformance from
// being run by OTHERS. The specs with a label that begins with label do not meet it.
type exclusion struct {
	filter string
	label  string
	why    string // as the page has it, after their number
}

var exclusions = []exclusion{
	{"!(Feature: containsAny OffByDefault)", "Feature:OffByDefault", "of a feature gate that is off"},
	{"!Alpha", "Alpha", "of an alpha feature"},
	{"!Flaky", "Flaky", "flaky by their own word"},
	{"!Disruptive", "Disruptive", "disruptive"},
	// Ginkgo never runs these.
	{"", "", "pending"},
}

// excluded is why OTHERS does not select the spec; "" when it does.
func excluded(s spec) string {
	for _, e := range exclusions {
		has := s.State == "pending"
		if e.filter != "" {
			has = slices.ContainsFunc(s.Labels, func(l string) bool { return strings.HasPrefix(l, e.label) })
		}
		if has {
			return e.why
		}
	}
	return ""
}

//go:embed reasons.tsv
var reasonsTable string

// obstacle is a line of reasons.tsv: why specs cannot run here, whatever Barque does.
type obstacle struct {
	why     string
	pattern *regexp.Regexp
}

func parseObstacles(table string) ([]obstacle, error) {
	var out []obstacle
	for line := range strings.Lines(table) {
		line = strings.TrimRight(line, "\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		why, pattern, ok := strings.Cut(line, "\t")
		if !ok || why == "" || pattern == "" {
			return nil, fmt.Errorf("reasons.tsv: want REASON and PATTERN with a tab between them, got %q", line)
		}
		compiled, err := regexp.Compile(pattern)
		if err != nil {
			return nil, fmt.Errorf("reasons.tsv: %s: %w", why, err)
		}
		out = append(out, obstacle{why, compiled})
	}
	return out, nil
}

// prevented is why the spec cannot run; "" when nothing is known to prevent it.
func prevented(obstacles []obstacle, spec string) string {
	for _, o := range obstacles {
		if o.pattern.MatchString(spec) {
			return o.why
		}
	}
	return ""
}

// chosenSIGs reads the value of -others.
func chosenSIGs(value string) []string {
	if value == "all" {
		return otherSIGs
	}
	return strings.FieldsFunc(value, func(r rune) bool { return r == ',' || r == ' ' })
}

// ordinary selects the specs of the SIGs that are neither of conformance nor excluded, and those
// among them that nothing is known to prevent. The report has all specs of these SIGs outside of
// conformance.
func ordinary(sigs []string, obstacles []obstacle) selection {
	var of, patterns []string
	for _, s := range sigs {
		of = append(of, "sig-"+s)
	}
	filter := "!Conformance && (" + strings.Join(of, " || ") + ")"
	for _, e := range exclusions {
		if e.filter != "" {
			filter += " && " + e.filter
		}
	}
	for _, o := range obstacles {
		patterns = append(patterns, "(?:"+o.pattern.String()+")")
	}
	return selection{
		name: "others", labels: filter, skip: strings.Join(patterns, "|"),
		wanted: func(s spec) bool { return !s.conformance() && slices.Contains(sigs, sig(s.Name)) },
	}
}

// others runs the ordinary specs of some SIGs, and writes their results into the page.
func (l *lab) others(ctx context.Context, o options) error {
	obstacles, err := parseObstacles(reasonsTable)
	if err != nil {
		return err
	}
	sigs := chosenSIGs(o.others)
	if len(sigs) == 0 {
		return errors.New("-others: want SIGs, such as 'node,network', or 'all'")
	}
	which := ordinary(sigs, obstacles)
	which.procs = o.procs
	earlier, err := takeUp(l.suite.out, which, o.resume)
	if err != nil {
		return err
	}
	which.done = names(earlier)
	// The version comes first: an interruption ends this context, and leaves results to write.
	version, err := suiterun.BarqueVersion(ctx)
	if err != nil {
		return err
	}
	t, ended := l.twice(ctx, which, "others-again")
	if len(t.first) == 0 {
		return ended
	}
	results := judgeOthers(union(t.first, earlier), t.again, obstacles)
	if ctx.Err() != nil {
		results = unfinished(results)
	} else if ended != nil {
		return ended
	}
	summarizeOthers(os.Stdout, results)
	page, err := os.ReadFile(o.page)
	if err != nil {
		return err
	}
	text, err := updateOthers(string(page), run{
		Barque: version, Suite: l.suite.programs.version, Servers: servers, Agents: agents, Date: time.Now().UTC(),
		Took: t.took,
	}, results)
	if err != nil {
		return fmt.Errorf("%s stays as it was: %w", o.page, err)
	}
	if err := os.WriteFile(o.page, []byte(text), 0o644); err != nil {
		return err
	}
	fmt.Printf("written: %s\n", o.page)
	if n := len(with(results, failed)); n > 0 {
		return errors.Join(ended, fmt.Errorf("%d specs failed", n))
	}
	return ended
}

// judgeOthers makes results of specs. Part is why one that skipped itself, or that an obstacle
// prevents, cannot run here, and why one that is excluded was not reached.
func judgeOthers(first, again []spec, obstacles []obstacle) []result {
	second := map[string]spec{}
	for _, s := range again {
		second[s.Name] = s
	}
	var out []result
	for _, s := range first {
		r, last := judgeSpec(s, second[s.Name])
		switch why := prevented(obstacles, s.Name); {
		case r.Verdict == failed && last.State == "skipped":
			r = result{Spec: r.Spec, SIG: r.SIG, Verdict: leftOut, Part: "skips itself: " + cause(last.Message)}
		case r.Verdict != notReached:
		case excluded(s) != "":
			r.Part = excluded(s)
		case why != "":
			r.Verdict, r.Part = leftOut, why
		}
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b result) int { return cmp.Compare(a.Spec, b.Spec) })
	return out
}

// whyInterrupted is why OTHERS has not run a spec that it selects.
const whyInterrupted = "not reached before the run was interrupted"

// unfinished gives the specs that an interrupted run has not reached their reason.
func unfinished(results []result) []result {
	for i, r := range results {
		if r.Verdict == notReached && r.Part == "" {
			results[i].Part = whyInterrupted
		}
	}
	return results
}

// unreached returns the specs that were to run and did not.
func unreached(results []result) []result {
	return slices.DeleteFunc(with(results, notReached), func(r result) bool { return r.Part != "" })
}
