package main

import (
	"fmt"
	"strings"
	"time"
)

// The page has the text of a person, and between these lines the results of the last full run.
const (
	beginMark = "<!-- make operators writes from here -->"
	endMark   = "<!-- to here -->"
)

// run describes the program that ran, and when.
type run struct {
	Barque string
	Date   time.Time
	Took   time.Duration
}

// update returns the page with the results of a full run.
func update(page string, of run, results []result) (string, error) {
	before, rest, ok := strings.Cut(page, beginMark)
	_, after, closed := strings.Cut(rest, endMark)
	if !ok || !closed {
		return "", fmt.Errorf("the page lacks the lines %q and %q: results go between them", beginMark, endMark)
	}
	return before + beginMark + "\n\n" + fmt.Sprintf("Barque %s, %d servers, %s, %d minutes.\n\n", of.Barque, servers,
		of.Date.Format("2 January 2006"), int(of.Took.Round(time.Minute).Minutes())) + table(results) + "\n" + endMark +
		after, nil
}

// table has a line for each program.
func table(results []result) string {
	var b strings.Builder
	b.WriteString("| program | version | scenario | result |\n|---|---|---|---|\n")
	for _, r := range results {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", r.name, r.version, r.scenario, r.outcome())
	}
	return b.String()
}

// outcome says in which rounds the fact held, or why it did not.
func (r result) outcome() string {
	if r.err != nil {
		text := []rune(strings.Join(strings.Fields(r.err.Error()), " "))
		if len(text) > 300 {
			text = append(text[:300], '…')
		}
		return "failed: `" + strings.NewReplacer("`", "'", "|", "\\|").Replace(string(text)) + "`"
	}
	if len(r.held) == 0 {
		return "not run" // the cluster broke before
	}
	var held []string
	for _, h := range r.held {
		held = append(held, string(h))
	}
	return "holds: " + strings.Join(held, ", ")
}
