package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/internal/history"
)

// round is work whose end takes a second.
type round struct {
	log  *[]string
	name string
	err  error
}

func (r round) Stop(context.Context, time.Duration) (*Verdict, error) {
	time.Sleep(time.Second) // of virtual time
	*r.log = append(*r.log, "end "+r.name)
	return &Verdict{Calls: 10, Unjudged: []string{r.name}}, r.err
}

// TestRounds: long work is judged in rounds of one length without a pause, and every round that
// begins ends. Silence at a round's end is an error of the last round only. A failed removal of
// objects is no error.
func TestRounds(t *testing.T) {
	broken := errors.New("broken")
	silent := &SilentError{"answered", time.Minute, broken.Error()}
	for name, c := range map[string]struct {
		total, interrupted  time.Duration
		failsStart, failsIn int // number of the round; -1: none
		end                 error
		want                string
		calls               int
		fails               error
	}{
		"short": {20 * time.Second, time.Hour, -1, -1, nil, "begin 0, end 0", 10, nil},
		"long": {150 * time.Second, time.Hour, -1, -1, nil,
			"begin 0, begin 1, end 0, begin 2, end 1, end 2", 30, nil},
		"interrupted": {time.Hour, 70 * time.Second, -1, -1, nil, "begin 0, begin 1, end 0, end 1", 20,
			nil},
		"interrupted at once": {time.Hour, 0, -1, -1, nil, "begin 0, end 0", 10, nil},
		"a start that fails":  {time.Hour, time.Hour, 2, -1, nil, "begin 0, begin 1, end 0, end 1", 20, broken},
		"a start and an end":  {time.Hour, time.Hour, 2, 1, silent, "begin 0, begin 1, end 0, end 1", 20, silent},
		"an end without a server": {150 * time.Second, time.Hour, -1, 1, silent,
			"begin 0, begin 1, end 0, begin 2, end 1, end 2", 30, nil},
		"the last without a server": {150 * time.Second, time.Hour, -1, 2, silent,
			"begin 0, begin 1, end 0, begin 2, end 1, end 2", 30, silent},
		"an end that leaves things": {150 * time.Second, time.Hour, -1, 1, broken,
			"begin 0, begin 1, end 0, begin 2, end 1, end 2", 30, nil},
		"the last leaves things": {10 * time.Second, time.Hour, -1, 0, broken, "begin 0, end 0", 10, nil},
		"the first start fails":  {10 * time.Second, time.Hour, 0, -1, nil, "", 0, broken},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), c.interrupted)
			defer cancel()
			var log []string
			began := time.Now()
			v, err := rounds{total: c.total, each: time.Minute, progress: func(string, ...any) {},
				start: func(n int) (stopper, error) {
					if n == c.failsStart {
						return nil, broken
					}
					log = append(log, fmt.Sprintf("begin %d", n))
					r := round{log: &log, name: fmt.Sprint(n)}
					if n == c.failsIn {
						r.err = c.end
					}
					return r, nil
				}}.run(ctx)
			if got := strings.Join(log, ", "); got != c.want {
				t.Errorf("%s: %s; want %s", name, got, c.want)
			}
			if !errors.Is(err, c.fails) {
				t.Errorf("%s: %v; want %v", name, err, c.fails)
			} else if v == nil || v.Calls != c.calls || len(v.Unjudged) != c.calls/10 {
				t.Errorf("%s: %+v; want %d calls", name, v, c.calls)
			}
			if took := time.Since(began); err == nil && took > min(c.total, c.interrupted)+2*time.Second {
				t.Errorf("%s: it took %s", name, took)
			}
		})
	}
}

// brokenRound is a round with a broken promise.
type brokenRound struct{ round }

func (r brokenRound) Stop(context.Context, time.Duration) (*Verdict, error) {
	return &Verdict{Violations: []string{"a lost write"}}, nil
}

// TestRoundsTellAtOnce: a broken promise is reported when its round is judged, not at the end of
// the run.
func TestRoundsTellAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []string
		began := time.Now()
		_, err := rounds{total: time.Hour, each: time.Minute, progress: func(format string, args ...any) {
			told = append(told, time.Since(began).String()+" "+fmt.Sprintf(format, args...))
		}, start: func(n int) (stopper, error) {
			r := round{log: new([]string), name: fmt.Sprint(n)}
			if n == 0 {
				return brokenRound{r}, nil
			}
			return r, nil
		}}.run(t.Context())
		if err != nil || len(told) < 3 || told[0] != "1m0s NOT KEPT: a lost write (1 found in this round)" ||
			!strings.Contains(told[1], "59m0s to go") || !strings.HasSuffix(told[1], ", broken promises: 1") ||
			!strings.HasSuffix(told[len(told)-1], ", broken promises: 1") {
			t.Errorf("%v: %q", err, told)
		}
	})
}

// TestWhatWasFoundBeforeTheEnd: the report has the findings of a run that was cut short.
func TestWhatWasFoundBeforeTheEnd(t *testing.T) {
	c := &checking{Options: Options{Progress: t.Logf}, report: new(Report)}
	silent := &SilentError{"answered", time.Minute, "x"}
	err := c.judged(&Verdict{Violations: []string{"a lost write"}}, silent, &ProbeResult{Acknowledged: 3}, nil)
	if !errors.Is(err, silent) || !c.report.Broken() || !c.report.Unjudged() || c.report.Acknowledged != 3 {
		t.Errorf("%v: %+v", err, c.report)
	}
}

// TestSumOfVerdicts: the sum of many verdicts has a bound.
func TestSumOfVerdicts(t *testing.T) {
	sum := new(Verdict)
	for n := range 3 {
		sum.add(
			&Verdict{Violations: slices.Repeat([]string{fmt.Sprint(n)}, maxViolations/2+1), Calls: 1, Checked: 2,
				Skipped: 3, Events: 4, Revisions: 5})
	}
	if len(sum.Violations) != maxViolations || sum.Violations[0] != "0" || sum.Violations[maxViolations-1] != "1" {
		t.Errorf("%d violations: %v", len(sum.Violations), sum.Violations)
	}
	if sum.Calls != 3 || sum.Checked != 6 || sum.Skipped != 9 || sum.Events != 12 || sum.Revisions != 15 {
		t.Errorf("%+v", sum)
	}
}

// TestNotJudged: a search without an end proves neither a broken promise nor a kept one.
func TestNotJudged(t *testing.T) {
	w := newWorld()
	w.write("x", "t0")
	// Each deletion may or may not have taken effect, at any time, and the last answer is
	// impossible: the search has to try every subset of them.
	for i := range 60 {
		c := w.call(Delete, "x", "", 1000+uint64(i))
		c.Client, c.Outcome = fmt.Sprint("c", i), Unknown
		w.Add(c)
	}
	impossible := w.call(Get, "x", "", 0)
	impossible.Client, impossible.Revision = "d", 5
	j := &judge{log: history.New(), calls: append(w.calls, impossible)}
	j.order(20 * time.Millisecond)
	if len(j.log.All) != 0 || len(j.Unjudged) != 1 || !strings.Contains(j.Unjudged[0], "not found out in 20ms") {
		t.Errorf("%q, not judged: %q", j.log.All, j.Unjudged)
	}
}
