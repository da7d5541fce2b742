package node

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/logstore"
	"github.com/barque/barque/raftstore/screen"
)

// errHungLeader is for requests that were not proposed.
var errHungLeader = fmt.Errorf("%w: %w", kv.ErrUnavailable, logstore.ErrHangs)

// muzzle is Raft's transport. While the disk hangs it sends nothing that keeps this server in
// office or brings it there: no heartbeat, nor what followers take for one, and no request for a
// vote. Raft takes it for a network that is down. Answers to the others are not its business.
type muzzle struct {
	*attentive
	disk *logstore.Watchdog
}

// AppendEntries implements raft.Transport.
func (m *muzzle) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	if err := m.disk.Check(); err != nil {
		return err
	}
	return m.attentive.AppendEntries(id, target, args, resp)
}

// AppendEntriesPipeline implements raft.Transport.
func (m *muzzle) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	if err := m.disk.Check(); err != nil {
		return nil, err
	}
	inner, err := m.attentive.AppendEntriesPipeline(id, target)
	if err != nil {
		return nil, err
	}
	return &muzzledPipeline{newPipeline(inner), m.disk}, nil
}

// InstallSnapshot implements raft.Transport.
func (m *muzzle) InstallSnapshot(id raft.ServerID, target raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	if err := m.disk.Check(); err != nil {
		return err
	}
	return m.attentive.InstallSnapshot(id, target, args, resp, data)
}

// RequestVote implements raft.Transport.
func (m *muzzle) RequestVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	if err := m.disk.Check(); err != nil {
		return err
	}
	return anew(func() error { return m.attentive.RequestVote(id, target, args, resp) })
}

// RequestPreVote implements raft.WithPreVote.
func (m *muzzle) RequestPreVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	if err := m.disk.Check(); err != nil {
		return err
	}
	return anew(func() error { return m.attentive.RequestPreVote(id, target, args, resp) })
}

// screened is Raft's transport behind the screen.
type screened struct {
	*muzzle
	screen *screen.Screen
}

// Consumer implements raft.Transport.
func (s *screened) Consumer() <-chan raft.RPC { return s.screen.Consumer() }

// anew repeats a request over another connection while the one that it went over turns out to be
// broken. Raft keeps connections that nobody has used since the other server was restarted. For a
// vote that matters: Raft takes the error for a refusal, and asks again only in the next election.
// Whoever is asked twice gives the same vote twice.
func anew(ask func() error) error {
	var err error
	for range raftPool + 1 { // one more than there may be of them
		err = ask()
		if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, net.ErrClosed) &&
			!errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
			break
		}
	}
	return err
}

// muzzledPipeline is a pipeline, over which Raft sends empty messages while it has no others.
type muzzledPipeline struct {
	raft.AppendPipeline
	disk *logstore.Watchdog
}

// AppendEntries implements raft.AppendPipeline.
func (p *muzzledPipeline) AppendEntries(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	if err := p.disk.Check(); err != nil {
		return nil, err
	}
	return p.AppendPipeline.AppendEntries(args, resp)
}

// heedDisk ends leadership when the disk has begun to hang, and takes it up again when the disk is
// well and nobody else was elected, as when there is nobody else. told is whether the hang was
// logged; it returns the new value.
func (n *Node) heedDisk(told bool) bool {
	if err := n.storage.log.Disk().Check(); err != nil {
		if !told {
			n.cfg.Logger.Error("the disk hangs: this server neither leads nor stands for election until the write to the log is done; "+
				"look for the cause in the kernel's log and at the volume below the directory, and stop this server if it lasts",
				"dir", n.cfg.Dir, "limit", n.cfg.Timeouts.DiskWrite, "err", err)
			if n.raft.State() == raft.Leader {
				select {
				case n.hung <- struct{}{}:
				default: // a token is there
				}
			}
		}
		n.leadership.deposed(logstore.ErrHangs)
		return true
	}
	if told {
		n.cfg.Logger.Warn("the disk writes again: this server takes part as before", "dir", n.cfg.Dir)
	}
	n.enterOffice()
	return false
}

// nominate makes the server whose log goes furthest stand for election. A transfer of leadership
// would take the goroutine of Raft that waits for the disk. If it fails, the others elect somebody
// when they have missed the heartbeats for long enough.
func (n *Node) nominate() {
	best, found := lostAnswer{}, false
	for _, answer := range n.askForLost(n.ctx, lostQuestion{Leader: raft.ServerID(n.id.ServerID)}) {
		if answer.Stands && (!found || best.before(answer)) {
			best, found = answer, true
		}
	}
	if !found {
		return
	}
	m, ok := n.member(string(best.ID))
	if !ok || n.storage.log.Disk().Check() == nil { // it writes again
		return
	}
	n.cfg.Logger.Info("another server is asked to lead", "server", m.ID)
	err := n.transport.TimeoutNow(best.ID, raft.ServerAddress(m.Address), &raft.TimeoutNowRequest{RPCHeader: n.rpcHeader()}, &raft.TimeoutNowResponse{})
	if err != nil {
		n.cfg.Logger.Warn("the other server could not be asked to lead; it will elect itself later", "server", m.ID, "err", err)
	}
}
