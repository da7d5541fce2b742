package verify

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/barque/barque/internal/exitcode"
)

// TestConclusion: a broken promise counts also after an interruption or a failed removal. The
// conclusion says that nothing is left only if nothing is left.
func TestConclusion(t *testing.T) {
	kept, broken := &Report{Checks: []Check{{Name: "c"}}},
		&Report{Checks: []Check{{Name: "c", Problems: []string{"p"}}}}
	unjudged := &Report{Checks: []Check{{Name: "c", Unjudged: []string{"u"}}}}
	left := fmt.Errorf("%w", errors.Join(context.Canceled, &LeftError{Namespace: "n"}))
	for name, c := range map[string]struct {
		r           *Report
		err         error
		interrupted bool
		code        int
	}{
		"kept":                             {kept, nil, false, 0},
		"not judged":                       {unjudged, nil, false, 1},
		"broken":                           {broken, nil, false, 1},
		"failed":                           {kept, errors.New("x"), false, 1},
		"nothing was begun":                {nil, errors.New("x"), false, 1},
		"interrupted before it began":      {nil, context.Canceled, true, exitcode.Interrupted},
		"interrupted":                      {kept, context.Canceled, true, exitcode.Interrupted},
		"interrupted, something is left":   {kept, left, true, exitcode.Unfinished},
		"something is left":                {kept, &LeftError{Namespace: "n"}, false, exitcode.Unfinished},
		"broken, interrupted":              {broken, context.Canceled, true, 1},
		"broken, and something is left":    {broken, &LeftError{Namespace: "n"}, false, 1},
		"broken, interrupted, and is left": {broken, left, true, 1},
	} {
		unbegun := false
		err := Conclusion(c.r, c.err, c.interrupted, func(err error) error {
			unbegun = true
			return err
		})
		var coded interface{ ExitCode() int }
		code := 0
		switch {
		case errors.As(err, &coded):
			code = coded.ExitCode()
		case err != nil:
			code = 1
		}
		if code != c.code {
			t.Errorf("%s: exit code %d, want %d: %v", name, code, c.code, err)
		}
		if c.interrupted && coded == nil {
			t.Errorf("%s: %v has no exit code, so the command would say that nothing was changed", name, err)
		}
		if c.err != nil && !strings.Contains(err.Error(), c.err.Error()) {
			t.Errorf("%s: %v; want %v", name, err, c.err)
		}
		if want := name == "nothing was begun"; unbegun != want {
			t.Errorf("%s: taken for a run that has begun nothing: %t", name, unbegun)
		}
	}
}
