package node

import (
	"fmt"
	"time"

	"github.com/barque/barque/raftstore/group"
)

const (
	leaderlessLook  = time.Second
	leaderlessAfter = 5 * time.Second  // an election takes less
	leaderlessAgain = 30 * time.Second // how often it is said
)

// tellOfNoLeader says in words what an operator needs to know when this server finds no leader for
// long: nothing can be read or written then. It ends with the node.
func (n *Node) tellOfNoLeader() {
	ticker := time.NewTicker(leaderlessLook)
	defer ticker.Stop()
	since, told := time.Now(), time.Time{}
	for {
		select {
		case <-n.ctx.Done():
			return
		case <-ticker.C:
		}
		if _, id := n.raft.leader(); id != "" {
			if !told.IsZero() {
				n.cfg.Logger.Info("there is a leader again", "leader", id, "after", time.Since(since).Round(time.Second))
			}
			since, told = time.Now(), time.Time{}
			continue
		}
		if time.Since(since) >= leaderlessAfter && time.Since(told) >= leaderlessAgain {
			told = time.Now()
			n.explainNoLeader(told.Sub(since))
		}
	}
}

// noLeader is the error for who asks while there is no leader.
func (n *Node) noLeader() error {
	if since := n.leaderless(); since >= leaderlessAfter {
		return n.withoutLeader(since)
	}
	return group.ErrNoLeader
}

func (n *Node) explainNoLeader(since time.Duration) {
	log := n.cfg.Logger.With("for", since.Round(time.Second))
	if _, ok := n.member(n.id.ServerID); !ok {
		log.Warn("this server is no member of the cluster yet, or hears nothing of it; it waits to be let in", "server", n.id.ServerID)
		return
	}
	voters, alive := 0, 0
	var missing []string
	for _, p := range n.PeerStatus(n.ctx) {
		switch {
		case !p.Member.Voter:
		case p.Status != nil:
			voters, alive = voters+1, alive+1
		default:
			voters++
			missing = append(missing, fmt.Sprintf("%s (%s): %s", p.Member.Name, p.Member.Address, p.Error))
		}
	}
	log.Warn(fmt.Sprintf("the store has no leader, so nothing can be read or written: %d of %d servers answer and %d are needed; start the others",
		alive, voters, voters/2+1), "missing", missing)
}
