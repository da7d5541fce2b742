package election

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/peer"
)

// Of the servers that could campaign, the one with the longest log does. The others would lose, or
// split the votes. They vote for it although they have heard of the leader just now: the request
// says, as after a transfer of leadership, that it knows of the leader. If that server does not
// campaign, or is not elected, the next question decides, or Raft's own time-outs do.

// askTimeout bounds one attempt to reach a server. It is extended, up to the second time.
const (
	askTimeout  = 200 * time.Millisecond
	askExtended = time.Second
)

// question asks a server whether it finds the leader lost.
type question struct {
	Leader raft.ServerID `json:"leader"` // empty when there is no leader
	Why    suspicion     `json:"why"`
}

// explain returns the reason for people why a server campaigns.
func (q question) explain() string {
	leader := group.NameOf(string(q.Leader))
	switch q.Why {
	case gone:
		return leader + " is gone: its connections broke and its address refuses new ones"
	case silent:
		return leader + " is gone: nothing was heard of it, nor did it answer"
	default:
		return "an election brought no leader"
	}
}

// Answer reports whether the leader is lost, and how far the log of the answering server goes.
type Answer struct {
	Lost bool `json:"lost"`
	// WouldCampaign is whether the server would campaign, and Candidate whether it does. Servers of
	// earlier versions know the name on the wire.
	WouldCampaign bool `json:"stands"`
	Candidate     bool `json:"candidate,omitempty"`
	// Campaign is the newest term in which the server campaigns, or knows of an election. Servers
	// of earlier versions do not say it.
	Campaign uint64        `json:"campaign,omitempty"`
	ID       raft.ServerID `json:"id"`
	Index    uint64        `json:"index"`
	Term     uint64        `json:"term"`
}

// before orders servers by how far their logs go. No two are equal.
func (a Answer) before(b Answer) bool {
	return cmp.Or(cmp.Compare(a.Term, b.Term), cmp.Compare(a.Index, b.Index), cmp.Compare(a.ID, b.ID)) < 0
}

// inVain is whether a server campaigns without effect, as one sees that is asked in a term. Other
// candidates are waited for. There are two kinds:
//
//   - The election of this term has brought no leader.
//   - Raft's time-out has ended at that server while others followed the lost leader still. They
//     have refused its pre-vote, and it waits for the time-out once more, without a new term. A
//     server that campaigns for a question has the next term at once.
//
// Servers of earlier versions, which do not say their term, are waited for in the second case.
func (a Answer) inVain(q question, term uint64) bool {
	return a.Candidate && a.Campaign <= term && (q.Why == absent || a.Campaign != 0)
}

// campaignFor makes this server campaign if a quorum answers the question with yes, as this server
// does, and no other one should or does.
func (e *Elector) campaignFor(ctx context.Context, q question) {
	own, term, agree := e.Candidacy(), e.raft.CurrentTerm(), 1
	still := func() error {
		if !e.finds(q) {
			return fmt.Errorf("this server no longer finds that %s", q.explain())
		}
		return e.unmoved(q.Leader, term)
	}
	if !own.WouldCampaign || still() != nil {
		return
	}
	for _, other := range e.ask(ctx, q) {
		// Servers that have not lost the leader yet count as well: they are about to, and would be
		// rivals then.
		if other.WouldCampaign && own.before(other) && !other.inVain(q, term) {
			return
		}
		if other.Lost {
			agree++
		}
	}
	if agree < e.voters()/2+1 || ctx.Err() != nil || still() != nil {
		return
	}
	why := fmt.Sprintf("%s, as %d of %d servers found", q.explain(), agree, e.voters())
	e.history.campaigns(term+1, why, q.Why == absent)
	e.campaign.Store(term + 1) // Raft has the term once it is on disk
	if err := e.Campaign(ctx, still); err != nil {
		e.campaign.Store(0)
		if e.raft.CurrentTerm() == term { // else another server campaigns, for the same reason
			e.history.campaigns(term, "", false)
		}
		e.opts.Logger.Debug("this server does not campaign after all", "err", err)
	}
}

// Campaign makes Raft begin an election if it is still wanted then.
func (e *Elector) Campaign(ctx context.Context, still func() error) error {
	ctx, cancel := context.WithTimeout(ctx, e.opts.Timeouts.Call)
	defer cancel()
	return e.server.Campaign(ctx, still)
}

// Candidacy is this server's answer about itself. It is Lost to begin with.
func (e *Elector) Candidacy() Answer {
	a := Answer{Lost: true, ID: e.opts.ID, Index: e.raft.LastIndex(), Candidate: e.raft.State() == raft.Candidate,
		Campaign: max(e.raft.CurrentTerm(), e.campaign.Load())}
	a.Term = e.server.TermAt(a.Index)
	self, ok := e.member(string(e.opts.ID))
	a.WouldCampaign = ok && self.Voter && e.server.MayLead()
	return a
}

// ask returns the answers of the voters that answer in time, but for the leader.
func (e *Elector) ask(ctx context.Context, q question) []Answer {
	ctx, cancel := context.WithTimeout(ctx, min(askTimeout+e.server.Extension(string(q.Leader)), askExtended))
	defer cancel()
	var mu sync.Mutex
	var answers []Answer
	var asking sync.WaitGroup
	for _, m := range e.server.Members() {
		if m.Self || !m.Voter || raft.ServerID(m.ID) == q.Leader {
			continue
		}
		asking.Go(func() {
			var a Answer
			answer, err := e.peers.Tell(ctx, m, peer.CallLost, q)
			if err != nil || json.Unmarshal(answer, &a) != nil || string(a.ID) != m.ID {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			answers = append(answers, a)
		})
	}
	asking.Wait()
	return answers
}

// HandleLost answers a question of another server.
func (e *Elector) HandleLost(payload []byte) (byte, []byte) {
	var q question
	if err := json.Unmarshal(payload, &q); err != nil {
		return peer.AnswerRefused, fmt.Appendf(nil, "question for the leader: %v", err)
	}
	a := e.Candidacy()
	_, leader := e.leader()
	a.Lost = (leader == "" || leader == q.Leader) && e.finds(q)
	data, err := json.Marshal(a)
	if err != nil {
		return peer.Refuse(err)
	}
	return peer.AnswerOK, data
}
