package node

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/status"
)

// leaderChangesKept is how many changes are kept. An election is two: the old leader goes, the new
// one comes.
const leaderChangesKept = 16

// leaderHistory keeps the last changes of leaders in memory, for an operator who asks later why
// they were. It decides nothing. The zero value is empty.
type leaderHistory struct {
	mu      sync.Mutex
	changes []status.LeaderChange // oldest first
	// reason is why this server stands for election in the term reasonFor, where it knows more than
	// that the leader is missing. Nothing may come of that election.
	reason    string
	reasonFor uint64
}

// stands notes why this server is about to stand for election in a term, and returns what it notes.
// When an election brought no leader and it stands again, the reason why the last leader went stays
// the first part.
func (h *leaderHistory) stands(term uint64, why string, again bool) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := len(h.changes); again && n > 0 && h.changes[n-1].Leader == "" && h.changes[n-1].Why != "" {
		why = h.changes[n-1].Why + "; then " + why
	}
	h.reason, h.reasonFor = why, term
	return why
}

// whyStands returns what was noted for an election in that term; empty when nothing was.
func (h *leaderHistory) whyStands(term uint64) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.reasonFor != term {
		return ""
	}
	return h.reason
}

// lost notes that the leader leads no more. A reason of this server to stand for election is better
// than why.
func (h *leaderHistory) lost(term uint64, before, why string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.reason != "" && term <= h.reasonFor {
		why = h.reason
	}
	h.add(status.LeaderChange{Term: term, Before: before, Why: why})
}

// leads notes that a server leads. Its reason is that for which the one before it went; why is the
// reason where no loss was seen before, or no leader at all.
func (h *leaderHistory) leads(term uint64, leader, why string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change, reason := status.LeaderChange{Term: term, Leader: leader, Why: why}, ""
	if term <= h.reasonFor {
		reason = h.reason
	}
	if n := len(h.changes); n == 0 {
		if reason != "" && why != "" {
			reason = why + "; then " + reason
		}
	} else if last := h.changes[n-1]; last.Leader == "" {
		change.Before, change.Why = last.Before, last.Why
	} else if change.Before = last.Leader; last.Leader == leader {
		change.Why = ""
	}
	change.Why = cmp.Or(reason, change.Why)
	h.reason = ""
	h.add(change)
}

// add is called with mu held.
func (h *leaderHistory) add(change status.LeaderChange) {
	change.At = time.Now()
	h.changes = append(h.changes, change)
	if over := len(h.changes) - leaderChangesKept; over > 0 {
		h.changes = slices.Delete(h.changes, 0, over)
	}
}

// newest returns the changes, newest first.
func (h *leaderHistory) newest() []status.LeaderChange {
	h.mu.Lock()
	defer h.mu.Unlock()
	changes := slices.Clone(h.changes)
	slices.Reverse(changes)
	return changes
}

// tellOfElections logs and counts, from now on, each time that Raft makes this server a candidate.
// A candidate that was not elected tries again by itself, of which Raft logs.
func (n *Node) tellOfElections() {
	n.raft.RegisterObserver(raft.NewObserver(nil, false, func(o *raft.Observation) bool {
		if state, ok := o.Data.(raft.RaftState); ok && state == raft.Candidate {
			n.stats.Elections.Inc()
			term := n.raft.CurrentTerm() + 1
			n.cfg.Logger.Info("this server stands for election", "term", term, "why", n.whyStands(term))
		}
		return false // it was told above, before Raft goes on
	}))
}

// whyStands is why this server stands for election in a term: a quorum has lost the leader or waits
// for one, the leader hands over, or Raft has heard nothing for its time-out.
func (n *Node) whyStands(term uint64) string {
	if why := n.leaders.whyStands(term); why != "" {
		return why
	}
	last := n.raft.LastContact()
	switch silent := time.Since(last); {
	case last.IsZero():
		return "it has heard of no leader since it was started"
	case silent < n.cfg.Timeouts.Heartbeat: // Raft does not stand by itself then
		from := "the leader"
		if changes := n.leaders.newest(); len(changes) > 0 {
			from = group.NameOf(cmp.Or(changes[0].Leader, changes[0].Before))
		}
		return n.leaders.stands(term, fmt.Sprintf("%s handed over to %s", from, n.cfg.Name), false)
	default:
		return fmt.Sprintf("it has heard of no leader, and voted for none, for %s", silent.Round(time.Millisecond))
	}
}

// whyRetires is why this server, which leads, is to lose its vote.
func (n *Node) whyRetires() string {
	switch s := n.standing(n.id.ServerID); {
	case s.State == group.Leaving && s.Why != "":
		return "it leaves the cluster: " + s.Why
	case s.State == group.Leaving:
		return "it leaves the cluster"
	case s.State == group.Standby:
		return "it is to have no vote until it is promoted"
	}
	return "it is to lose its vote"
}

// whyFirst is why this server leads, which has known of no other leader since it was opened.
func (n *Node) whyFirst() string {
	read := n.storage.Start
	if read.Log.Last > 0 || read.Snapshot > 0 {
		for _, p := range n.Predecessors() {
			if p.Successor == n.id.ClusterID && read.Log.Last <= read.Snapshot { // nothing was written since
				return fmt.Sprintf("%s was recovered as the only server of this cluster at %s, from cluster %s", group.NameOf(p.By), p.At.Format(time.RFC3339), p.Cluster)
			}
		}
		return fmt.Sprintf("nobody led when %s was started at %s", n.cfg.Name, n.opened.UTC().Format(time.RFC3339))
	}
	if n.cfg.Bootstrap {
		return "the cluster began with it"
	}
	return ""
}
