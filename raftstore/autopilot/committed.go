package autopilot

import (
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// Committed is the newest configuration that this server has applied. It is final. Members shows
// the newest configuration in the log, which Raft acts by: its leader may be deposed before a
// quorum has it. A caller that reports a lost vote, so that the machine may be switched off, asks
// here.
//
// Committed also knows whether the configuration is settled. By the Raft paper, the majority of a
// new configuration commits its entry. hashicorp/raft sends the entry before it counts so. If
// followers are fast the old majority commits it, including the server that loses its vote. If that
// server is then switched off, the leader alone may have the entries that it helped to commit. The
// new majority commits a later entry, and with it all entries before.
type Committed struct {
	newest atomic.Pointer[configuration] // nil: unknown
}

// configuration is one of the group.
type configuration struct {
	raft.Configuration
	index uint64 // of the entry that has brought it
}

// Note takes the configurations of entries that are about to be applied. It runs before their
// effects are visible, so that a decision about a server is never seen without its place in the
// configuration.
func (c *Committed) Note(entries []*raft.Log) {
	for _, entry := range entries {
		if entry.Type == raft.LogConfiguration {
			c.newest.Store(&configuration{raft.DecodeConfiguration(entry.Data), entry.Index})
		}
	}
}

// Load takes the configuration of the newest snapshot, when that has just become the state. If it
// is unreadable the configuration is unknown: the earlier one is older than the state.
func (c *Committed) Load(snapshots raft.SnapshotStore) error {
	all, err := snapshots.List()
	if err != nil {
		c.newest.Store(nil)
	} else if len(all) > 0 {
		c.newest.Store(&configuration{all[0].Configuration, all[0].ConfigurationIndex})
	}
	return err
}

// Place returns whether a server is a member, and has a vote. known is false before anything was
// applied, and after an unreadable snapshot.
func (c *Committed) Place(id string) (member, voter, known bool) {
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

// endsLog reports whether the newest committed configuration is the last thing in a log that ends
// with the index.
func (c *Committed) endsLog(last uint64) bool {
	newest := c.newest.Load()
	return newest != nil && newest.index == last
}

// Settled reports whether the majority of the newest configuration has all entries up to it:
// whether a later entry is committed.
func (c *Committed) Settled(index uint64) bool {
	newest := c.newest.Load()
	return newest != nil && index > newest.index
}

// Configured waits for a change of the configuration. If that takes long, it adds an entry. Raft
// ignores a server's acknowledgement from before its new vote counted. If that vote is needed and
// no entry follows, the change would wait forever.
func (a *Manager) Configured(change raft.Future) error {
	answer := a.server.Begin(func() raft.Future { return change })
	ticker := time.NewTicker(IdleEvery)
	defer ticker.Stop()
	var mark <-chan error // not nil: one is on its way
	for {
		select {
		case err := <-answer:
			if err != nil {
				return a.server.ProposeError(err)
			}
			return nil
		case <-mark:
			mark = nil
		case <-ticker.C:
			if mark == nil {
				mark = a.server.Begin(func() raft.Future { return a.server.NoOp() })
			}
		}
	}
}
