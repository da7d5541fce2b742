package autopilot

import (
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// Committed is the newest configuration of the group that this server has applied. It is final.
// Members shows the newest one in the log, by which Raft acts: the leader that wrote it may be gone
// before a quorum has it. A caller that tells people that a server has lost its vote, and its
// machine can be switched off, asks here.
//
// It also knows whether the configuration is settled. By the Raft paper the majority of a new
// configuration commits its entry. hashicorp/raft sends the entry before it counts so: where
// followers are fast the old majority commits it, and the server that loses its vote is part of
// that. If that server is switched off then, the leader alone may have the entries that it helped
// to commit. The new majority commits a later entry, and with it all entries before.
type Committed struct {
	newest atomic.Pointer[configuration] // nil: it is not known
}

// configuration is one of the group.
type configuration struct {
	raft.Configuration
	index uint64 // of the entry that has brought it
}

// Note takes the configurations of entries that are about to be applied. It comes before their
// effects can be seen, so that a decision about a server is never seen without its place in the
// configuration.
func (c *Committed) Note(entries []*raft.Log) {
	for _, entry := range entries {
		if entry.Type == raft.LogConfiguration {
			c.newest.Store(&configuration{raft.DecodeConfiguration(entry.Data), entry.Index})
		}
	}
}

// Load takes what the newest snapshot says, when that has just become the state. If it cannot be
// read nothing is known any more: what was known is older than the state.
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
// applied, and after a snapshot that could not be read.
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

// endsLog tells whether the newest committed configuration is the last thing in a log that ends
// with the index.
func (c *Committed) endsLog(last uint64) bool {
	newest := c.newest.Load()
	return newest != nil && newest.index == last
}

// Settled tells whether the majority of the newest configuration has all entries up to it: whether
// an entry behind it is committed.
func (c *Committed) Settled(index uint64) bool {
	newest := c.newest.Load()
	return newest != nil && index > newest.index
}

// Configured waits for a change of the configuration. It is helped by an entry behind it when it
// takes long: Raft forgets that a server has it which got it, and said so, before its new vote
// counted. If that vote is needed and no entry follows, the change would wait for ever.
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
