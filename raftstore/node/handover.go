package node

import (
	"context"
	"sync"
	"time"

	"github.com/barque/barque/raftstore/group"
)

// When a leader whose disk is full hands leadership to a server that has room.
const (
	// fullLook is how often it looks for one, and stuckAfter for how long in vain until that is
	// said to be of no use: a server that does not answer may do so in a moment, and the log is
	// shortened meanwhile.
	fullLook   = 500 * time.Millisecond
	stuckAfter = 5 * time.Second
	// maxHandOverLag is how many entries a server may be behind that is to lead at once.
	maxHandOverLag = 1024
)

// leaveFullDisk hands leadership over when the disk of this server is full, and another voter's is
// not. It ends with the tenure.
func (n *Node) leaveFullDisk(ctx context.Context) {
	r := n.storage.Reserve
	r.Stuck.Store(false)
	wait := time.NewTimer(0) // the disk may be full when this server is elected
	defer wait.Stop()
	var since time.Time // when the search began; zero when there is none
	for {
		select {
		case <-wait.C:
		case <-r.Filled:
		case <-ctx.Done():
			return
		}
		if !r.Full.Load() {
			since = time.Time{}
			r.Stuck.Store(false)
			continue
		}
		if since.IsZero() {
			since = time.Now()
		}
		// Once it is said that nobody has room, nothing depends on how soon a look ends, and slow
		// servers may take the time that a call has.
		limit, again := n.cfg.Timeouts.Call, stuckAfter
		if !r.Stuck.Load() {
			limit, again = max(stuckAfter-time.Since(since), fullLook), fullLook
		}
		if to, ok := n.withRoom(ctx, limit); ok {
			since = time.Time{}
			r.Stuck.Store(false)
			n.passOn(ctx, to)
		} else {
			r.Stuck.Store(time.Since(since) >= stuckAfter)
		}
		wait.Reset(again)
	}
}

func (n *Node) passOn(ctx context.Context, to group.Member) {
	const reason = "its disk is full"
	n.cfg.Logger.Warn("this server hands leadership over", "to", to.ID, "reason", reason)
	ctx, cancel := context.WithTimeout(ctx, n.transferTime())
	defer cancel()
	if err := n.transfer(ctx, to, reason); err != nil {
		n.cfg.Logger.Warn("cannot hand leadership over", "to", to.ID, "err", err)
		return
	}
	n.stats.HandOvers.Inc()
}

// withRoom asks the other voters that are to stay, and returns the first to answer that can lead
// and has room on its disk.
func (n *Node) withRoom(ctx context.Context, limit time.Duration) (to group.Member, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var found sync.Once
	var asking sync.WaitGroup
	last, roster := n.raft.LastIndex(), group.Decisions(n.state.Latest())
	for _, m := range n.Members() {
		if m.Self || !m.Voter || roster[m.ID].State != group.Regular {
			continue
		}
		asking.Go(func() {
			s, err := n.board.Ask(ctx, m)
			if err != nil || s.Quarantined != "" || s.DiskFull || s.DiskError != "" || s.LastIndex+maxHandOverLag < last {
				return
			}
			found.Do(func() { to, ok = m, true })
			cancel() // one is enough
		})
	}
	asking.Wait()
	return to, ok
}
