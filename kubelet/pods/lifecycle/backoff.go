package lifecycle

import "time"

// Backoff is the pause after failures of one thing, which doubles with each of them in a row. The
// zero value is that of a thing that has not failed.
type Backoff struct{ Pause time.Duration }

// Failed counts a failure and returns the pause after it: first after the first one, and longest at
// most.
func (b *Backoff) Failed(first, longest time.Duration) time.Duration {
	b.Pause = min(max(2*b.Pause, first), longest)
	return b.Pause
}

// Over ends the row of failures.
func (b *Backoff) Over() { b.Pause = 0 }

// Restarts of a container that keeps ending are spaced out: the first is at once, then 10 s, 20 s …
// up to 5 min after it ended. A container that ran for 10 min is forgiven. Pulls, and starts that
// fail, have the same pauses.
const (
	FirstRestart   = 10 * time.Second
	LongestRestart = 5 * time.Minute
	forgivenAfter  = 2 * LongestRestart
)

// Restarts is the state of one container's restarts. The zero value is that of a container that
// never ended.
type Restarts struct {
	Backoff           // after the next end
	Last    time.Time // when it was restarted
}

// due returns when a container that ended at ended may be restarted.
func (r Restarts) due(ended time.Time) time.Time {
	if r.forgives(ended) {
		return ended
	}
	return ended.Add(r.Pause)
}

func (r Restarts) forgives(ended time.Time) bool { return ended.Sub(r.Last) > forgivenAfter }

// Again notes a restart at now of a container that ended at ended.
func (r *Restarts) Again(ended, now time.Time) {
	if r.forgives(ended) {
		r.Over()
	}
	r.Failed(FirstRestart, LongestRestart)
	r.Last = now
}
