package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestJoined: a server is started again only while its process does not run; one that runs is
// waited for; and the first error is reported, which may have caused the later ones.
func TestJoined(t *testing.T) {
	type moment struct { // the finding of one try
		runs         bool
		start, ready error
	}
	noOther, givenUp, notReady := errors.New("no other server is ready"), errors.New("not ready within a minute"),
		errors.New("it is not ready")
	runsAlready := errors.New("it runs; stop it")
	for what, c := range map[string]struct {
		tries  []moment // the last one stays
		starts int
		want   []string // in the error; none: there is none
	}{
		"at once":                   {[]moment{{}}, 1, nil},
		"when another one is ready": {[]moment{{start: noOther}, {start: noOther}, {}}, 3, nil},
		"given up, and ready at last": {
			[]moment{{start: givenUp}, {runs: true, start: runsAlready, ready: notReady},
				{runs: true, start: runsAlready}}, 1, nil},
		"given up, and ended": {
			[]moment{{start: givenUp}, {runs: true, start: runsAlready, ready: notReady}, {}}, 2, nil},
		"given up, and never ready": {
			[]moment{{start: givenUp}, {runs: true, start: runsAlready, ready: notReady}}, 1,
			[]string{"not within", notReady.Error(), "first try: " + givenUp.Error()}},
		"it runs before it may": {[]moment{{runs: true, start: runsAlready, ready: notReady}}, 1,
			[]string{notReady.Error(), "first try: " + runsAlready.Error()}},
		"never let in, for the same cause": {[]moment{{start: noOther}}, -1, []string{noOther.Error()}},
	} {
		synctest.Test(t, func(t *testing.T) {
			tries, starts := 0, 0
			now := func() moment { return c.tries[min(tries, len(c.tries)-1)] }
			err := joined(t.Context(), 10*time.Second, joining{
				start: func(context.Context) error { starts++; m := now(); tries++; return m.start },
				runs:  func() bool { return now().runs },
				ready: func(context.Context) error { m := now(); tries++; return m.ready },
			})
			if (err == nil) != (len(c.want) == 0) {
				t.Errorf("%s: %v", what, err)
			}
			for _, text := range c.want {
				if err != nil && strings.Count(err.Error(), text) != 1 {
					t.Errorf("%s: %v; want %q once", what, err, text)
				}
			}
			if c.starts >= 0 && starts != c.starts {
				t.Errorf("%s: it was started %d times, want %d", what, starts, c.starts)
			}
		})
	}
}
