// Package succession stops a server whose cluster has a successor, as after a forced recovery. The
// server takes no part any more, serves nothing, marks its directory, and signals the program to
// stop.
//
// A server of the other cluster says so when this one connects to it. The successor's replicated
// state has its predecessors: see package group.
package succession

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/barque/barque/raftstore/disk"
	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/peer"
)

// Options of a Watch. All but OnSuperseded are needed.
type Options struct {
	ID string
	// Dir is the data directory, which is marked unless InMemory.
	Dir      string
	InMemory bool
	// JoinAgain is the advice for operators how a server joins again as a new one.
	JoinAgain string
	// OnSuperseded is called, once, when this server has learned it. It must not block.
	OnSuperseded func(group.Succession)
	Logger       *slog.Logger
}

// Server is the Watch's interface of the server.
type Server interface {
	// Mute breaks Raft's connections for good: no vote, no entry and no heartbeat leaves.
	Mute()
	// Withdraw ends all service, for a reason that nothing heals.
	Withdraw(reason string)
}

// Watch knows whether this server is superseded.
type Watch struct {
	opts   Options
	server Server
	told   chan group.Succession // holds one received succession
	known  atomic.Pointer[group.Succession]
}

// New returns a Watch, which waits for nothing before Run.
func New(opts Options, server Server) *Watch {
	return &Watch{opts: opts, server: server, told: make(chan group.Succession, 1)}
}

// Refused looks for a succession in the error of a failed connection. It does not block.
func (w *Watch) Refused(err error) {
	var wrong *peer.WrongServerError
	if !errors.As(err, &wrong) || wrong.Succession == nil {
		return
	}
	select {
	case w.told <- *wrong.Succession:
	default: // one is enough
	}
}

// Run ends with ctx, or when this server is superseded.
func (w *Watch) Run(ctx context.Context) {
	select {
	case s := <-w.told:
		w.supersede(s)
	case <-ctx.Done():
	}
}

// Superseded returns the successor of this server's cluster; nil if none is known.
func (w *Watch) Superseded() *group.Succession { return w.known.Load() }

// Err returns an ErrUnavailable when this server is superseded.
func (w *Watch) Err() error {
	if s := w.known.Load(); s != nil {
		return fmt.Errorf("%w: %w", kv.ErrUnavailable, &group.SupersededError{Dir: w.opts.Dir, Succession: *s})
	}
	return nil
}

// supersede takes this server out of service, for good.
func (w *Watch) supersede(s group.Succession) {
	e := &group.SupersededError{Dir: w.opts.Dir, Succession: s}
	w.known.Store(&e.Succession)
	w.server.Mute()
	w.server.Withdraw(e.Error())
	w.opts.Logger.Error(
		"another cluster goes on in place of this server's: this server serves nothing any more, and stops", "mend",
		w.opts.JoinAgain, "server", w.opts.ID, "cluster", s.Cluster, "goesOnAs", s.Successor, "since", s.At, "by", s.By)
	if !w.opts.InMemory {
		if err := disk.MarkSuperseded(w.opts.Dir, s); err != nil { // it is received again after the next start
			w.opts.Logger.Error("cannot mark the directory of a superseded server: do not start it again as it is",
				"err", err)
		}
	}
	if w.opts.OnSuperseded != nil {
		w.opts.OnSuperseded(s)
	}
}
