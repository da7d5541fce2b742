package cronjob

import (
	"fmt"
	"strings"
	"time"
	_ "time/tzdata" // time zones must not depend on the machine

	"github.com/robfig/cron/v3"
	batchv1 "k8s.io/api/batch/v1"
)

// parse reads the schedule of a cron job in its time zone. The parser panics on some texts that
// are no schedule.
func parse(c *batchv1.CronJob) (schedule cron.Schedule, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("invalid schedule: %v", p)
		}
	}()
	text := c.Spec.Schedule
	if c.Spec.TimeZone != nil && !zoned(c) {
		text = fmt.Sprintf("TZ=%s %s", *c.Spec.TimeZone, text)
	}
	return cron.ParseStandard(text)
}

// zoned reports whether the schedule itself names a zone, which Kubernetes does not support, and
// which works.
func zoned(c *batchv1.CronJob) bool { return strings.Contains(c.Spec.Schedule, "TZ") }

// latest returns the last time of a schedule after since and not after now, false when there is
// none. It takes as long for a year as for a minute.
func latest(s cron.Schedule, since, now time.Time) (time.Time, bool) {
	due := func(t time.Time) bool {
		next := s.Next(t)
		return !next.IsZero() && !next.After(now)
	}
	if !due(since) {
		return time.Time{}, false
	}
	if every, ok := s.(cron.ConstantDelaySchedule); ok {
		// It counts from since: each time is the one before plus the delay.
		first := every.Next(since)
		return first.Add(now.Sub(first) / every.Delay * every.Delay), true
	}
	// Something is due after low and nothing after high: they are brought together.
	low, high := since, now
	for width := time.Minute; now.Add(-width).After(since); width *= 2 {
		if t := now.Add(-width); due(t) {
			low = t
			break
		}
		high = now.Add(-width)
	}
	for high.Sub(low) > time.Second {
		if middle := low.Add(high.Sub(low) / 2); due(middle) {
			low = middle
		} else {
			high = middle
		}
	}
	return s.Next(low), true
}

// many is from how many missed times on users are warned.
const many = 100

// missed counts the times of a schedule after since and not after now, up to one more than many.
func missed(s cron.Schedule, since, now time.Time) int {
	n := 0
	for t := s.Next(since); !t.IsZero() && !t.After(now) && n <= many; t = s.Next(t) {
		n++
	}
	return n
}
