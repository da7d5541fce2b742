package main

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The part of the page about specs that are not of conformance: a table with a row for each SIG,
// and below it a section for each. A run replaces those of the SIGs that it was asked for.
const (
	othersBegin   = "<!-- make conformance OTHERS writes from here -->"
	othersEnd     = "<!-- to here, of OTHERS -->"
	othersHeading = "#### "
	othersTable   = "| SIG | specs | passed | failed | cannot run here |\n|---|---|---|---|---|\n"
)

// ordinary selects the specs outside of conformance that need neither a feature of their own, nor
// the cluster for themselves, nor much time.
const ordinary = "!Conformance && Feature: isEmpty && !Slow && !Serial && !Disruptive && !Flaky && !Alpha"

// otherSIGs are those that OTHERS=all runs. Nearly all others need a cloud, Windows, or the images
// of storage drivers.
var otherSIGs = []string{"api-machinery", "apps", "architecture", "auth", "cli", "instrumentation", "network", "node", "scheduling"}

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

// chosenSIGs reads the value of -others.
func chosenSIGs(value string) []string {
	if value == "all" {
		return otherSIGs
	}
	return strings.FieldsFunc(value, func(r rune) bool { return r == ',' || r == ' ' })
}

func othersFilter(sigs []string) string {
	var any []string
	for _, s := range sigs {
		any = append(any, "sig-"+s)
	}
	return ordinary + " && (" + strings.Join(any, " || ") + ")"
}

// others runs the ordinary specs of some SIGs, and writes what came of them into the page.
func (l *lab) others(ctx context.Context, o options) error {
	obstacles, err := parseObstacles(reasonsTable)
	if err != nil {
		return err
	}
	sigs := chosenSIGs(o.others)
	t, err := l.twice(ctx, selection{name: "others", labels: othersFilter(sigs), procs: o.procs}, "others-again")
	if err != nil {
		return err
	}
	results := judgeOthers(t.first, t.again, obstacles)
	version, err := barqueVersion(ctx)
	if err != nil {
		return err
	}
	page, err := os.ReadFile(o.page)
	if err != nil {
		return err
	}
	text, err := updateOthers(string(page), run{
		Barque: version, Suite: l.suite.programs.version, Servers: servers, Agents: agents, Date: time.Now().UTC(), Took: t.took,
	}, results)
	if err != nil {
		return fmt.Errorf("%s stays as it was: %w", o.page, err)
	}
	if err := os.WriteFile(o.page, []byte(text), 0o644); err != nil {
		return err
	}
	fmt.Printf("written: %s\n", o.page)
	if n := len(with(results, failed)); n > 0 {
		return fmt.Errorf("%d of %d specs failed", n, len(results))
	}
	return nil
}

// judgeOthers makes results of specs. Those that skipped themselves, and those that failed for an
// obstacle, cannot run here; Part is why.
func judgeOthers(first, again []spec, obstacles []obstacle) []result {
	results := judge(first, again, nil)
	second := map[string]spec{}
	for _, s := range again {
		second[s.Name] = s
	}
	byName := map[string]spec{}
	for _, s := range first {
		if a := second[s.Name]; a.ran() {
			s = a
		}
		byName[short(s.Name)] = s
	}
	for i := range results {
		r := &results[i]
		s := byName[r.Spec]
		if r.Verdict != failed {
			continue
		}
		if s.State == "skipped" {
			r.Verdict, r.Part = leftOut, "skips itself: "+cause(s.Message)
		}
		for _, o := range obstacles {
			if o.pattern.MatchString(s.Name) {
				r.Verdict, r.Part = leftOut, o.why
				break
			}
		}
	}
	return results
}

// updateOthers returns the page with the results in place of those that it has of the same SIGs.
func updateOthers(page string, of run, results []result) (string, error) {
	before, rest, ok := strings.Cut(page, othersBegin)
	between, after, closed := strings.Cut(rest, othersEnd)
	if !ok || !closed {
		return "", fmt.Errorf("the page lacks the lines %q and %q: results go between them", othersBegin, othersEnd)
	}
	counts, sections := map[string]row{}, map[string]string{}
	head, bodies, _ := strings.Cut("\n"+between, "\n"+othersHeading)
	for line := range strings.Lines(head) {
		if r, ok := readRow(line); ok {
			counts[r.sig] = r
		}
	}
	for body := range strings.SplitSeq(bodies, "\n"+othersHeading) {
		if name, text, ok := strings.Cut(body, "\n"); ok {
			sections[name] = strings.TrimSpace(text)
		}
	}
	all := rows(results)
	for _, r := range all[:len(all)-1] { // the last one is the sum
		counts[r.sig] = r
		ofSIG := slices.DeleteFunc(slices.Clone(results), func(x result) bool { return x.SIG != r.sig })
		sections[r.sig] = othersSection(of, ofSIG)
	}
	var b strings.Builder
	b.WriteString(before + othersBegin + "\n\n" + othersTable)
	var names []string
	for name := range counts {
		names = append(names, name)
	}
	slices.Sort(names)
	sum := row{sig: "all"}
	for _, name := range names {
		r := counts[name]
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d |\n", name, r.total(), r.counts[passed], r.counts[failed], r.counts[leftOut])
		for v, n := range r.counts {
			sum.counts[v] += n
		}
	}
	fmt.Fprintf(&b, "| **all** | **%d** | **%d** | **%d** | **%d** |\n", sum.total(), sum.counts[passed], sum.counts[failed], sum.counts[leftOut])
	for _, name := range names {
		fmt.Fprintf(&b, "\n%s%s\n\n%s\n", othersHeading, name, sections[name])
	}
	return b.String() + "\n" + othersEnd + after, nil
}

// readRow reads a SIG's row of the table.
func readRow(line string) (row, bool) {
	cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
	if len(cells) != 5 {
		return row{}, false
	}
	r := row{sig: strings.TrimSpace(cells[0])}
	for i, v := range []verdict{passed, failed, leftOut} {
		n, err := strconv.Atoi(strings.TrimSpace(cells[i+2]))
		if err != nil {
			return row{}, false
		}
		r.counts[v] = n
	}
	return r, true
}

// othersSection lists the specs of a SIG that have not simply passed.
func othersSection(of run, results []result) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Barque %s, the suite of Kubernetes %s, %d servers and %d agents, %s.\n",
		of.Barque, of.Suite, of.Servers, of.Agents, of.Date.Format("2 January 2006"))
	late := slices.DeleteFunc(with(results, passed), func(r result) bool { return !r.Retried })
	if len(late) > 0 {
		b.WriteString("\nPassed only when they ran once more, alone:\n\n")
	}
	for _, r := range late {
		fmt.Fprintf(&b, "- %s\n", r.Spec)
	}
	bad := append(with(results, failed), with(results, notReached)...)
	if len(bad) > 0 {
		b.WriteString("\nFailed:\n\n")
	}
	for _, r := range bad {
		fmt.Fprintf(&b, "- %s:\n  `%s`\n", r.Spec, strings.ReplaceAll(cmp.Or(r.Reason, "not reached"), "`", "'"))
	}
	cannot := with(results, leftOut)
	slices.SortStableFunc(cannot, func(x, y result) int { return cmp.Compare(x.Part, y.Part) })
	if len(cannot) > 0 {
		b.WriteString("\nCannot run here:\n\n")
	}
	for i, r := range cannot {
		if i == 0 || r.Part != cannot[i-1].Part {
			fmt.Fprintf(&b, "- %s:\n", strings.ReplaceAll(r.Part, "`", "'"))
		}
		fmt.Fprintf(&b, "  - %s\n", r.Spec)
	}
	if len(late)+len(bad)+len(cannot) == 0 {
		b.WriteString("\nAll passed, at the first try.\n")
	}
	return strings.TrimSpace(b.String())
}
