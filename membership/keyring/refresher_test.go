package keyring

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// asked is a Refresher in virtual time, and what it sees and is answered.
type asked struct {
	mu        sync.Mutex
	seen      uint64
	anyServer bool
	answer    Ring
	err       error
	at        []time.Duration // when it asked
	began     time.Time
	changed   chan struct{}
	own       *Own
}

func (a *asked) set(f func(*asked)) {
	a.mu.Lock()
	f(a)
	close(a.changed)
	a.changed = make(chan struct{})
	a.mu.Unlock()
}

func (a *asked) questions() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.at)
}

func ringOf(generation uint64) Ring {
	return Ring{Generation: generation, Keys: [][]byte{make([]byte, KeySize)}}
}

func inBubble(t *testing.T, f func(t *testing.T, a *asked)) {
	t.Helper()
	inBubbleOf(t, false, f)
}

func inBubbleOf(t *testing.T, fresh bool, f func(t *testing.T, a *asked)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		a := &asked{began: time.Now(), changed: make(chan struct{}), anyServer: true, answer: ringOf(0)}
		none := func(Ring) error { return nil }
		a.own = NewOwn(ringOf(0), none, none)
		r := NewRefresher(RefresherConfig{Own: a.own, Fresh: fresh, Logger: slog.New(slog.DiscardHandler),
			Seen: func() (uint64, bool) {
				a.mu.Lock()
				defer a.mu.Unlock()
				return a.seen, a.anyServer
			},
			Changed: func() <-chan struct{} {
				a.mu.Lock()
				defer a.mu.Unlock()
				return a.changed
			},
			Fetch: func(_ context.Context, generation uint64) (Ring, error) {
				a.mu.Lock()
				defer a.mu.Unlock()
				a.at = append(a.at, time.Since(a.began))
				if a.err == nil && a.answer.Generation < generation {
					return Ring{}, errors.New("no server has it yet")
				}
				return a.answer, a.err
			}})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		f(t, a)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestAMemberAsksAtItsStartAndThenOnlyWithAReason(t *testing.T) {
	inBubble(t, func(t *testing.T, a *asked) {
		after(time.Second)
		if n := a.questions(); n != 1 {
			t.Fatalf("%d questions at the start", n)
		}
		after(time.Hour)
		if n := a.questions(); n != 1 {
			t.Fatalf("%d questions without a reason", n-1)
		}
		a.set(func(a *asked) { a.seen, a.answer = 3, ringOf(3) })
		after(spreadOver)
		if got := a.own.Ring().Generation; got != 3 {
			t.Fatalf("generation %d %s after a server showed 3", got, spreadOver)
		}
		after(time.Hour)
		if n := a.questions(); n != 2 {
			t.Fatalf("%d questions", n)
		}
	})
}

// A node that was admitted a moment ago has the newest keys, and may not ask for others before it
// is registered.
func TestAFreshMemberAsksOnlyWithAReason(t *testing.T) {
	for name, c := range map[string]struct {
		seen      uint64
		anyServer bool
		at        []time.Duration
	}{
		"it sees servers":               {0, true, nil},
		"it sees newer keys":            {3, true, []time.Duration{0}},
		"it sees no server for a while": {0, false, []time.Duration{lonely, 2 * lonely}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubbleOf(t, true, func(t *testing.T, a *asked) {
				a.set(func(a *asked) { a.seen, a.anyServer, a.answer = c.seen, c.anyServer, ringOf(c.seen) })
				after(2*lonely + 5*time.Second)
				a.mu.Lock()
				defer a.mu.Unlock()
				if len(a.at) != len(c.at) {
					t.Fatalf("questions at %s, want at %s", a.at, c.at)
				}
				for i, want := range c.at {
					if a.at[i] < want || a.at[i] > want+time.Second {
						t.Errorf("question at %s, want at %s", a.at[i], want)
					}
				}
			})
		})
	}
}

func TestAMemberThatSeesNoServerAsks(t *testing.T) {
	inBubble(t, func(t *testing.T, a *asked) {
		after(time.Minute)
		before := a.questions()
		a.set(func(a *asked) { a.anyServer, a.answer = false, ringOf(2) })
		after(2 * time.Minute)
		if n := a.questions() - before; n < 10 || n > 14 {
			t.Fatalf("%d questions in two minutes", n)
		}
		if got := a.own.Ring().Generation; got != 2 {
			t.Fatalf("generation %d", got)
		}
	})
}

func TestAQuestionIsRepeatedMoreAndMoreRarely(t *testing.T) {
	for what, c := range map[string]struct {
		err    error
		atMost int
	}{"no server": {errors.New("away"), 45}, "barred": {ErrBarred, 16}} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, func(t *testing.T, a *asked) {
				a.set(func(a *asked) { a.err = c.err })
				for range 600 { // changes in the pool do not hurry it
					after(time.Second)
					a.set(func(*asked) {})
				}
				if n := a.questions(); n < 2 || n > c.atMost {
					t.Fatalf("%d questions in ten minutes", n)
				}
				a.set(func(a *asked) { a.err, a.seen, a.answer = nil, 4, ringOf(4) })
				after(minRetry) // a new generation is worth a question
				if got := a.own.Ring().Generation; got != 4 {
					t.Fatalf("generation %d", got)
				}
			})
		})
	}
}

// Who said no may be of another cluster, and the next one who answers may ask to be asked again:
// see RefresherConfig.Fetch.
func TestAMemberThatIsBarredNoMoreAsksAsOftenAsOthers(t *testing.T) {
	inBubble(t, func(t *testing.T, a *asked) {
		a.set(func(a *asked) { a.err = ErrBarred })
		after(10 * time.Minute)
		barred := a.questions()
		a.set(func(a *asked) { a.err = errors.New("ask again") })
		after(5 * time.Minute)
		a.mu.Lock()
		defer a.mu.Unlock()
		for i := barred + 1; i < len(a.at); i++ {
			if gap := a.at[i] - a.at[i-1]; gap > maxRetry+spreadOver {
				t.Errorf("%s between two questions", gap)
			}
		}
		if len(a.at) < barred+15 {
			t.Errorf("%d questions in five minutes", len(a.at)-barred)
		}
	})
}

func TestARingIsWrittenDownBeforeItIsUsed(t *testing.T) {
	var journal []string
	full := errors.New("disk full")
	saveErr := full
	own := NewOwn(ringOf(1), func(Ring) error { journal = append(journal, "save"); return saveErr },
		func(Ring) error { journal = append(journal, "use"); return nil })
	if news, err := own.Install(ringOf(2)); news || !errors.Is(err, full) || own.Ring().Generation != 1 ||
		len(journal) != 1 {
		t.Fatalf("%t, %v, %v", news, err, journal)
	}
	saveErr = nil
	if news, err := own.Install(ringOf(2)); !news || err != nil || own.Ring().Generation != 2 {
		t.Fatalf("%t, %v", news, err)
	}
	if news, err := own.Install(ringOf(1)); news || err != nil || len(journal) != 3 {
		t.Fatalf("an older one: %t, %v, %v", news, err, journal)
	}
	if _, err := own.Install(Ring{Generation: 9, Keys: [][]byte{{1}}}); err == nil {
		t.Fatal("a short key was taken")
	}
}
