package node

import (
	"fmt"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/logstore"
)

// errHungLeader is for requests that were not proposed.
var errHungLeader = fmt.Errorf("%w: %w", kv.ErrUnavailable, logstore.ErrHangs)

// followDisk ends leadership when the disk has begun to hang, and takes it up again when the disk
// is well and nobody else was elected, as when there is nobody else. told is whether the hang was
// logged; it returns the new value.
func (n *Node) followDisk(told bool) bool {
	if err := n.storage.Log.Disk().Check(); err != nil {
		if !told {
			n.cfg.Logger.Error("the disk hangs: this server neither leads nor stands for election until the write to the log is done; "+
				"look for the cause in the kernel's log and at the volume below the directory, and stop this server if it lasts",
				"dir", n.cfg.Dir, "limit", n.cfg.Timeouts.DiskWrite, "err", err)
			if n.raft.State() == raft.Leader {
				n.election.Disk()
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
