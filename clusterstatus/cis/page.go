package cis

import (
	"fmt"
	"strings"
)

// Table is the table of all rows for the documentation, in Markdown.
func Table(has func(flag string) bool) string {
	var b strings.Builder
	b.WriteString("| row | level | asked for | counts here | mended by |\n|---|---|---|---|---|\n")
	for _, r := range Rows() {
		mend := r.Mends(has)
		if mend == "" {
			mend = "your judgement"
		}
		fmt.Fprintf(&b, "| %s | %d | %s | %s | %s |\n", r.ID, r.Level, cell(r.Asks), cell(r.Looks), cell(mend))
	}
	return b.String()
}

// Exceptions is the table of the rows that fail with the profile too, in Markdown.
func Exceptions(has func(flag string) bool) string {
	var b strings.Builder
	b.WriteString("| row | asked for | why it fails |\n|---|---|---|\n")
	for _, r := range Rows() {
		if why := r.Exception(has); why != "" {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", r.ID, cell(r.Asks), cell(why))
		}
	}
	return b.String()
}

// Exception returns why the row fails in a cluster with the profile; "" where it does not.
func (r *Row) Exception(has func(flag string) bool) string {
	if r.Hardened != "" {
		return r.Hardened
	}
	for _, f := range r.Flags {
		if !has(f) {
			return "this version has no --" + f
		}
	}
	return ""
}

// cell escapes a cell of a table. Flags are set as code by the page's readers, not here: a row's
// words are also printed in a terminal.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", "*", `\*`).Replace(text)
}
