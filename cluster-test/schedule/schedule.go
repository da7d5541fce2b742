// Package schedule draws which faults a program makes, and when it has made enough, from a seed and
// the flags that all such programs have: the same seed draws the same faults, of the same
// parameters, in the same order. The faults themselves are the program's.
package schedule

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"time"
)

// Fault is a kind of faults.
type Fault interface {
	Name() string
	Possible() error // nil where it can be made, else the reason
}

// Schedule is which faults come, in rounds in which each comes once, in an order of the seed.
type Schedule[F Fault] struct {
	Seed     uint64
	Faults   []F
	Duration time.Duration // faults begin until then; 0: every one of Faults once
	Least    int           // so many come at least, also when that takes longer than Duration
	Count    int           // how many there are; 0: Duration decides
}

// New chooses the faults whose names match; left has an error for each that matches and cannot be
// made here. Seed 0 draws one.
func New[F Fault](seed uint64, pattern *regexp.Regexp, all []F) (s Schedule[F], left []error) {
	if s.Seed = seed; seed == 0 {
		s.Seed = rand.Uint64()
	}
	for _, f := range all {
		if !pattern.MatchString(f.Name()) {
			continue
		}
		if err := f.Possible(); err != nil {
			left = append(left, fmt.Errorf("%s: %w", f.Name(), err))
		} else {
			s.Faults = append(s.Faults, f)
		}
	}
	return s, left
}

// At returns the fault with a number, from 0 on.
func (s *Schedule[F]) At(number int) F {
	n := len(s.Faults)
	return s.Faults[s.Rand(fmt.Sprintf("round %d", number/n)).Perm(n)[number%n]]
}

// Over reports whether the fault with a number is not made any more, so long after the first.
func (s *Schedule[F]) Over(number int, elapsed time.Duration) bool {
	switch {
	case s.Count > 0:
		return number >= s.Count
	case s.Duration > 0:
		return number >= s.Least && elapsed > s.Duration
	}
	return number >= len(s.Faults)
}

// Rand returns randomness of the seed for a name.
func (s *Schedule[F]) Rand(name string) *rand.Rand {
	h := uint64(14695981039346656037) // FNV-1a
	for _, b := range []byte(name) {
		h = (h ^ uint64(b)) * 1099511628211
	}
	return rand.New(rand.NewPCG(s.Seed, h))
}

// Pause lets time pass, or ctx end.
func Pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d) // brief: a pause is the caller's wish
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// Hold lets some time between the two durations pass, or ctx end.
func Hold(ctx context.Context, rnd *rand.Rand, from, to time.Duration) {
	Pause(ctx, from+time.Duration(rnd.Int64N(int64(to-from)+1)))
}
