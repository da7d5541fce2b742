// Package raftlog is how Raft's own words get into our log: each said rarely, and none that the
// store says better by itself.
package raftlog

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// New returns a logger for Raft that writes to ours. Raft reports every election as a warning or an
// error; packages leader and election log changes of leadership, so
// Raft's own words are one level less important than it thinks.
func New(logger *slog.Logger) hclog.Logger {
	l := hclog.NewInterceptLogger(&hclog.LoggerOptions{Name: "raft", Level: hclog.Debug, Output: io.Discard})
	l.RegisterSink(&sink{logger: logger.With("component", "raft"), said: make(map[string]saying)})
	return l
}

// While a server is away, Raft says so several times a second, for as long as that lasts. The same
// message is passed on at its level after sayAgain, and then after twice as long each time; one
// that was not heard for sayAgainMax is new.
const (
	sayAgain    = 10 * time.Second
	sayAgainMax = time.Hour
)

type sink struct {
	logger *slog.Logger

	mu   sync.Mutex
	said map[string]saying // by message, of which Raft has a fixed number
}

// saying is when a message was heard, and when it is passed on again.
type saying struct {
	heard, next time.Time
	pause       time.Duration // from when it was passed on to next
}

// repeated tells whether the message was passed on a short while ago.
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

// usual tells whether a message is about what happens all the time, or what package node says
// itself and better: that this server campaigns, that a member does not answer, and that
// a follower's log is not as long as the leader took it to be, which is how the leader finds out
// where to go on.
func usual(msg string) bool {
	switch msg {
	case "heartbeat timeout reached, starting election", "failed to heartbeat to", "failed to appendEntries to", "failed to make requestVote RPC", "failed to contact",
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
	s.logger.Log(context.Background(), to, msg, args...)
}
