// Package klogs sends what the Kubernetes libraries log to a logger of ours.
package klogs

import (
	"context"
	"log/slog"
	"net/http"
	"strings"

	"k8s.io/klog/v2"

	"github.com/barque/barque/internal/loglimit"
)

// Bridge sends what the Kubernetes libraries log to our logger. Their informational lines are
// details to an operator of Barque, so they come at debug level, as does what is no error of this
// server.
func Bridge(logger *slog.Logger) {
	klog.SetSlogLogger(slog.New(demoted{logger.With("part", "k8s").Handler(), new(repeats), new(loglimit.Causes)}))
}

// Silence drops the lines that the Kubernetes libraries log. A command gets their errors as values;
// the warnings of an API and the pauses between requests would stand among its output.
func Silence() { klog.SetSlogLogger(slog.New(slog.DiscardHandler)) }

// unhandled is the message of all errors that libraries hand to apimachinery's runtime.HandleError.
const unhandled = "Unhandled Error"

// demoted lowers informational records to debug, and records that need nobody.
type demoted struct {
	slog.Handler
	repeats *repeats
	// causes bound the warnings and errors of one kind: strangers can cause them, as with bad
	// credentials.
	causes *loglimit.Causes
}

func (d demoted) Enabled(ctx context.Context, level slog.Level) bool {
	return d.Handler.Enabled(ctx, demote(level))
}

func (d demoted) Handle(ctx context.Context, r slog.Record) error {
	r.Level = demote(r.Level)
	if givenUp(r) || tooLate(r) || r.Message == cutOff || strings.HasPrefix(r.Message, lostAudit) || r.Message == failedList && d.repeats.again(r) {
		r.Level = slog.LevelDebug
	}
	if r.Level >= slog.LevelWarn {
		omitted, ok := d.causes.Take(cause(r), r.Time)
		if omitted > 0 {
			r = r.Clone()
			r.AddAttrs(slog.Int("othersNotLogged", omitted))
		}
		if !ok {
			r.Level = slog.LevelDebug
		}
	}
	if !d.Handler.Enabled(ctx, r.Level) {
		return nil
	}
	return d.Handler.Handle(ctx, r)
}

// cause returns the cause of a line. All that is handed to the libraries' common handler of errors
// has one message, and says the cause in its attribute.
func cause(r slog.Record) string {
	text := r.Message
	r.Attrs(func(a slog.Attr) bool {
		if text == unhandled && a.Key == "err" {
			text = a.Value.String()
			return false
		}
		return true
	})
	return loglimit.Cause(text)
}

func (d demoted) WithAttrs(attrs []slog.Attr) slog.Handler {
	return demoted{d.Handler.WithAttrs(attrs), d.repeats, d.causes}
}

func (d demoted) WithGroup(name string) slog.Handler {
	return demoted{d.Handler.WithGroup(name), d.repeats, d.causes}
}

func demote(level slog.Level) slog.Level {
	if level >= slog.LevelInfo && level < slog.LevelWarn {
		return slog.LevelDebug
	}
	return level
}

// givenUp tells whether the record is of a question for this server's readiness that the asker has
// given up. The balancers of agents and clients do so after half a second, and whoever asks knows
// that: it is no error of this server.
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

// tooLate tells whether the record is of an answer for which nobody waited any more: the client had
// gone, or the request had taken longer than it may. Upstream says that of the request itself, in
// two other lines; these, up to four, do not say which it was. They come as text.
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

// lostAudit begins a record with all events that an audit sink has lost. There may be thousands a
// second; apiserver/audit logs their number.
const lostAudit = "Error in audit plugin"

// cutOff is said of a server that stops when connections are left after the time that they get:
// streams, which end with the process, and now and then one that was about to begin, and which
// net/http does not tell of the end.
const cutOff = "Failed to shutdown server: context deadline exceeded"
