package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// report gathers the differences of answers.
type report struct {
	options
	asked, same, sameTexts int
	kinds                  map[string]*tally
	differ                 map[string][]string // names of requests by how their answers differ
	unanswered             []string            // requests that kube-apiserver closes the connection on
}

// tally counts the requests of one kind.
type tally struct{ asked, same int }

func newReport(o options) *report {
	return &report{options: o, kinds: map[string]*tally{}, differ: map[string][]string{}}
}

func (r *report) compare(q request, want, got *answer) {
	r.asked++
	kind, _, _ := strings.Cut(q.name, " ")
	if r.kinds[kind] == nil {
		r.kinds[kind] = &tally{}
	}
	r.kinds[kind].asked++
	var how []string
	if want.code != got.code || want.reason != got.reason {
		how = append(how, fmt.Sprintf("status: upstream %s, Barque %s", want.outcome(), got.outcome()))
	} else {
		how = append(how, missing("causes", want.causes, got.causes)...)
		how = append(how, missing("warnings", want.warnings, got.warnings)...)
		how = append(how, differences("", want.object, got.object)...)
	}
	if len(how) == 0 {
		r.same++
		r.kinds[kind].same++
		how = missing("texts", want.texts, got.texts)
		if len(want.causes)+len(got.causes) == 0 && want.message != got.message && want.object == nil {
			how = append(how, fmt.Sprintf("texts: upstream %q, Barque %q", want.message, got.message))
		}
		if len(how) == 0 {
			r.sameTexts++
		}
		if len(how) == 0 || !r.texts {
			return
		}
	}
	key := strings.Join(how, "\n    ")
	r.differ[key] = append(r.differ[key], q.name)
}

func (a *answer) outcome() string {
	if a.code < 300 {
		return fmt.Sprint(a.code)
	}
	said := a.texts
	if len(said) == 0 {
		said = []string{a.message}
	}
	return fmt.Sprintf("%d %s (%s)", a.code, a.reason, strings.Join(said, "; "))
}

// missing returns the entries that only one of two sorted lists has.
func missing(what string, want, got []string) []string {
	var out []string
	for _, w := range want {
		if !slices.Contains(got, w) {
			out = append(out, what+": only upstream: "+w)
		}
	}
	for _, g := range got {
		if !slices.Contains(want, g) {
			out = append(out, what+": only Barque: "+g)
		}
	}
	return out
}

func (r *report) print(w io.Writer) {
	keys := slices.SortedFunc(maps.Keys(r.differ), func(a, b string) int {
		return cmp.Or(strings.Compare(r.differ[a][0], r.differ[b][0]), strings.Compare(a, b))
	})
	for _, key := range keys {
		names := r.differ[key]
		for _, name := range names[:min(len(names), r.show)] {
			fmt.Fprintln(w, name)
		}
		if more := len(names) - r.show; more > 0 {
			fmt.Fprintf(w, "and %d more\n", more)
		}
		fmt.Fprintf(w, "    %s\n\n", key)
	}
	if len(r.unanswered) > 0 {
		fmt.Fprintf(w, "kube-apiserver closes the connection without an answer, and nothing is compared:\n    %s\n\n",
			strings.Join(r.unanswered, "\n    "))
	}
	for _, kind := range slices.Sorted(maps.Keys(r.kinds)) {
		t := r.kinds[kind]
		fmt.Fprintf(w, "%-34s %5d of %5d\n", kind, t.same, t.asked)
	}
	fmt.Fprintf(w, "%d requests: %s the same in status, causes, warnings and object; %s also in the texts\n",
		r.asked, share(r.same, r.asked), share(r.sameTexts, r.asked))
}

func share(part, of int) string {
	if of == 0 {
		return "none"
	}
	return fmt.Sprintf("%.2f %%", 100*float64(part)/float64(of))
}
