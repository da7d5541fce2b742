package transport

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/barque/barque/internal/loglimit"
	"github.com/barque/barque/internal/logline"
)

const (
	// complaintAgain is how often the same is logged of one source: a server of another cluster
	// comes every two seconds, until a person acts.
	complaintAgain = 10 * time.Minute
	// complaintSources bounds the sources of which that is known.
	complaintSources = 256
)

// complaints are warnings that clients cause, with a bound for all of them.
type complaints struct {
	logger *slog.Logger

	lines loglimit.Limiter

	mu   sync.Mutex
	said map[netip.Addr]complaint
}

// complaint is the newest one about a source.
type complaint struct {
	reason string
	at     time.Time
}

func newComplaints(logger *slog.Logger) *complaints {
	return &complaints{logger: logger, said: make(map[netip.Addr]complaint)}
}

// warnOf is warn about a connection from a source. The same reason is rarely logged again.
func (c *complaints) warnOf(from netip.Addr, msg string, remote net.Addr, err error) {
	now := time.Now()
	reason := reasonOf(err)
	if c.repeated(from, reason, now) {
		return
	}
	if c.log(msg, "remote", remote, "err", err) {
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

func (c *complaints) warn(msg string, args ...any) { c.log(msg, args...) }

// log logs, and returns whether it did.
func (c *complaints) log(msg string, args ...any) bool {
	omitted, ok := c.lines.Take(time.Now())
	if !ok {
		return false
	}
	if omitted > 0 {
		args = append(args, "othersNotLogged", omitted)
	}
	logline.Log(c.logger, slog.LevelWarn, msg, args...)
	return true
}
