package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// The part of the page about specs that are not of conformance: a table with a row for each SIG,
// and below it a section for each. A run replaces those of the SIGs that it was asked for.
const (
	othersBegin   = "<!-- make conformance OTHERS writes from here -->"
	othersEnd     = "<!-- to here, of OTHERS -->"
	othersHeading = "#### "
	othersHeader  = "| SIG | specs | passed | failed | cannot run here | not run |\n|---|---|---|---|---|---|\n"
)

// othersVerdicts are the columns of that table, after the number of specs.
var othersVerdicts = []verdict{passed, failed, leftOut, notReached}

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
	if n := len(unreached(results)); n > 0 {
		return "", fmt.Errorf("%d specs were not reached", n)
	}
	all := rows(results)
	for _, r := range all[:len(all)-1] { // the last one is the sum
		counts[r.sig] = r
		ofSIG := slices.DeleteFunc(slices.Clone(results), func(x result) bool { return x.SIG != r.sig })
		sections[r.sig] = othersSection(of, ofSIG)
	}
	var b strings.Builder
	b.WriteString(before + othersBegin + "\n\n" + othersTable(slices.Collect(maps.Values(counts))))
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(&b, "\n%s%s\n\n%s\n", othersHeading, name, sections[name])
	}
	return b.String() + "\n" + othersEnd + after, nil
}

// othersTable has the rows, by SIG, and their sum.
func othersTable(rows []row) string {
	slices.SortFunc(rows, func(a, b row) int { return cmp.Compare(a.sig, b.sig) })
	sum := row{sig: "all"}
	for _, r := range rows {
		for v, n := range r.counts {
			sum.counts[v] += n
		}
	}
	var b strings.Builder
	b.WriteString(othersHeader)
	for i, r := range append(rows, sum) {
		bold := ""
		if i == len(rows) {
			bold = "**"
		}
		cells := []string{r.sig, strconv.Itoa(r.total())}
		for _, v := range othersVerdicts {
			cells = append(cells, strconv.Itoa(r.counts[v]))
		}
		fmt.Fprintf(&b, "| %s |\n", bold+strings.Join(cells, bold+" | "+bold)+bold)
	}
	return b.String()
}

// readRow reads a SIG's row of the table.
func readRow(line string) (row, bool) {
	cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
	if len(cells) != 2+len(othersVerdicts) {
		return row{}, false
	}
	r := row{sig: strings.TrimSpace(cells[0])}
	for i, v := range othersVerdicts {
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
	b.WriteString(of.heading())
	late := slices.DeleteFunc(with(results, passed), func(r result) bool { return !r.Retried })
	if len(late) > 0 {
		b.WriteString("\nPassed only when they ran once more, alone:\n\n")
	}
	for _, r := range late {
		fmt.Fprintf(&b, "- %s\n", r.Spec)
	}
	bad := with(results, failed)
	if len(bad) > 0 {
		b.WriteString("\nFailed:\n\n")
	}
	for _, r := range bad {
		fmt.Fprintf(&b, "- %s:\n  `%s`\n", r.Spec, strings.ReplaceAll(r.Reason, "`", "'"))
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
	if len(late)+len(bad)+len(cannot) == 0 && len(with(results, passed)) > 0 {
		b.WriteString("\nAll that ran passed, at the first try.\n")
	}
	if counts := notRun(results); len(counts) > 0 {
		fmt.Fprintf(&b, "\nNot run: %s.\n", strings.Join(counts, ", "))
	}
	return strings.TrimSpace(b.String())
}

// summarizeOthers prints the specs that did not simply pass, and the table.
func summarizeOthers(w io.Writer, results []result) {
	fmt.Fprintln(w)
	for _, r := range results {
		switch {
		case r.Verdict == leftOut:
			fmt.Fprintf(w, "%s: cannot run here: %s\n", r.Spec, r.Part)
		case r.Verdict == failed || r.Retried || r.Verdict == notReached && r.Part == "":
			fmt.Fprintf(w, "%s: %s\n", r.Spec, r.outcome())
		}
	}
	all := rows(results)
	fmt.Fprintf(w, "\n%s", othersTable(all[:len(all)-1])) // the last one is the sum
}

// notRun counts the specs that OTHERS does not select, by why, in the order of exclusions.
func notRun(results []result) []string {
	counts := map[string]int{}
	for _, r := range with(results, notReached) {
		counts[r.Part]++
	}
	var out []string
	for _, e := range append(slices.Clip(exclusions), exclusion{why: whyInterrupted}) {
		if n := counts[e.why]; n > 0 {
			out = append(out, fmt.Sprintf("%d %s", n, e.why))
		}
	}
	return out
}
