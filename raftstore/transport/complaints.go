package transport

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"
)

const (
	// complaintBurst and complaintPause bound the log lines that unauthenticated clients can cause.
	complaintBurst = 8
	complaintPause = 5 * time.Second
	// complaintAgain is how often the same is logged of one source: a server of another cluster
	// comes every two seconds, until a person acts.
	complaintAgain = 10 * time.Minute
	// complaintSources bounds the sources of which that is known.
	complaintSources = 256
)

// complaints are warnings that clients cause. Up to complaintBurst are written at once, then one
// per complaintPause, with the number of suppressed ones.
type complaints struct {
	logger *slog.Logger

	mu      sync.Mutex
	left    int
	last    time.Time
	omitted int
	said    map[netip.Addr]complaint
}

// complaint is the newest one about a source.
type complaint struct {
	reason string
	at     time.Time
}

func newComplaints(logger *slog.Logger) *complaints {
	return &complaints{logger: logger, left: complaintBurst, said: make(map[netip.Addr]complaint)}
}

// warnOf is warn about a connection from a source. The same reason is rarely logged again.
func (c *complaints) warnOf(from netip.Addr, msg string, remote net.Addr, err error) {
	now := time.Now()
	reason := reasonOf(err)
	if c.repeated(from, reason, now) {
		return
	}
	if c.warn(msg, "remote", remote, "err", err) {
		c.note(from, complaint{reason, now})
	}
}

// reasonOf returns the text of an error without addresses, which have another port each time.
func reasonOf(err error) string {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		err = op.Err
	}
	return err.Error()
}

func (c *complaints) repeated(from netip.Addr, reason string, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	was, ok := c.said[from]
	return ok && was.reason == reason && now.Sub(was.at) < complaintAgain
}

func (c *complaints) note(from netip.Addr, said complaint) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.said) >= complaintSources {
		clear(c.said)
	}
	c.said[from] = said
}

// warn logs, and returns whether it did.
func (c *complaints) warn(msg string, args ...any) bool {
	omitted, ok := c.take(time.Now())
	if !ok {
		return false
	}
	if omitted > 0 {
		args = append(args, "othersNotLogged", omitted)
	}
	c.logger.Log(context.Background(), slog.LevelWarn, msg, args...)
	return true
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
