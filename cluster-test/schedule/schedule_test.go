package schedule

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

type kind struct {
	name    string
	missing error
}

func (k kind) Name() string    { return k.name }
func (k kind) Possible() error { return k.missing }

func kinds(n int) (all []kind) {
	for i := range n {
		all = append(all, kind{name: fmt.Sprintf("fault %d", i)})
	}
	return all
}

var every = regexp.MustCompile("")

// A seed gives one order, each round has every fault once, and other seeds give other orders.
func TestOrder(t *testing.T) {
	const n, rounds = 40, 3
	order := func(seed uint64) (names []string) {
		s, _ := New(seed, every, kinds(n))
		for i := range rounds * n {
			names = append(names, s.At(i).name)
		}
		return names
	}
	first, other := order(1), order(2)
	if again := order(1); !slices.Equal(first, again) {
		t.Errorf("a seed gives %q, and then %q", first, again)
	}
	for _, c := range []struct {
		what string
		a, b []string
	}{{"two seeds", first, other}, {"two rounds", first[:n], first[n : 2*n]}} {
		same := 0
		for i := range c.a {
			if c.a[i] == c.b[i] {
				same++
			}
		}
		if same > len(c.a)/2 {
			t.Errorf("%s have %d of %d faults in common", c.what, same, len(c.a))
		}
	}
	for round := range rounds {
		seen := slices.Compact(slices.Sorted(slices.Values(first[round*n : (round+1)*n])))
		if len(seen) != n {
			t.Errorf("round %d has %d of %d faults", round, len(seen), n)
		}
	}
	s, _ := New(1, every, kinds(n))
	if a, b := s.Rand("a").Uint64(), s.Rand("b").Uint64(); a == b || a != s.Rand("a").Uint64() {
		t.Error("a name does not have numbers of its own")
	}
}

func TestNew(t *testing.T) {
	missing := errors.New("no disk")
	all := append(kinds(3), kind{"impossible", missing}, kind{"impossible too", missing})
	s, left := New(7, regexp.MustCompile("^fault [01]$|impossible$"), all)
	if s.Seed != 7 || !slices.Equal(s.Faults, all[:2]) {
		t.Errorf("chosen: %+v", s)
	}
	if len(left) != 1 || !errors.Is(left[0], missing) || !strings.Contains(left[0].Error(), "impossible") {
		t.Errorf("left out: %v", left)
	}
	a, _ := New(0, every, all)
	b, _ := New(0, every, all)
	if a.Seed == 0 || a.Seed == b.Seed {
		t.Errorf("seeds are drawn: %d, %d", a.Seed, b.Seed)
	}
}

func TestOver(t *testing.T) {
	for _, c := range []struct {
		what     string
		duration time.Duration
		least    int
		count    int
		number   int
		elapsed  time.Duration
		want     bool
	}{
		{"each once: the last", 0, 0, 0, 2, time.Hour, false},
		{"each once: one more", 0, 0, 0, 3, 0, true},
		{"in time", time.Minute, 0, 0, 1000, time.Minute, false},
		{"too late", time.Minute, 0, 0, 0, time.Minute + 1, true},
		{"too late, and one of the least", time.Minute, 3, 0, 2, time.Hour, false},
		{"too late, and one more than the least", time.Minute, 3, 0, 3, time.Minute + 1, true},
		{"in time, and one more than the least", time.Minute, 3, 0, 3, time.Minute, false},
		{"counted", time.Minute, 0, 5, 4, time.Hour, false},
		{"counted: one more", time.Minute, 0, 5, 5, 0, true},
	} {
		s := Schedule[kind]{Faults: kinds(3), Duration: c.duration, Least: c.least, Count: c.count}
		if got := s.Over(c.number, c.elapsed); got != c.want {
			t.Errorf("%s: over is %v", c.what, got)
		}
	}
}

func TestChoose(t *testing.T) {
	all := append(kinds(3), kind{"impossible", errors.New("no disk")})
	choose := func(args ...string) (*Plan[kind], string, error) {
		flags := flag.NewFlagSet("", flag.ContinueOnError)
		flags.SetOutput(io.Discard)
		f := NewFlags(flags, time.Minute)
		if err := flags.Parse(args); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		plan, err := Choose(f, all, &out)
		return plan, out.String(), err
	}
	plan, _, err := choose("-seed=7", "-faults=fault [12]|imp", "-count=9")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := plan.Repeat("chaos", "MORE=1"),
		"make chaos SEED=7 COUNT=9 MORE=1 FAULTS='fault [12]|imp'"; got != want {
		t.Errorf("repeat with %q, want %q", got, want)
	}
	var said strings.Builder
	plan.Announce(&said, "this")
	for _, want := range []string{"seed 7, 2 kinds", "\n  this\n", "left out: impossible: no disk"} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("announced without %q: %q", want, said.String())
		}
	}
	if plan, _, err = choose("-seed=7"); err != nil || plan.Repeat("chaos") != "make chaos SEED=7 DURATION=1m0s" {
		t.Errorf("repeat with %q, %v", plan.Repeat("chaos"), err)
	}
	if plan, out, err := choose("-list"); plan != nil || err != nil ||
		out != "fault 0\nfault 1\nfault 2\nleft out: impossible: no disk\n" {
		t.Errorf("listed %q, %v", out, err)
	}
	for _, args := range [][]string{{"-faults=nothing"}, {"-faults=("}, {"-faults=impossible"}} {
		if plan, _, err := choose(args...); err == nil || plan != nil {
			t.Errorf("%v: no error", args)
		}
	}
}
