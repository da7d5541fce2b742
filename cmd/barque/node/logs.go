package node

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/barque/barque/apiserver/storage"
)

// bridgeLogs sends what the Kubernetes libraries log to our logger. Their informational lines are
// details to an operator of Barque, so they come at debug level. What the API's caches say of an outage is folded, as long
// as what it returns runs.
func bridgeLogs(logger *slog.Logger) *outages {
	logger = logger.With("part", "k8s")
	o := &outages{logger: logger, begun: make(chan struct{}, 1)}
	klog.SetSlogLogger(slog.New(demoted{logger.Handler(), o}))
	return o
}

// demoted lowers informational records to debug, and records that are folded.
type demoted struct {
	slog.Handler
	outages *outages
}

func (d demoted) Enabled(ctx context.Context, level slog.Level) bool {
	return d.Handler.Enabled(ctx, demote(level))
}

func (d demoted) Handle(ctx context.Context, r slog.Record) error {
	r.Level = demote(r.Level)
	if d.outages.fold(r.Message) || givenUp(r) {
		r.Level = slog.LevelDebug
	}
	if !d.Handler.Enabled(ctx, r.Level) {
		return nil
	}
	return d.Handler.Handle(ctx, r)
}

func (d demoted) WithAttrs(attrs []slog.Attr) slog.Handler {
	return demoted{d.Handler.WithAttrs(attrs), d.outages}
}

func (d demoted) WithGroup(name string) slog.Handler {
	return demoted{d.Handler.WithGroup(name), d.outages}
}

func demote(level slog.Level) slog.Level {
	if level >= slog.LevelInfo && level < slog.LevelWarn {
		return slog.LevelDebug
	}
	return level
}

// givenUp tells whether the record is of a question for this server's readiness that the asker has given up. The balancers of
// agents and clients do so after half a second, and whoever asks knows that: it is no error of this server.
func givenUp(r slog.Record) (is bool) {
	if r.Message != "Post-timeout activity" && r.Message != "Timeout or abort while handling" {
		return false
	}
	r.Attrs(func(a slog.Attr) bool {
		is = (a.Key == "path" || a.Key == "URI") && a.Value.String() == "/readyz"
		return !is
	})
	return is
}

// outages folds what the API's caches, some hundred, say each for itself when the store cannot be read: one line when it
// begins, and one with their number when no more come.
type outages struct {
	logger *slog.Logger
	begun  chan struct{} // holds one when an outage has begun

	mu          sync.Mutex
	running     bool
	lines       int // of the outage; 0: there is none
	first, last time.Time
}

// outageQuiet is how long no cache must have said anything for an outage to be over. Each tries again after a second, and may
// wait some time for the store then.
const outageQuiet = 30 * time.Second

// fold tells whether the line is one of those, and notes it.
func (o *outages) fold(line string) bool {
	rest, is := strings.CutPrefix(line, "cacher (")
	if !is || !strings.Contains(rest, storage.Unreadable) {
		return false
	}
	now := time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.running {
		return false
	}
	if o.last = now; o.lines == 0 {
		o.first = now
		o.logger.Error("the API's caches cannot read the store, and try again each second; clients are served what they hold, where that is what they ask for", "first", line)
		o.begun <- struct{}{}
	}
	o.lines++
	return true
}

// Run tells when outages are over, until ctx ends.
func (o *outages) Run(ctx context.Context) error {
	o.run(true)
	defer o.run(false)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-o.begun:
		}
		for wait := outageQuiet; wait > 0; wait = o.end() {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(wait):
			}
		}
	}
}

func (o *outages) run(is bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.running = is
}

// end ends an outage in which nothing was said for long enough, or returns how long to wait until it may be.
func (o *outages) end() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	if wait := outageQuiet - time.Since(o.last); wait > 0 {
		return wait
	}
	o.logger.Info("the API's caches say no more that the store cannot be read", "times", o.lines, "during", o.last.Sub(o.first).Round(time.Millisecond))
	o.lines = 0
	return 0
}
