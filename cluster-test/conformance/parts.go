package main

import (
	_ "embed"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

//go:embed parts.tsv
var partsTable string

// part is a line of parts.tsv.
type part struct {
	name    string
	needs   []string
	pattern *regexp.Regexp // of the names of the specs that need it
}

func parseParts(table string) ([]part, error) {
	var out []part
	for line := range strings.Lines(table) {
		line = strings.TrimRight(line, "\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Split(line, "\t")
		if len(f) != 3 || f[0] == "" || f[1] == "" || f[2] == "" {
			return nil, fmt.Errorf("parts.tsv: want PART, NEEDS and PATTERN with tabs between them, got %q", line)
		}
		pattern, err := regexp.Compile(f[2])
		if err != nil {
			return nil, fmt.Errorf("parts.tsv: %s: %w", f[0], err)
		}
		out = append(out, part{f[0], strings.Split(f[1], ","), pattern})
	}
	return out, nil
}

// absent returns the parts that need something which the cluster has not.
func absent(parts []part, has map[string]bool) []part {
	return slices.DeleteFunc(slices.Clone(parts), func(p part) bool {
		return !slices.ContainsFunc(p.needs, func(need string) bool { return !has[need] })
	})
}

// missing is the name of the first of the parts that the spec needs, or "".
func missing(parts []part, spec string) string {
	for _, p := range parts {
		if p.pattern.MatchString(spec) {
			return p.name
		}
	}
	return ""
}

// anyOf is a regular expression for the specs that need any of the parts; "" when there are none.
func anyOf(parts []part) string {
	var patterns []string
	for _, p := range parts {
		patterns = append(patterns, "(?:"+p.pattern.String()+")")
	}
	return strings.Join(patterns, "|")
}

// unused returns the parts that no spec needs: their lines are wrong, or no longer wanted.
func unused(parts []part, specs []spec) []string {
	var out []string
	for _, p := range parts {
		if !slices.ContainsFunc(specs, func(s spec) bool { return p.pattern.MatchString(s.Name) }) {
			out = append(out, fmt.Sprintf("%s (%s)", p.name, p.pattern))
		}
	}
	return out
}
