// Package logline logs texts that are written elsewhere: lines of libraries, and those of callers
// of a function that only adds something to them. All other log lines have a constant text, by
// which they are found, and their variable parts in attributes.
package logline

import (
	"context"
	"log/slog"
	"time"
)

// Log logs a text with attributes, as slog.Logger.Log does.
func Log(logger *slog.Logger, level slog.Level, text string, args ...any) {
	ctx := context.Background()
	if !logger.Enabled(ctx, level) {
		return
	}
	record := slog.NewRecord(time.Now(), level, text, 0)
	record.Add(args...)
	_ = logger.Handler().Handle(ctx, record) // as slog.Logger, which ignores a failure
}
