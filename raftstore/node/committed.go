package node

import (
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// committed is the newest configuration of the group that this server has applied, so that nobody can overrule it
// any more. Members shows what Raft acts by, the newest in the log: the leader that wrote it may be gone before a
// quorum has it. Who tells people that a server has lost its vote, so that its machine can be switched off, asks here.
type committed struct {
	newest atomic.Pointer[raft.Configuration] // nil: it is not known
}

// note takes what the entries that are about to be applied say. It comes before their effects can be seen, so
// that what is decided about a server is never seen without the place that it had by then.
func (c *committed) note(entries []*raft.Log) {
	for _, entry := range entries {
		if entry.Type == raft.LogConfiguration {
			c.newest.Store(new(raft.DecodeConfiguration(entry.Data)))
		}
	}
}

// load takes what the newest snapshot says, when that has just become the state. If it cannot be read nothing is known
// any more: what was known is older than the state.
func (c *committed) load(snapshots raft.SnapshotStore) error {
	all, err := snapshots.List()
	if err != nil {
		c.newest.Store(nil)
	} else if len(all) > 0 {
		c.newest.Store(&all[0].Configuration)
	}
	return err
}

// place returns whether a server is a member, and has a vote. known is false before anything was applied, and
// after a snapshot that could not be read.
func (c *committed) place(id string) (member, voter, known bool) {
	newest := c.newest.Load()
	if newest == nil {
		return false, false, false
	}
	for _, s := range newest.Servers {
		if string(s.ID) == id {
			return true, s.Suffrage == raft.Voter, true
		}
	}
	return false, false, true
}
