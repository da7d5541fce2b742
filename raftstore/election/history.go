package election

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
	// reason is why this server campaigns in the term reasonFor, where it knows more than
	// that the leader is missing. Nothing may come of that election.
	reason    string
	reasonFor uint64
	// sign is the last sign of the leader that is lost, or the zero value.
	sign time.Time
}

// lastSign records the last sign of the leader that is about to be recorded as lost, or as
// replaced. The earliest one since a leader was known counts: votes and candidates are signs, too,
// and no leader.
func (h *leaderHistory) lastSign(at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.sign.IsZero() {
		h.sign = at
	}
}

// campaigns records why this server is about to campaign in a term, and returns the record. When an
// election brought no leader and this server campaigns again, the reason why the last leader went
// stays the first part.
func (h *leaderHistory) campaigns(term uint64, why string, again bool) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := len(h.changes); again && n > 0 && h.changes[n-1].Leader == "" && h.changes[n-1].Why != "" {
		why = h.changes[n-1].Why + "; then " + why
	}
	h.reason, h.reasonFor = why, term
	return why
}

// whyCampaigns returns the recorded reason for an election in that term; empty when there is none.
func (h *leaderHistory) whyCampaigns(term uint64) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.reasonFor != term {
		return ""
	}
	return h.reason
}

// lost records that the leader leads no more. A reason of this server to campaign replaces why.
func (h *leaderHistory) lost(term uint64, before, why string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.reason != "" && term <= h.reasonFor {
		why = h.reason
	}
	h.add(status.LeaderChange{Term: term, Before: before, Why: why})
}

// leads records that a server leads. Its reason is that for which the one before it went; why is
// the reason where no loss was seen before, or no leader at all.
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
	if !h.sign.IsZero() && change.Before != "" {
		change.Gap = max(0, time.Since(h.sign))
	}
	h.sign = time.Time{}
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

// observeElections logs and counts, from now on, each time that Raft makes this server a candidate.
// A candidate that was not elected campaigns again by itself; Raft logs that.
func (e *Elector) observeElections() {
	e.raft.RegisterObserver(raft.NewObserver(nil, false, func(o *raft.Observation) bool {
		if state, ok := o.Data.(raft.RaftState); ok && state == raft.Candidate {
			e.opts.Stats.Elections.Inc()
			term := e.raft.CurrentTerm() + 1
			e.opts.Logger.Info("this server campaigns", "term", term, "reason", e.whyCampaigns(term))
		}
		return false // it was noted above, before Raft goes on
	}))
}

// whyCampaigns is why this server campaigns in a term: a quorum has lost the leader or waits
// for one, the leader hands over, or Raft has heard nothing for its time-out.
func (e *Elector) whyCampaigns(term uint64) string {
	if why := e.history.whyCampaigns(term); why != "" {
		return why
	}
	last := e.raft.LastContact()
	switch silent := time.Since(last); {
	case last.IsZero():
		return "it has heard of no leader since it was started"
	case silent < e.opts.Timeouts.Heartbeat: // then Raft would not campaign by itself
		from := "the leader"
		if changes := e.history.newest(); len(changes) > 0 {
			from = group.NameOf(cmp.Or(changes[0].Leader, changes[0].Before))
		}
		return e.history.campaigns(term, fmt.Sprintf("%s handed over to %s", from, e.opts.Name), false)
	default:
		return fmt.Sprintf("it has heard of no leader, and voted for none, for %s", silent.Round(time.Millisecond))
	}
}

// whyElected is why this server leads in place of another one, if that one was not missed before;
// or why it leads at all, when it has known of no leader before.
func (e *Elector) whyElected() string {
	changes := e.history.newest()
	if len(changes) == 0 {
		return e.server.WhyFirst()
	}
	if last := e.raft.LastContact(); !last.IsZero() {
		return e.whyLost(group.NameOf(changes[0].Leader), time.Since(last))
	}
	return ""
}

// whyLost is why this server has lost the leader.
func (e *Elector) whyLost(leader string, silent time.Duration) string {
	if silent < e.opts.Timeouts.Heartbeat {
		return fmt.Sprintf("another server campaigned, though %s was heard of until then", leader)
	}
	return fmt.Sprintf("nothing was heard of %s for %s", leader, silent.Round(time.Millisecond))
}
