package scheddelay

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestDelayIsTheThirdLongest compares the window with a list of all samples.
func TestDelayIsTheThirdLongest(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		type sample struct {
			at    time.Time
			delay time.Duration
		}
		var m Meter
		var all []sample
		now := time.Unix(1000, 0)
		for i := range 2000 {
			late := time.Duration(rnd.Int64N(int64(50 * time.Millisecond)))
			if rnd.IntN(50) == 0 {
				late = time.Duration(rnd.Int64N(int64(2 * Stopped)))
			}
			now = now.Add(Every + late)
			m.Note(now, late)
			if late <= Stopped {
				all = append(all, sample{now, late})
			}
			if i%50 != 0 {
				continue
			}
			third := func(since time.Duration) time.Duration {
				var delays []time.Duration
				for _, s := range all {
					if now.Sub(s.at) < since {
						delays = append(delays, s.delay)
					}
				}
				if slices.Sort(delays); len(delays) < rank {
					return 0
				}
				return delays[len(delays)-rank]
			}
			// A span ends as a whole, so delays in its first moments count a little shorter.
			got := m.window.delay(now)
			if least, most := third(Remembered-span), third(Remembered+2*Stopped); got < least || got > most {
				t.Fatalf("seed %d: %v, want %v to %v", seed, got, least, most)
			}
		}
		if got := m.window.delay(now.Add(Remembered)); got != 0 {
			t.Fatalf("seed %d: %v is remembered for ever", seed, got)
		}
	}
}

// TestOneLateWakeUpIsNoStarvation: one or two hiccups change nothing.
func TestOneLateWakeUpIsNoStarvation(t *testing.T) {
	var m Meter
	now := time.Unix(1000, 0)
	for i := range 100 {
		late := time.Millisecond
		if i == 30 || i == 60 {
			late = time.Second
		}
		now = now.Add(Every + late)
		m.Note(now, late)
	}
	if got := m.window.delay(now); got != time.Millisecond {
		t.Errorf("two hiccups of a second make a delay of %v", got)
	}
}

// TestAnIdleProcessIsNotLate runs the meter in virtual time, in which all timers are punctual.
func TestAnIdleProcessIsNotLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var m Meter
		done := make(chan struct{})
		go func() { // ends with ctx
			m.Run(ctx)
			close(done)
		}()
		<-time.After(time.Minute)
		if got := m.Delay(); got != 0 {
			t.Errorf("%v", got)
		}
		cancel()
		<-done
	})
}
