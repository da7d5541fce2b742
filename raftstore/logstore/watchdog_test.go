package logstore

import (
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

// TestSlowestBoundsAWrite: whatever was finished, a write may take no less than the ordinary time
// and no more than three times that. One that takes no longer than three times the slowest of the
// last minutes is not late.
func TestSlowestBoundsAWrite(t *testing.T) {
	const limit = 2 * time.Second
	for seed := range uint64(50) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		var s slowest
		now := time.Unix(1000, 0)
		type write struct {
			took time.Duration
			at   time.Time
		}
		var learned []write
		for range 300 {
			now = now.Add(time.Duration(rnd.Int64N(int64(time.Minute))))
			took := time.Duration(rnd.Int64N(int64(time.Second)))
			if rnd.IntN(10) == 0 {
				took = time.Duration(rnd.Int64N(int64(time.Minute)))
			}
			allowed := s.limit(limit, now)
			s.note(limit, took, now)
			if took <= allowed {
				learned = append(learned, write{took, now})
			}
			got := s.limit(limit, now)
			if got < limit || got > 3*limit {
				t.Fatalf("seed %d: a write may take %v", seed, got)
			}
			for _, w := range learned {
				if now.Sub(w.at) < slowLasts && got < min(3*w.took, 3*limit) {
					t.Fatalf("seed %d: a write may take %v after one of %v, %v ago", seed, got, w.took, now.Sub(w.at))
				}
			}
		}
		if got := s.limit(limit, now.Add(slowLasts)); got != limit {
			t.Fatalf("seed %d: slow writes are remembered for ever: %v", seed, got)
		}
	}
}

// TestWatchdog: a write hangs when it takes longer than the limit; than three times the slowest
// write before it; or than the extension allows besides.
func TestWatchdog(t *testing.T) {
	extension := time.Duration(0)
	for name, test := range map[string]struct {
		before    []time.Duration // writes that were finished
		extension time.Duration
		limit     time.Duration
	}{
		"an ordinary disk": {limit: 2 * time.Second},
		"a fast disk":      {before: []time.Duration{600 * time.Millisecond}, limit: 2 * time.Second},
		"a slow disk": {before: []time.Duration{1500 * time.Millisecond, time.Millisecond},
			limit: 4500 * time.Millisecond},
		"a very slow disk": {before: []time.Duration{1500 * time.Millisecond, 4 * time.Second},
			limit: 6 * time.Second},
		"a disk that has hung":           {before: []time.Duration{2100 * time.Millisecond}, limit: 2 * time.Second},
		"a machine that is short of CPU": {extension: time.Second, limit: 3 * time.Second},
		"a slow disk, and too little CPU": {before: []time.Duration{time.Second}, extension: time.Second,
			limit: 4 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				extension = test.extension
				w := NewWatchdog(2*time.Second, func() time.Duration { return extension })
				for _, took := range test.before {
					if err := w.guard(func() error { <-time.After(took); return nil }); err != nil {
						t.Fatal(err)
					}
				}
				select { // of writes that have hung
				case <-w.Changed():
				default:
				}
				began, done := time.Now(), make(chan error)
				end := make(chan struct{})
				go func() { done <- w.guard(func() error { <-end; return errors.New("test") }) }()
				synctest.Wait()
				<-w.Hanging()
				if took := time.Since(began); took != test.limit {
					t.Errorf("it hangs after %v, want %v", took, test.limit)
				}
				if err := w.Check(); !errors.Is(err, ErrHangs) {
					t.Errorf("while it hangs: %v", err)
				}
				close(end)
				<-done
				if err := w.Check(); err != nil {
					t.Errorf("when it is done: %v", err)
				}
			})
		})
	}
}
