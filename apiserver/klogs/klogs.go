// Package klogs sends the logs of the Kubernetes libraries to Barque's logger.
package klogs

import (
	"context"
	"log/slog"
	"net/http"
	"strings"

	"k8s.io/klog/v2"

	"github.com/barque/barque/internal/loglimit"
)

// Bridge sends the logs of the Kubernetes libraries to the logger. Their informational lines are
// details to an operator of Barque, so they are logged at debug level, as are errors that are not
// this server's.
func Bridge(logger *slog.Logger) {
	klog.SetSlogLogger(slog.New(demoted{logger.With("part", "k8s").Handler(), new(repeats), new(loglimit.Causes)}))
}

// Silence drops the lines that the Kubernetes libraries log. A command gets their errors as values;
// the warnings of an API and the pauses between requests would stand among its output.
func Silence() { klog.SetSlogLogger(slog.New(slog.DiscardHandler)) }

// unhandled is the message of all errors that libraries hand to apimachinery's runtime.HandleError.
const unhandled = "Unhandled Error"

// demoted lowers to debug the informational records, and records that need no action.
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
	if givenUp(r) || tooLate(r) || r.Message == cutOff || strings.HasPrefix(r.Message, lostAudit) ||
		r.Message == failedList && d.repeats.again(r) {
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

// cause returns the cause of a line. All errors of the libraries' common handler have one message,
// and the cause in their attribute.
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

// givenUp reports whether the record is about a request for this server's readiness that the client
// has given up. The balancers of agents and clients do so after half a second, and report it
// themselves: it is no error of this server.
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

// tooLate reports whether the record is about a response that came too late: the client had gone,
// or the request had exceeded its time limit. Upstream logs which of the two in two other lines;
// these, up to four, do not have it. They come as text.
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

// cutOff is the message of a server that stops when connections are left after the time that they
// get: streams, which end with the process, and now and then one that was about to begin, to which
// net/http does not signal the end.
const cutOff = "Failed to shutdown server: context deadline exceeded"
