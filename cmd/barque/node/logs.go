package node

import (
	"context"
	"log/slog"
	"net/http"
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
	if d.outages.fold(r.Message) || givenUp(r) || tooLate(r) || r.Message == cutOff {
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

// tooLate tells whether the record is of an answer for which nobody waited any more: the client had gone, or the request had
// taken longer than it may. Upstream says that of the request itself, in two other lines; these, up to four, do not say which
// it was. They come as text.
func tooLate(r slog.Record) (is bool) {
	r.Attrs(func(a slog.Attr) bool {
		err, ok := a.Value.Any().(error)
		if a.Key != "err" || !ok {
			return true
		}
		text := err.Error()
		is = strings.Contains(text, http.ErrHandlerTimeout.Error()) ||
			strings.HasPrefix(text, "FinishRequest: post-timeout activity") && strings.Contains(text, "panicked: false")
		return !is
	})
	return is
}

// cutOff is said of a server that stops when connections are left after the time that they get: streams, which end with the process,
// and now and then one that was about to begin, and which net/http does not tell of the end.
const cutOff = "Failed to shutdown server: context deadline exceeded"

// outages folds what the API's caches, some hundred, say each for itself when the store cannot be read: one line when it
// begins, one each minute while it goes on, with the newest reason, and one when no more come, or the server stops.
type outages struct {
	logger *slog.Logger
	begun  chan struct{} // holds one when an outage has begun

	mu          sync.Mutex
	phase       phase
	lines       int // of the outage; 0: there is none
	newest      string
	first, last time.Time
}

// phase is how far Run is. Before, every line is told. Afterwards the server has stopped, and none is:
// the store is closed, and the caches go on asking it until the process ends.
type phase int

const (
	phaseBefore phase = iota
	phaseRunning
	phaseStopped
)

const (
	// outageQuiet is how long no cache must have said anything for an outage to be over. Each tries again after a second,
	// and may wait some time for the store then.
	outageQuiet = 30 * time.Second
	// outageAgain is how often it is told that an outage goes on.
	outageAgain = time.Minute
)

// fold tells whether the line is one of those, and notes it.
func (o *outages) fold(line string) bool {
	rest, is := strings.CutPrefix(line, "cacher (")
	if !is || !strings.Contains(rest, storage.Unreadable) {
		return false
	}
	now := time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.phase != phaseRunning {
		return o.phase == phaseStopped
	}
	if o.last = now; o.lines == 0 {
		o.first = now
		o.logger.Error("the API's caches cannot read the store, and try again each second; clients are served what they hold, where that is what they ask for", "first", line)
		o.begun <- struct{}{}
	}
	o.lines++
	o.newest = line
	return true
}

// Run tells how outages go on and when they are over, until ctx ends.
func (o *outages) Run(ctx context.Context) error {
	o.mu.Lock()
	o.phase = phaseRunning
	o.mu.Unlock()
	defer o.stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-o.begun:
		}
		again := time.NewTicker(outageAgain)
		for wait := outageQuiet; wait > 0; {
			select {
			case <-ctx.Done():
				again.Stop()
				return nil
			case <-again.C:
				o.repeat()
			case <-time.After(wait):
			}
			wait = o.end()
		}
		again.Stop()
	}
}

// repeat tells that an outage goes on.
func (o *outages) repeat() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if time.Since(o.last) < outageQuiet {
		o.logger.Error("the API's caches still cannot read the store", "times", o.lines, "since", o.first.UTC().Format(time.RFC3339), "newest", o.newest)
	}
}

// end ends an outage in which nothing was said for long enough, or returns how long to wait until it may be.
func (o *outages) end() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	if wait := outageQuiet - time.Since(o.last); wait > 0 {
		return wait
	}
	o.tell("the API's caches say no more that the store cannot be read")
	return 0
}

// stop has no more lines told, and tells of an outage that nobody sees the end of.
func (o *outages) stop() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.phase = phaseStopped
	if o.lines > 0 {
		o.tell("the server stops while the API's caches cannot read the store")
	}
}

// tell sums up the outage, which is over for this log. The caller holds mu.
func (o *outages) tell(how string) {
	o.logger.Info(how, "times", o.lines, "betweenFirstAndLast", o.last.Sub(o.first).Round(time.Millisecond), "newest", o.newest)
	o.lines, o.newest = 0, ""
}
