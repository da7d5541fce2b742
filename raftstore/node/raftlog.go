package node

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// newRaftLogger returns a logger for Raft that writes to ours. Raft reports every election as a
// warning or an error; those who read our log are told about leadership by this package, so
// Raft's own words are one level less important than it thinks.
func newRaftLogger(logger *slog.Logger) hclog.Logger {
	l := hclog.NewInterceptLogger(&hclog.LoggerOptions{Name: "raft", Level: hclog.Debug, Output: io.Discard})
	l.RegisterSink(&raftSink{logger: logger.With("component", "raft"), said: make(map[string]time.Time)})
	return l
}

// sayAgain is how often the same message is passed on at its level. While a server is away, Raft says so
// several times a second.
const sayAgain = 10 * time.Second

type raftSink struct {
	logger *slog.Logger

	mu   sync.Mutex
	said map[string]time.Time // by message, of which Raft has a fixed number
}

// repeated tells whether the message was passed on a short while ago.
func (s *raftSink) repeated(msg string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last, ok := s.said[msg]; ok && time.Since(last) < sayAgain {
		return true
	}
	s.said[msg] = time.Now()
	return false
}

// Accept implements hclog.SinkAdapter.
func (s *raftSink) Accept(_ string, level hclog.Level, msg string, args ...any) {
	to := slog.LevelDebug
	switch level {
	case hclog.Warn:
		to = slog.LevelInfo
	case hclog.Error:
		to = slog.LevelWarn
	}
	if to > slog.LevelDebug && s.repeated(msg) {
		to = slog.LevelDebug
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
