package logstore

import "time"

const (
	// slowTimes is how many times its slowest recent write a write may take.
	slowTimes = 3
	// slowMost is how many times its ordinary limit a write may take at most.
	slowMost = 3
	// slowLasts is for how long a slow write is remembered.
	slowLasts = 5 * time.Minute
)

// slowest remembers the slow writes that were finished, none shorter than one after it. The zero
// value remembers none.
type slowest struct{ writes []finished }

// finished is a write that took long.
type finished struct {
	took time.Duration
	at   time.Time
}

// note takes a write that was finished now. One that took longer than it may is left out: the disk
// hung, and that says nothing about the next write.
func (s *slowest) note(limit, took time.Duration, now time.Time) {
	if slowTimes*took <= limit || took > s.limit(limit, now) {
		return
	}
	for len(s.writes) > 0 && s.writes[len(s.writes)-1].took <= took {
		s.writes = s.writes[:len(s.writes)-1]
	}
	s.writes = append(s.writes, finished{took, now})
}

// limit returns how long a write may take now, where limit is the ordinary time.
func (s *slowest) limit(limit time.Duration, now time.Time) time.Duration {
	for len(s.writes) > 0 && now.Sub(s.writes[0].at) >= slowLasts {
		s.writes = s.writes[1:]
	}
	if len(s.writes) == 0 {
		return limit
	}
	return min(max(limit, slowTimes*s.writes[0].took), slowMost*limit)
}
