package node

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/steward"
)

// What the chronicle says of the reasons, where only one server knows them.

// handingOver is what a leader tells the others when it hands its office over: they see no more of that than that somebody
// stands for election, and the old leader may be gone when one asks why.
type handingOver struct {
	ID   string `json:"id"` // of the leader
	Term uint64 `json:"term"`
	Why  string `json:"why"` // a sentence, for people; empty takes back what was said
}

// tellOfHandOver tells all members that this server is about to hand over, and waits no longer than a lost answer is worth.
func (n *Node) tellOfHandOver(ctx context.Context, heir, why string) {
	n.spreadWhy(ctx, fmt.Sprintf("%s handed over to %s, because %s", n.cfg.Name, heir, why))
}

// tellOfStaying takes that back, when nothing came of it.
func (n *Node) tellOfStaying() { n.spreadWhy(n.ctx, "") }

func (n *Node) spreadWhy(ctx context.Context, why string) {
	ctx, cancel := context.WithTimeout(ctx, doubtTimeout)
	defer cancel()
	word := handingOver{n.id.ServerID, n.raft.CurrentTerm(), why}
	var telling sync.WaitGroup
	for _, m := range n.others() {
		telling.Go(func() {
			if _, err := n.tell(ctx, m, callHandOver, word); err != nil {
				n.cfg.Logger.Debug("a server did not hear why the leader hands over", "server", m.ID, "err", err)
			}
		})
	}
	telling.Wait()
}

// handleHandOver takes the leader's word on why it hands over.
func (n *Node) handleHandOver(payload []byte) (byte, []byte) {
	var word handingOver
	if err := json.Unmarshal(payload, &word); err != nil {
		return answerRefused, []byte(err.Error())
	}
	if _, id := n.leaderWithID(); id != raft.ServerID(word.ID) || word.Term != n.raft.CurrentTerm() {
		return answerRefused, fmt.Appendf(nil, "%q does not lead in term %d, as this server knows", word.ID, word.Term)
	}
	n.chronicle.Blame(word.Term+1, word.Why, false)
	n.running.Go(func() { // ends with the node
		select {
		case <-time.After(n.transferTime()): // nothing came of it
			n.chronicle.Unblame(word.Term+1, word.Why)
		case <-n.ctx.Done():
		}
	})
	return answerOK, nil
}

// tellOfElections logs and counts, from now on, each time that Raft makes this server a candidate. A candidate that was not
// elected tries again by itself, of which Raft logs.
func (n *Node) tellOfElections() {
	n.raft.RegisterObserver(raft.NewObserver(nil, false, func(o *raft.Observation) bool {
		if state, ok := o.Data.(raft.RaftState); ok && state == raft.Candidate {
			n.stats.elections.Inc()
			term := n.raft.CurrentTerm() + 1
			n.cfg.Logger.Info("this server stands for election", "term", term, "why", n.whyStands(term))
		}
		return false // it was told above, before Raft goes on
	}))
}

// whyStands is why this server stands for election in a term: a quorum has lost the leader or waits for one, the leader
// hands over, or Raft has heard nothing for its time-out.
func (n *Node) whyStands(term uint64) string {
	if why := n.chronicle.Blamed(term); why != "" {
		return why
	}
	last := n.raft.LastContact()
	switch silent := time.Since(last); {
	case last.IsZero():
		return "it has heard of no leader since it was started"
	case silent < n.cfg.Timeouts.Heartbeat: // Raft does not stand by itself then
		return "the leader told it to"
	default:
		return fmt.Sprintf("it has heard of no leader, and voted for none, for %s", silent.Round(time.Millisecond))
	}
}

// whyRetires is why this server, which leads, is to lose its vote.
func (n *Node) whyRetires() string {
	switch s := n.standing(n.id.ServerID); {
	case s.State == steward.Leaving && s.Why != "":
		return "it leaves the cluster: " + s.Why
	case s.State == steward.Leaving:
		return "it leaves the cluster"
	case s.State == steward.Standby:
		return "it is to have no vote until it is promoted"
	}
	return "it is to lose its vote"
}

// whyFirst is why this server leads, which has known of no other leader since it was opened.
func (n *Node) whyFirst() string {
	read := n.storage.start
	if read.Log.Last > 0 || read.Snapshot > 0 {
		for _, p := range n.Predecessors() {
			if p.Successor == n.id.ClusterID && read.Log.Last <= read.Snapshot { // nothing was written since
				return fmt.Sprintf("%s was recovered as the only server of this cluster at %s, from cluster %s", nameOf(p.By), p.At.Format(time.RFC3339), p.Cluster)
			}
		}
		return fmt.Sprintf("nobody led when %s was started at %s", n.cfg.Name, n.opened.UTC().Format(time.RFC3339))
	}
	if n.cfg.Bootstrap {
		return "the cluster began with it"
	}
	return ""
}
