package node

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/internal/filelock"
	"github.com/barque/barque/internal/needs"
)

// twoClocks are those of a machine. Only the wall clock is set.
type twoClocks struct {
	wall time.Time
	ran  time.Duration
}

func (c *twoClocks) read() instant { return instant{c.wall, c.ran} }

func (c *twoClocks) pass(d time.Duration) { c.wall, c.ran = c.wall.Add(d), c.ran+d }

func (c *twoClocks) set(d time.Duration) { c.wall = c.wall.Add(d) }

func openTestPresence(t *testing.T, cfg *Config, cluster string, c *twoClocks) *presence {
	t.Helper()
	p, err := openPresence(cfg, cluster)
	if err != nil {
		t.Fatal(err)
	}
	p.clock = c.read
	return p
}

func inDir(dir string) *Config { return &Config{Dir: dir, Logger: slog.New(slog.DiscardHandler)} }

// What a server says of whether it was in touch at a moment is what is certain: also after a clean end, a kill, a time in which
// it was suspended, and a clock that was set.
func TestPresence(t *testing.T) {
	zero := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	type step struct {
		from, to int // looks each second of the wall clock
		led      bool
		end      string // "closed", "killed"; a new process goes on
		set      int    // by how many seconds the clock is set after it
	}
	on := func(from, to int) step { return step{from: from, to: to, led: true} }
	off := func(from, to int) step { return step{from: from, to: to} }
	for name, c := range map[string]struct {
		steps []step
		now   int
		want  map[int]word
	}{
		"in touch all the time":    {[]step{on(0, 600)}, 600, map[int]word{-60: unknownWord, 0: unknownWord, 1: unknownWord, 10: wasInTouch, 590: wasInTouch, 600: unknownWord, 700: unknownWord}},
		"an election":              {[]step{on(0, 100), off(101, 103), on(104, 200)}, 200, map[int]word{102: wasInTouch, 104: wasInTouch}},
		"no leader":                {[]step{on(0, 100), off(101, 300)}, 300, map[int]word{90: wasInTouch, 100: unknownWord, 103: wasNot, 290: wasNot, 299: unknownWord}},
		"suspended":                {[]step{on(0, 100), on(3700, 3710)}, 3710, map[int]word{90: wasInTouch, 110: wasNot, 3600: wasNot, 3699: unknownWord, 3705: wasInTouch}},
		"suspended until just now": {[]step{on(0, 100)}, 3700, map[int]word{90: wasInTouch, 110: wasNot, 3600: wasNot}},
		"closed":                   {[]step{{0, 100, true, "closed", 0}}, 400, map[int]word{90: wasInTouch, 102: unknownWord, 103: wasNot, 300: wasNot}},
		"killed":                   {[]step{{0, 100, true, "killed", 0}}, 400, map[int]word{90: wasInTouch, 103: unknownWord, 107: unknownWord, 109: wasNot, 300: wasNot}},
		"killed, and up again":     {[]step{{0, 100, true, "killed", 0}, on(300, 400)}, 400, map[int]word{90: wasInTouch, 107: unknownWord, 200: wasNot, 350: wasInTouch}},
		"new":                      {nil, 100, map[int]word{50: unknownWord}},
		"the clock was behind":     {[]step{{-1000000, -999900, true, "", 999900}, on(0, 100)}, 100, map[int]word{-1000: unknownWord, -500000: unknownWord, 50: wasInTouch}},
		"it was, a little":         {[]step{{0, 1000, true, "", 100}, on(1101, 1200)}, 1200, map[int]word{50: unknownWord, 200: wasInTouch, 990: wasInTouch, 1050: unknownWord, 1150: wasInTouch}},
		"it was, out of touch":     {[]step{on(0, 100), {101, 200, false, "", 1000}, off(1200, 1300)}, 1300, map[int]word{90: unknownWord, 500: unknownWord, 1090: unknownWord, 1150: wasNot, 1250: wasNot}},
		"the clock was ahead":      {[]step{{1000, 1100, true, "", -1100}, on(0, 100)}, 100, map[int]word{50: wasInTouch, 1050: unknownWord}},
		"ahead, out of touch":      {[]step{{1000, 1100, true, "", -1100}, off(0, 2000)}, 2000, map[int]word{50: unknownWord, 1050: unknownWord, 1200: wasNot}},
		"ahead, in a process":      {[]step{{1000, 1100, true, "closed", 0}, off(0, 2000)}, 2000, map[int]word{50: unknownWord, 1050: unknownWord, 1200: wasNot}},
		"before it was set":        {[]step{{0, 100, true, "closed", 0}, on(500, 600), {601, 700, true, "", 50}, on(751, 800)}, 800, map[int]word{50: wasInTouch, 300: wasNot, 510: unknownWord, 600: wasInTouch, 720: unknownWord}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := inDir(t.TempDir())
			clock := &twoClocks{wall: zero}
			p := openTestPresence(t, cfg, "c", clock)
			goTo := func(second int) { clock.pass(zero.Add(time.Duration(second) * time.Second).Sub(clock.wall)) }
			for i, s := range c.steps {
				if goTo(s.from); i == 0 || clock.ran < 0 { // of a process that begins here
					clock.ran = 0
				}
				for second := s.from; second <= s.to; second++ {
					goTo(second)
					p.look(s.led)
					p.write()
				}
				clock.set(time.Duration(s.set) * time.Second)
				if s.end == "closed" {
					p.close()
				}
				if s.end != "" {
					clock.ran = 0
					p = openTestPresence(t, cfg, "c", clock)
				}
			}
			goTo(c.now)
			for second, want := range c.want {
				since := clock.wall.Sub(zero.Add(time.Duration(second) * time.Second))
				if got := p.at(ago{since, since}); since >= 0 && got != want || since < 0 && got != unknownWord {
					t.Errorf("at %d: %q, want %q", second, got, want)
				}
			}
		})
	}
}

// Of a moment of which the clocks of others do not agree when it was, only that is said which is true of all the time between.
func TestPresenceOfAMomentThatIsNotCertain(t *testing.T) {
	clock := &twoClocks{wall: time.Now()}
	p := openTestPresence(t, &Config{InMemory: true}, "c", clock)
	for range 100 {
		p.look(true)
		clock.pass(time.Second)
	}
	for range 100 {
		p.look(false)
		clock.pass(time.Second)
	}
	for _, c := range []struct {
		least, most int
		want        word
	}{{110, 190, wasInTouch}, {20, 80, wasNot}, {80, 120, unknownWord}, {1, 50, unknownWord}, {190, 110, unknownWord}, {-50, 50, unknownWord}, {110, 300, unknownWord}} {
		if got := p.at(ago{time.Duration(c.least) * time.Second, time.Duration(c.most) * time.Second}); got != c.want {
			t.Errorf("%d to %d seconds ago: %q, want %q", c.least, c.most, got, c.want)
		}
	}
}

// On a real clock time passes between a look and the next question, and a wall clock is set back a little, again and again. Neither ends a span.
func TestQuestionsEndNoSpan(t *testing.T) {
	clock := &twoClocks{wall: time.Now()}
	p := openTestPresence(t, &Config{InMemory: true}, "c", clock)
	began := clock.wall
	p.clock = func() instant { // each reading is later than the one before
		clock.pass(time.Millisecond)
		return clock.read()
	}
	for range 600 {
		clock.pass(time.Second)
		clock.set(-time.Millisecond)
		p.look(true)
		clock.set(-time.Millisecond)
		p.at(ago{time.Minute, time.Minute})
		p.at(ago{})
		p.goesOn(ago{})
		clock.set(2 * time.Millisecond)
	}
	if len(p.spans) != 1 || !p.open || p.spans[0].Since.Sub(began) > 2*time.Second {
		t.Errorf("the record is %+v", p.spans)
	}
	if !p.goesOn(ago{}) || p.goesOn(ago{time.Hour, time.Hour}) || p.at(ago{time.Minute, time.Minute}) != wasInTouch {
		t.Error("it has not been in touch for ten minutes")
	}
}

// A leader that finds out about a claim of just now is in touch since before it, and stays in touch.
func TestFindingsOfALeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSickbay(t, 3)
		n := s.nodes[s.leader(-1)]
		<-time.After(10 * time.Second)
		p := n.presence
		p.mu.Lock()
		inner := p.clock
		passed := time.Duration(0)
		p.clock = func() instant { // synctest's stands still between two lines
			passed += time.Millisecond
			now := inner()
			return instant{now.wall.Add(passed), now.ran + passed}
		}
		p.mu.Unlock()
		one := &trial{}
		one.hear(claim{Succession: Succession{Cluster: "test", Heir: "mistake", By: "gone", At: time.Now()}, heard: time.Now()})
		for range 5 {
			if f := n.find(one); !f.leads || !f.goesOn {
				t.Fatalf("found %+v", f)
			}
		}
		if len(p.spans) != 1 {
			t.Errorf("the record is %+v", p.spans)
		}
	})
}

// A record of another cluster, as after a recovery, and one that is damaged, tell nothing.
func TestPresenceIsOfOneCluster(t *testing.T) {
	cfg := inDir(t.TempDir())
	clock := &twoClocks{wall: time.Now()}
	p := openTestPresence(t, cfg, "c", clock)
	for range 100 {
		p.look(true)
		p.write()
		clock.pass(time.Second)
	}
	clock.pass(time.Hour)
	when := ago{time.Hour + 50*time.Second, time.Hour + 50*time.Second}
	for cluster, want := range map[string]word{"c": wasInTouch, "d": unknownWord} {
		if got := openTestPresence(t, cfg, cluster, clock).at(when); got != want {
			t.Errorf("of %s: %q", cluster, got)
		}
	}
	if err := os.WriteFile(filepath.Join(cfg.Dir, presenceName), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := openTestPresence(t, cfg, "c", clock).at(when); got != unknownWord {
		t.Errorf("a damaged one: %q", got)
	}
}

// While the record cannot be written it is tried again at each look, and it does not stay on the disk as it was: who is in touch meanwhile, and is killed,
// does not take that for a time in which it was not.
func TestPresenceThatCannotBeWritten(t *testing.T) {
	cfg := inDir(t.TempDir())
	clock := &twoClocks{wall: time.Now()}
	p := openTestPresence(t, cfg, "c", clock)
	run := func(seconds int) {
		for range seconds {
			p.look(true)
			p.write()
			clock.pass(time.Second)
		}
	}
	run(100)
	spare := filepath.Join(cfg.Dir, presenceName) + ".spare"
	if err := errors.Join(os.Remove(spare), os.Mkdir(spare, 0o700)); err != nil { // no write succeeds
		t.Fatal(err)
	}
	run(60)
	clock.pass(time.Minute)
	after := ago{80 * time.Second, 80 * time.Second}
	if got := openTestPresence(t, cfg, "c", clock).at(after); got != unknownWord {
		t.Errorf("killed then, it says %q of when it was in touch, and could not write", got)
	}
	clock.pass(-time.Minute)
	if err := os.Remove(spare); err != nil {
		t.Fatal(err)
	}
	run(1)
	clock.pass(time.Minute)
	if got := openTestPresence(t, cfg, "c", clock).at(after); got != wasInTouch {
		t.Errorf("when it can be written again, it says %q of the time before", got)
	}
}

// That a span has ended is written down, even if the first attempt fails.
func TestPresenceTriesAgain(t *testing.T) {
	cfg := inDir(t.TempDir())
	clock := &twoClocks{wall: time.Now()}
	p := openTestPresence(t, cfg, "c", clock)
	p.look(true)
	p.write()
	clock.pass(10 * time.Second)
	p.look(false) // too late: it has ended
	spare := filepath.Join(cfg.Dir, presenceName) + ".spare"
	if err := os.Mkdir(spare, 0o700); err != nil {
		t.Fatal(err)
	}
	p.write()
	if err := os.Remove(spare); err != nil {
		t.Fatal(err)
	}
	p.write()
	if on := openTestPresence(t, cfg, "c", clock).spans; len(on) != 1 || !on[0].Over {
		t.Errorf("on the disk is %+v", on)
	}
}

// The record needs no room after the first two writes: it has two files, of the same size.
func TestPresenceTakesNoRoom(t *testing.T) {
	cfg := inDir(t.TempDir())
	for _, name := range []string{"a", "b"} {
		if err := os.WriteFile(filepath.Join(cfg.Dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := exchange(filepath.Join(cfg.Dir, "a"), filepath.Join(cfg.Dir, "b")); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(cfg.Dir, "a")); err != nil {
		needs.Missing(t, "a file system for temporary files that can exchange two files", "the record of presence on a full disk")
	}
	clock := &twoClocks{wall: time.Now()}
	p := openTestPresence(t, cfg, "c", clock)
	files := func() []uint64 {
		var all []uint64
		for _, path := range []string{p.file.path, p.file.spare()} {
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if info.Size() != presenceBlock {
				t.Errorf("%s has %d bytes", path, info.Size())
			}
			all = append(all, info.Sys().(*syscall.Stat_t).Ino)
		}
		return all
	}
	write := func() {
		for range 10 { // a span each
			clock.pass(leaderlessAfter)
			p.look(true)
			p.write()
		}
	}
	write()
	before := files()
	for range 20 {
		write()
		after := files()
		slices.Sort(before)
		if slices.Sort(after); !slices.Equal(before, after) {
			t.Fatalf("the files were %v and are %v", before, after)
		}
	}
	if len(openTestPresence(t, cfg, "c", clock).spans) != presenceKept {
		t.Error("it is not all there")
	}
}

// A disk that hangs holds nobody up: neither who asks what the record says, nor a server that stops. The directory stays locked until nothing
// will be written there any more.
func TestPresenceOnADiskThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := inDir(t.TempDir())
		lock, err := lockDir(cfg)
		if err != nil {
			t.Fatal(err)
		}
		cfg.Now = time.Now
		p, err := openPresence(cfg, "c")
		if err != nil {
			t.Fatal(err)
		}
		n := &Node{cfg: *cfg, presence: p, lock: lock}
		p.pen <- struct{}{} // a write that does not come back
		began := time.Now()
		p.look(true)
		p.tryWrite()
		p.at(ago{})
		if took := time.Since(began); took != 0 {
			t.Errorf("asking took %s", took)
		}
		p.close()
		if took := time.Since(began); took > presenceWrite {
			t.Errorf("closing took %s", took)
		}
		if err := n.unlock(); err != nil {
			t.Error(err)
		}
		if _, err := lockDir(cfg); !errors.Is(err, filelock.ErrHeld) {
			t.Errorf("the directory is locked again before the write has ended: %v", err)
		}
		<-p.pen
		synctest.Wait() // for what close began to write
		lock, err = lockDir(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if data, err := os.ReadFile(p.file.path); err != nil || len(data) == 0 {
			t.Errorf("nothing was written: %v", err)
		}
		p.tryWrite() // of whoever is late
		synctest.Wait()
		if err := lock.release(); err != nil {
			t.Error(err)
		}
	})
}
