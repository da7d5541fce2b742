package node

import (
	"context"
	"io"
	"log/slog"

	"github.com/hashicorp/go-hclog"
)

// newRaftLogger returns a logger for Raft that writes to ours. Raft reports every election as a
// warning or an error; those who read our log are told about leadership by this package, so
// Raft's own words are one level less important than it thinks.
func newRaftLogger(logger *slog.Logger) hclog.Logger {
	l := hclog.NewInterceptLogger(&hclog.LoggerOptions{Name: "raft", Level: hclog.Debug, Output: io.Discard})
	l.RegisterSink(raftSink{logger.With("component", "raft")})
	return l
}

type raftSink struct{ logger *slog.Logger }

// Accept implements hclog.SinkAdapter.
func (s raftSink) Accept(_ string, level hclog.Level, msg string, args ...any) {
	to := slog.LevelDebug
	switch level {
	case hclog.Warn:
		to = slog.LevelInfo
	case hclog.Error:
		to = slog.LevelWarn
	}
	if !s.logger.Enabled(context.Background(), to) {
		return
	}
	for i, arg := range args { // hclog formats lazily, with types of its own
		if f, ok := arg.(hclog.Format); ok && len(f) > 0 {
			args[i] = f[0]
		}
	}
	s.logger.Log(context.Background(), to, msg, args...)
}
