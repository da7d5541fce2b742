// Package raftlog writes Raft's log lines into our log: each rarely, and none that the store logs
// better by itself.
package raftlog

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/barque/barque/internal/logline"
)

// New returns a logger for Raft that writes to ours. Raft reports every election as a warning or an
// error. Packages leader and election log changes of leadership, so Raft's lines are one level
// lower.
func New(logger *slog.Logger) hclog.Logger {
	l := hclog.NewInterceptLogger(&hclog.LoggerOptions{Name: "raft", Level: hclog.Debug, Output: io.Discard})
	l.RegisterSink(&sink{logger: logger.With("component", "raft"), said: make(map[string]saying)})
	return l
}

// While a server is away, Raft logs that several times a second. The same message is passed on at
// its level after sayAgain, and then after twice as long each time. One that has paused for
// sayAgainMax is new.
const (
	sayAgain    = 10 * time.Second
	sayAgainMax = time.Hour
)

type sink struct {
	logger *slog.Logger

	mu   sync.Mutex
	said map[string]saying // by message, of which Raft has a fixed number
}

// saying is the time of a message, and of its next repetition.
type saying struct {
	heard, next time.Time
	pause       time.Duration // from when it was passed on to next
}

// repeated reports whether the message was passed on a short while ago.
func (s *sink) repeated(msg string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	was, ok := s.said[msg]
	if ok && now.Before(was.next) {
		was.heard = now
		s.said[msg] = was
		return true
	}
	pause := sayAgain
	if ok && now.Sub(was.heard) < sayAgainMax {
		pause = min(2*was.pause, sayAgainMax)
	}
	s.said[msg] = saying{now, now.Add(pause), pause}
	return false
}

// usual reports whether a message is about an ordinary event, or one that package node logs better
// itself. Such events are a campaign of this server, a member that does not answer, and a
// follower's log that is shorter than the leader assumed. By the last one the leader finds the
// position to continue from.
func usual(msg string) bool {
	switch msg {
	case "heartbeat timeout reached, starting election", "failed to heartbeat to", "failed to appendEntries to",
		"failed to make requestVote RPC", "failed to contact",
		"failed to get previous log", "previous log term mis-match", "appendEntries rejected, sending older logs",
		"failed to decode incoming command", "failed to flush response", "failed to pipeline appendEntries",
		"rejecting pre-vote request since we have a leader", "rejecting vote request since we have a leader":
		return true
	}
	return false
}

// Accept implements hclog.SinkAdapter.
func (s *sink) Accept(_ string, level hclog.Level, msg string, args ...any) {
	to := slog.LevelDebug
	switch level {
	case hclog.Warn:
		to = slog.LevelInfo
	case hclog.Error:
		to = slog.LevelWarn
	}
	if to > slog.LevelDebug && (usual(msg) || s.repeated(msg)) {
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
	logline.Log(s.logger, to, msg, args...)
}
