package node

import (
	"context"
	"log/slog"
)

// unlessStopped is the error of a start, unless the start was called off: whoever told the process
// to stop is told that it did, and what it was waiting for is in the log.
func unlessStopped(ctx context.Context, err error, logger *slog.Logger) error {
	if ctx.Err() == nil {
		return err
	}
	logger.Info("told to stop before it was ready", "cause", context.Cause(ctx), "meanwhile", err)
	return nil
}
