package node

import (
	"fmt"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/logstore"
)

// errHungLeader is for requests that were not proposed.
var errHungLeader = fmt.Errorf("%w: %w", kv.ErrUnavailable, logstore.ErrHangs)

// followDisk ends leadership when the disk has begun to hang, and takes it up again when the disk is
// well and nobody else was elected, as when there is nobody else. told is whether the hang was
// logged; it returns the new value.
func (n *Node) followDisk(told bool) bool {
	if err := n.storage.Log.Disk().Check(); err != nil {
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
	if !ok || n.storage.Log.Disk().Check() == nil { // it writes again
		return
	}
	n.cfg.Logger.Info("another server is asked to lead", "server", m.ID)
	err := n.transport.TimeoutNow(best.ID, raft.ServerAddress(m.Address), &raft.TimeoutNowRequest{RPCHeader: n.rpcHeader()}, &raft.TimeoutNowResponse{})
	if err != nil {
		n.cfg.Logger.Warn("the other server could not be asked to lead; it will elect itself later", "server", m.ID, "err", err)
	}
}
