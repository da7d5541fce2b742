package procstat

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"strings"
	"testing"
)

func TestStat(t *testing.T) {
	line := func(state, threads, started string) string {
		return "7 (a (b) c) " + state + strings.Repeat(" 5", 16) + " " + threads + " 5 " + started + " 5\n"
	}
	for text, want := range map[string]struct {
		stat                    Stat
		runs, headless, stopped bool
	}{
		line("S", "3", "42"): {Stat{'S', 3, 42}, true, false, false},
		line("T", "1", "42"): {Stat{'T', 1, 42}, true, false, true},
		line("Z", "1", "42"): {Stat{'Z', 1, 42}, false, false, false},
		line("Z", "0", "42"): {Stat{'Z', 0, 42}, false, false, false},
		line("Z", "2", "42"): {Stat{'Z', 2, 42}, true, true, false},
		line("X", "2", "42"): {Stat{'X', 2, 42}, false, false, false},
	} {
		s, err := parse([]byte(text))
		if err != nil || s != want.stat || s.Runs() != want.runs || s.Headless() != want.headless || s.Stopped() != want.stopped {
			t.Errorf("%q: %+v, %v: runs %t, headless %t, stopped %t", text, s, err, s.Runs(), s.Headless(), s.Stopped())
		}
	}
	for _, text := range []string{"", "7", "7 (a) S 5", line("S", "x", "42"), line("S", "1", "-1")} {
		if s, err := parse([]byte(text)); err == nil {
			t.Errorf("%q is taken for %+v", text, s)
		}
	}
}

func TestRead(t *testing.T) {
	if s, err := Read(os.Getpid()); err != nil || !s.Runs() || s.Headless() || s.Stopped() || s.Threads < 1 || s.Started == 0 {
		t.Errorf("this process: %+v, %v", s, err)
	}
	if _, err := Read(math.MaxInt32); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a process that is not: %v", err)
	}
}
