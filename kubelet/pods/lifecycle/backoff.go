package lifecycle

import "time"

// Restarts of a container that keeps ending are spaced out: the first is at once, then 10 s, 20 s …
// up to 5 min after it ended. A container that ran for 10 min is forgiven.
const (
	firstBackoff   = 10 * time.Second
	longestBackoff = 5 * time.Minute
	forgivenAfter  = 2 * longestBackoff
)

// Backoff is the state of one container's restarts. The zero value is that of a container that
// never ended.
type Backoff struct {
	Delay time.Duration // how long to wait after the next end
	Last  time.Time     // when it was restarted
}

// due returns when a container that ended at ended may be restarted.
func (b Backoff) due(ended time.Time) time.Time {
	if b.Delay == 0 || ended.Sub(b.Last) > forgivenAfter {
		return ended
	}
	return ended.Add(b.Delay)
}

// Next is the state after a restart at now of a container that ended at ended.
func (b Backoff) Next(ended, now time.Time) Backoff {
	if b.Delay == 0 || ended.Sub(b.Last) > forgivenAfter {
		return Backoff{Delay: firstBackoff, Last: now}
	}
	return Backoff{Delay: min(2*b.Delay, longestBackoff), Last: now}
}

// NextDelay is the delay after one more failure, for pulls and the like.
func NextDelay(delay time.Duration) time.Duration {
	if delay == 0 {
		return firstBackoff
	}
	return min(2*delay, longestBackoff)
}
