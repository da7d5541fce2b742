package transport

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	// complaintBurst and complaintPause bound the log lines that unauthenticated clients can cause.
	complaintBurst = 8
	complaintPause = 5 * time.Second
)

// complaints are warnings that clients cause. Up to complaintBurst are written at once, then one
// per complaintPause, with the number of suppressed ones.
type complaints struct {
	logger *slog.Logger

	mu      sync.Mutex
	left    int
	last    time.Time
	omitted int
}

func newComplaints(logger *slog.Logger) *complaints {
	return &complaints{logger: logger, left: complaintBurst}
}

func (c *complaints) warn(msg string, args ...any) {
	omitted, ok := c.take(time.Now())
	if !ok {
		return
	}
	if omitted > 0 {
		args = append(args, "othersNotLogged", omitted)
	}
	c.logger.Log(context.Background(), slog.LevelWarn, msg, args...)
}

// take asks whether one may be written, and how many were left out before it.
func (c *complaints) take(now time.Time) (omitted int, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if passed := now.Sub(c.last); passed >= complaintPause {
		c.left = min(complaintBurst, c.left+int(passed/complaintPause))
		c.last = now
	}
	if c.left == 0 {
		c.omitted++
		return 0, false
	}
	c.left--
	omitted, c.omitted = c.omitted, 0
	return omitted, true
}
