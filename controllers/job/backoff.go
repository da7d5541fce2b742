package job

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// How long the replacement of a failed pod waits, doubled with each failure in a row.
const (
	minBackoff = 10 * time.Second
	maxBackoff = 10 * time.Minute
)

// backoff is the row of failures since the last success.
type backoff struct {
	failures int32
	last     time.Time
}

// after adds pods that have just succeeded and failed to the row.
func (b backoff) after(succeeded, failed []*corev1.Pod) backoff {
	var success time.Time
	if len(succeeded) > 0 {
		b = backoff{}
		for _, pod := range succeeded {
			if t := ended(pod); t.After(success) {
				success = t
			}
		}
	}
	for _, pod := range failed {
		t := ended(pod)
		if len(succeeded) > 0 && !t.After(success) {
			continue
		}
		b.failures++
		if t.After(b.last) {
			b.last = t
		}
	}
	return b
}

// left returns how long the next pod has to wait.
func (b backoff) left(now time.Time) time.Duration { return waitAfter(b.failures, b.last, now) }

func waitAfter(failures int32, last, now time.Time) time.Duration {
	if failures <= 0 {
		return 0
	}
	wait := minBackoff
	for i := int32(1); i < failures && wait < maxBackoff; i++ {
		wait *= 2
	}
	return max(0, last.Add(min(wait, maxBackoff)).Sub(now))
}
