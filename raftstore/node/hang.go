package node

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/kv"
)

var (
	errDiskHangs = errors.New("the disk of this server does not finish a write to the log")
	// errHungLeader is for requests that were not proposed.
	errHungLeader = fmt.Errorf("%w: %w", kv.ErrUnavailable, errDiskHangs)
)

// watchdog knows when writes to the log hang.
//
//	well ──a write takes longer than the limit──▶ hung ──every such write has returned──▶ well
//
// A leader whose disk hangs would stay one: Raft's heartbeats come from goroutines that need no disk,
// while the one that could step down waits for it. So a server whose disk is hung says nothing that
// makes a leader (see muzzle), and the others elect one of them.
//
// DeleteRange is not watched. It may be long, and whoever waits behind it is.
type watchdog struct {
	limit   time.Duration
	changed chan struct{} // holds a token when the disk begins or ceases to hang

	mu    sync.Mutex
	late  int           // writes under way for longer than limit
	since time.Time     // when the first of them began
	hung  chan struct{} // closed while the disk hangs
}

func newWatchdog(limit time.Duration) *watchdog {
	return &watchdog{limit: limit, changed: make(chan struct{}, 1), hung: make(chan struct{})}
}

// guard makes a write.
func (w *watchdog) guard(write func() error) error {
	began := time.Now()
	late, done := false, false // guarded by mu
	timer := time.AfterFunc(w.limit, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if done {
			return
		}
		late = true
		if w.late++; w.late == 1 {
			w.since = began
			close(w.hung)
			w.tell()
		}
	})
	err := write()
	timer.Stop()
	w.mu.Lock()
	defer w.mu.Unlock()
	if done = true; late {
		if w.late--; w.late == 0 {
			w.hung = make(chan struct{})
			w.tell()
		}
	}
	return err
}

func (w *watchdog) tell() {
	select {
	case w.changed <- struct{}{}:
	default: // a token is there
	}
}

// hanging returns a channel that is closed while the disk hangs. It is of no use after that.
func (w *watchdog) hanging() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.hung
}

// check returns an error that wraps errDiskHangs while the disk hangs.
func (w *watchdog) check() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.late == 0 {
		return nil
	}
	return fmt.Errorf("%w, for %s now", errDiskHangs, time.Since(w.since).Round(time.Second))
}

// muzzle is Raft's transport. While the disk hangs it sends nothing that keeps this server in office
// or brings it there: no heartbeat, nor what followers take for one, and no request for a vote. Raft
// takes it for a network that is down. Answers to the others are not its business.
type muzzle struct {
	*attentive
	disk *watchdog
}

// AppendEntries implements raft.Transport.
func (m *muzzle) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	if err := m.disk.check(); err != nil {
		return err
	}
	return m.attentive.AppendEntries(id, target, args, resp)
}

// AppendEntriesPipeline implements raft.Transport.
func (m *muzzle) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	if err := m.disk.check(); err != nil {
		return nil, err
	}
	pipeline, err := m.attentive.AppendEntriesPipeline(id, target)
	if err != nil {
		return nil, err
	}
	return &muzzledPipeline{pipeline, m.disk}, nil
}

// InstallSnapshot implements raft.Transport.
func (m *muzzle) InstallSnapshot(id raft.ServerID, target raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	if err := m.disk.check(); err != nil {
		return err
	}
	return m.attentive.InstallSnapshot(id, target, args, resp, data)
}

// RequestVote implements raft.Transport.
func (m *muzzle) RequestVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	if err := m.disk.check(); err != nil {
		return err
	}
	return m.attentive.RequestVote(id, target, args, resp)
}

// RequestPreVote implements raft.WithPreVote.
func (m *muzzle) RequestPreVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	if err := m.disk.check(); err != nil {
		return err
	}
	return m.attentive.RequestPreVote(id, target, args, resp)
}

// muzzledPipeline is a pipeline, over which Raft sends empty messages while it has no others.
type muzzledPipeline struct {
	raft.AppendPipeline
	disk *watchdog
}

// AppendEntries implements raft.AppendPipeline.
func (p *muzzledPipeline) AppendEntries(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	if err := p.disk.check(); err != nil {
		return nil, err
	}
	return p.AppendPipeline.AppendEntries(args, resp)
}

// heedDisk ends leadership when the disk has begun to hang, and takes it up again when the disk is
// well and nobody else was elected, as when there is nobody else. told is whether the hang was
// logged; it returns the new value.
func (n *Node) heedDisk(told bool) bool {
	if err := n.storage.log.disk.check(); err != nil {
		if !told {
			n.cfg.Logger.Error("the disk hangs: this server neither leads nor stands for election until the write to the log is done; "+
				"look for the cause in the kernel's log and at the volume below the directory, and stop this server if it lasts",
				"dir", n.cfg.Dir, "limit", n.cfg.Timeouts.DiskWrite, "err", err)
		}
		n.leadership.deposed(errDiskHangs)
		return true
	}
	if told {
		n.cfg.Logger.Warn("the disk writes again: this server takes part as before", "dir", n.cfg.Dir)
	}
	if n.raft.State() == raft.Leader {
		n.leadership.elected(n.ctx, &n.offices, n.takeOffice)
	}
	return false
}
