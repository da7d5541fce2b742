package resource

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

func TestBounded(t *testing.T) {
	mistakes := func(n int, value string) (errs field.ErrorList) {
		for i := range n {
			errs = append(errs, field.Invalid(field.NewPath("spec", "ports").Index(i), value, "is wrong"))
		}
		return errs
	}
	for _, test := range []struct {
		name  string
		errs  field.ErrorList
		shown int
		last  string
	}{
		{"none", nil, 0, ""},
		{"as many as there may be", mistakes(mostMistakes, "x"), mostMistakes, ""},
		{"one more", mistakes(mostMistakes+1, "x"), mostMistakes,
			"spec.ports[256]: Too many: 257: mistakes: this one and those after it are left out"},
		{"long ones", mistakes(10, strings.Repeat("x", 100<<10)), 2,
			"spec.ports[2]: Too many: 10: mistakes: this one and those after it are left out"},
		{"the first one alone is too long", mistakes(2, strings.Repeat("x", 1<<20)), 1,
			"spec.ports[1]: Too many: 2: mistakes: this one and those after it are left out"},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := slices.Clone(test.errs)
			got := bounded(test.errs)
			if test.last == "" {
				if !slices.Equal(got, before) {
					t.Errorf("%d of %d mistakes are told", len(got), len(before))
				}
				return
			}
			if len(got) != test.shown+1 || !slices.Equal(got[:test.shown], before[:test.shown]) {
				t.Fatalf("%d entries, want the first %d mistakes and one of those left out", len(got), test.shown)
			}
			if text := got[test.shown].Error(); text != test.last {
				t.Errorf("the last one is %q, want %q", text, test.last)
			}
			if !slices.Equal(test.errs, before) {
				t.Error("the list that was given is another one now")
			}
		})
	}
}
