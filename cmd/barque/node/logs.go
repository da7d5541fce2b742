package node

import (
	"context"
	"log/slog"

	"k8s.io/klog/v2"
)

// bridgeLogs sends what the Kubernetes libraries log to our logger. Their informational lines are
// details to an operator of Barque, so they come at debug level.
func bridgeLogs(logger *slog.Logger) {
	klog.SetSlogLogger(slog.New(demoted{logger.With("part", "k8s").Handler()}))
}

// demoted lowers informational records to debug.
type demoted struct{ slog.Handler }

func (d demoted) Enabled(ctx context.Context, level slog.Level) bool {
	return d.Handler.Enabled(ctx, demote(level))
}

func (d demoted) Handle(ctx context.Context, r slog.Record) error {
	r.Level = demote(r.Level)
	return d.Handler.Handle(ctx, r)
}

func (d demoted) WithAttrs(attrs []slog.Attr) slog.Handler {
	return demoted{d.Handler.WithAttrs(attrs)}
}
func (d demoted) WithGroup(name string) slog.Handler { return demoted{d.Handler.WithGroup(name)} }

func demote(level slog.Level) slog.Level {
	if level >= slog.LevelInfo && level < slog.LevelWarn {
		return slog.LevelDebug
	}
	return level
}
