// Package loglimit bounds the log lines that strangers can cause. Each cause has a burst, then one
// line in a while with the number of lines left out. Sources do not matter: they can be forged.
package loglimit

import (
	"maps"
	"strings"
	"sync"
	"time"
)

const (
	// Burst is the number of lines of one cause that are written at once after a pause.
	Burst = 8
	// Pause is the time between further lines of the cause.
	Pause = 5 * time.Second
	// mostCauses bounds the causes that are remembered. While all of them are in use, further ones
	// share one limit.
	mostCauses = 128
	// remembered is how long an idle cause keeps its place when there are too many.
	remembered = time.Hour
)

// Limiter bounds the lines of one cause. The zero value is ready.
type Limiter struct {
	mu      sync.Mutex
	begun   bool
	left    int
	last    time.Time
	omitted int
}

// Take reports whether a line may be written now, and how many were left out before it.
func (l *Limiter) Take(now time.Time) (omitted int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.begun {
		l.begun, l.left, l.last = true, Burst, now
	}
	if passed := now.Sub(l.last); passed >= Pause {
		l.left = min(Burst, l.left+int(passed/Pause))
		l.last = now
	}
	if l.left == 0 {
		l.omitted++
		return 0, false
	}
	l.left--
	omitted, l.omitted = l.omitted, 0
	return omitted, true
}

// idle reports whether there was no line of the cause for long.
func (l *Limiter) idle(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return now.Sub(l.last) >= remembered
}

// Causes has a Limiter for each cause. The zero value is ready.
type Causes struct {
	mu     sync.Mutex
	of     map[string]*Limiter
	others Limiter
}

// Take is Limiter.Take for a cause.
func (c *Causes) Take(cause string, now time.Time) (omitted int, ok bool) {
	return c.limiter(cause, now).Take(now)
}

func (c *Causes) limiter(cause string, now time.Time) *Limiter {
	c.mu.Lock()
	defer c.mu.Unlock()
	l, ok := c.of[cause]
	if !ok && len(c.of) >= mostCauses {
		maps.DeleteFunc(c.of, func(_ string, l *Limiter) bool { return l.idle(now) })
	}
	switch {
	case ok:
	case len(c.of) >= mostCauses:
		l = &c.others
	default:
		if c.of == nil {
			c.of = map[string]*Limiter{}
		}
		l = new(Limiter)
		c.of[cause] = l
	}
	return l
}

// causeLength is enough to distinguish the formats of messages.
const causeLength = 64

// Cause returns the part of a formatted message that comes from its format: until the first colon,
// quotation mark or digit. A stranger often chooses the rest.
func Cause(message string) string {
	if end := strings.IndexAny(message, ":\"'`=([{0123456789\n"); end > 0 {
		message = message[:end]
	}
	return strings.TrimSpace(message[:min(len(message), causeLength)])
}
