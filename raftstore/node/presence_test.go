package node

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// What a server says of whether it was in touch at a moment is what is certain: also after a clean end, a kill, a time in which
// it was suspended, and a clock that was set.
func TestPresence(t *testing.T) {
	zero := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	at := func(second int) time.Time { return zero.Add(time.Duration(second) * time.Second) }
	type step struct {
		from, to int // looks each second
		led      bool
		end      string // "closed", "killed"
	}
	for name, c := range map[string]struct {
		steps []step
		now   int
		want  map[int]word
	}{
		"in touch all the time":    {[]step{{0, 600, true, ""}}, 600, map[int]word{-60: unknownWord, 0: unknownWord, 1: unknownWord, 10: wasInTouch, 590: wasInTouch, 600: unknownWord, 700: unknownWord}},
		"an election":              {[]step{{0, 100, true, ""}, {101, 103, false, ""}, {104, 200, true, ""}}, 200, map[int]word{102: wasInTouch, 104: wasInTouch}},
		"no leader":                {[]step{{0, 100, true, ""}, {101, 300, false, ""}}, 300, map[int]word{90: wasInTouch, 100: unknownWord, 103: wasNot, 290: wasNot, 299: unknownWord}},
		"suspended":                {[]step{{0, 100, true, ""}, {3700, 3710, true, ""}}, 3710, map[int]word{90: wasInTouch, 110: wasNot, 3600: wasNot, 3699: unknownWord, 3705: wasInTouch}},
		"suspended until just now": {[]step{{0, 100, true, ""}}, 3700, map[int]word{90: wasInTouch, 110: wasNot, 3600: wasNot}},
		"closed":                   {[]step{{0, 100, true, "closed"}}, 400, map[int]word{90: wasInTouch, 102: unknownWord, 103: wasNot, 300: wasNot}},
		"killed":                   {[]step{{0, 100, true, "killed"}}, 400, map[int]word{90: wasInTouch, 103: unknownWord, 107: unknownWord, 109: wasNot, 300: wasNot}},
		"killed, and up again":     {[]step{{0, 100, true, "killed"}, {300, 400, true, ""}}, 400, map[int]word{90: wasInTouch, 107: unknownWord, 200: wasNot, 350: wasInTouch}},
		"new":                      {nil, 100, map[int]word{50: unknownWord}},
		"the clock was behind":     {[]step{{-1000000, -999900, true, ""}, {0, 100, true, ""}}, 100, map[int]word{50: wasInTouch, -1000: wasNot}},
		"the clock was set back":   {[]step{{1000, 1100, true, ""}, {0, 100, true, ""}}, 100, map[int]word{50: unknownWord, 1050: wasInTouch}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := &Config{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)}
			reopen := func() *presence {
				p, err := openPresence(cfg, "c")
				if err != nil {
					t.Fatal(err)
				}
				return p
			}
			p := reopen()
			for _, s := range c.steps {
				for i := s.from; i <= min(s.to, s.from+1200); i++ {
					p.look(at(i), s.led)
					p.write(at(i))
				}
				switch s.end {
				case "closed":
					p.close()
					p = reopen()
				case "killed":
					p = reopen()
				}
			}
			for second, want := range c.want {
				if got := p.at(at(second), at(c.now)); got != want {
					t.Errorf("at %d: %q, want %q", second, got, want)
				}
			}
		})
	}
}

// A record of another cluster, as after a recovery, and one that is damaged, tell nothing.
func TestPresenceIsOfOneCluster(t *testing.T) {
	cfg := &Config{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)}
	p, err := openPresence(cfg, "c")
	if err != nil {
		t.Fatal(err)
	}
	began := wallTime()
	for i := range 100 {
		now := began.Add(time.Duration(i) * time.Second)
		p.look(now, true)
		p.write(now)
	}
	for cluster, want := range map[string]word{"c": wasInTouch, "d": unknownWord} {
		p, err := openPresence(cfg, cluster)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.at(began.Add(50*time.Second), began.Add(time.Hour)); got != want {
			t.Errorf("of %s: %q", cluster, got)
		}
	}
	if err := os.WriteFile(filepath.Join(cfg.Dir, presenceFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if p, err = openPresence(cfg, "c"); err != nil || p.at(began.Add(50*time.Second), began.Add(time.Hour)) != unknownWord {
		t.Errorf("a damaged one: %v", err)
	}
}

// A disk that hangs holds nobody up: neither who asks what the record says, nor a server that stops.
func TestPresenceOnADiskThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := openPresence(&Config{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)}, "c")
		if err != nil {
			t.Fatal(err)
		}
		p.pen <- struct{}{} // a write that does not come back
		began := wallTime()
		p.look(began, true)
		p.tryWrite()
		p.at(began, began)
		if took := wallTime().Sub(began); took != 0 {
			t.Errorf("asking took %s", took)
		}
		p.close()
		if took := wallTime().Sub(began); took > presenceWrite {
			t.Errorf("closing took %s", took)
		}
		<-p.pen
		synctest.Wait() // for what close began to write, before the directory goes
	})
}
