package election

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/peer"
)

// A follower stays connected with its leader. When the leader's process dies, the kernel breaks the
// connection and refuses new ones, long before the heartbeats have been missing for so long that
// Raft gives the leader up. So heartbeats may be missing for long, as they are on a machine that is
// short of CPU, and a death is acted on at once:
//
//	connected ──the connection breaks──▶ in doubt ──the address refuses, and a quorum finds the same──▶ lost
//	    ▲                                   │
//	    └────────a connection comes about───┘
//
// Of the servers that found the leader lost, the one with the longest log campaigns. The others
// would lose, or split the votes. They vote for it although they have heard of the leader just now:
// the request says, as after a transfer of leadership, that it knows of the leader.
//
// A mistake here cannot harm the data: in Raft any server may campaign at any time. It costs a
// change of leaders. A live leader is deposed only if its port is closed and its connections are
// broken to a quorum, itself not counted. That happens once: a server suspects only a leader with
// which it has been connected.

const (
	// doubtPause lies between two attempts to find out what became of a leader.
	doubtPause = 10 * time.Millisecond
	// doubtRounds is how many attempts a server has to campaign before it is the next one's turn.
	// Half a second is long for a server that has to write its vote to a busy disk first; two
	// candidates at once may split the votes, which costs more.
	doubtRounds = 50
	// doubtAsked is how many attempts a server lets pass after it was asked for its vote: it may be
	// about to give it.
	doubtAsked = 3
	// doubtSettled is the pause after many attempts without a result.
	doubtSettled = time.Second
	// doubtTimeout bounds one attempt to reach a server.
	doubtTimeout = 200 * time.Millisecond
)

// question asks a server whether it finds the leader lost.
type question struct {
	Leader raft.ServerID `json:"leader"` // empty when there is no leader
	Why    suspicion     `json:"why"`
}

// suspicion is why a leader may be lost.
type suspicion string

const (
	gone   suspicion = "gone"   // its connections break and its address refuses new ones
	silent suspicion = "silent" // nothing is heard of it
	// absent: there has been none for a while, see noleader.go. Servers of earlier versions know
	// the value on the wire.
	absent suspicion = "vacant"
)

// Answer says whether the leader is lost, and how far the log of the answering server goes.
type Answer struct {
	Lost bool `json:"lost"`
	// WouldCampaign is whether the server would campaign, and Candidate whether it does. Servers of
	// earlier versions know the name on the wire.
	WouldCampaign bool          `json:"stands"`
	Candidate     bool          `json:"candidate,omitempty"`
	ID            raft.ServerID `json:"id"`
	Index         uint64        `json:"index"`
	Term          uint64        `json:"term"`
}

// before orders servers by how far their logs go. No two are equal.
func (a Answer) before(b Answer) bool {
	return cmp.Or(cmp.Compare(a.Term, b.Term), cmp.Compare(a.Index, b.Index), cmp.Compare(a.ID, b.ID)) < 0
}

// Follow attends one leader after the other, until ctx ends. While this server leads, it
// looks for a successor when the disk hangs.
func (e *Elector) Follow(ctx context.Context) {
	changed := make(chan raft.Observation, 1) // holds one while the leader may be another than that attended
	observer := raft.NewObserver(changed, false, func(o *raft.Observation) bool {
		switch o.Data.(type) {
		case raft.LeaderObservation, raft.RaftState: // a candidate follows no leader
			return true
		}
		return false
	})
	e.raft.RegisterObserver(observer)
	defer e.raft.DeregisterObserver(observer)
	var attending sync.WaitGroup
	stop, attended := func() {}, raft.Server{}
	var before raft.ServerID
	for ctx.Err() == nil {
		addr, id := e.leader()
		e.logLeader(before, id, addr)
		before = id
		if e.followed.learn(id) {
			e.opts.Stats.Leaders.Inc()
		}
		// While no leader is known, the last one is still attended: a candidate with a shorter log
		// makes Raft forget the leader, and cannot win.
		if leader := (raft.Server{ID: id, Address: addr}); id != "" && leader != attended {
			stop()
			attending.Wait()
			attended = leader
			if id != e.opts.ID {
				leading, cancel := context.WithCancel(ctx)
				stop = cancel
				attending.Go(func() { e.attend(leading, string(addr), id) }) // both end with leading
				attending.Go(func() { e.listen(ctx, leading, string(addr), id) })
			}
		}
		select {
		case <-changed:
		case <-e.hung:
			e.nominate(ctx)
		case <-ctx.Done():
		}
	}
	stop()
	attending.Wait()
	e.after.Wait()
}

// logLeader logs which server this one follows from now on. Its own terms are logged elsewhere.
func (e *Elector) logLeader(before, now raft.ServerID, addr raft.ServerAddress) {
	self := e.opts.ID
	switch log := e.opts.Logger.With("term", e.raft.CurrentTerm()); {
	case before == now || now == self || now == "" && before == self:
	case now != "":
		e.history.leads(e.raft.CurrentTerm(), string(now), "")
		_, at := peer.SplitDestination(string(addr))
		log.Info("this server follows another one", "leader", now, "address", at)
	default:
		heard, why := "never", group.NameOf(string(before))+" was never heard of"
		if last := e.raft.LastContact(); !last.IsZero() {
			silent := time.Since(last)
			heard, why = silent.Round(time.Millisecond).String()+" ago", e.whyLost(group.NameOf(string(before)), silent)
		}
		e.history.lost(e.raft.CurrentTerm(), string(before), why)
		log.Info("this server has no leader any more", "leader", before, "heard", heard)
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

// attend stays connected with the leader, and finds out whether it is gone when the connection
// breaks. It ends with ctx, which ends when another leader is known.
func (e *Elector) attend(ctx context.Context, addr string, leader raft.ServerID) {
	connected := false
	for round, asked := 0, 0; ctx.Err() == nil; round++ {
		link, err := e.peers.At(addr).Connect(ctx)
		switch {
		case err == nil:
			connected, round, asked = true, 0, 0
			select {
			case <-link.Done():
			case <-ctx.Done():
			}
			continue
		case connected && errors.Is(err, syscall.ECONNREFUSED):
			if _, id := e.leader(); id == "" {
				asked++ // Raft forgets the leader when it is asked for a vote
			}
			e.campaignFor(ctx, leader, doubt{why: gone, turns: turns(round, doubtRounds), answered: asked >= doubtAsked})
		}
		pause := doubtPause
		if round > 4*doubtRounds { // it lives, as others hear, and refuses connections
			pause = doubtSettled
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// doubt is why a leader may be lost, and how long it has been in doubt.
type doubt struct {
	why suspicion
	// turns is how many turns to campaign have passed, the last one just now; 0 at any other
	// moment. answered is whether this server has had the time to vote for a candidate.
	turns    int
	answered bool
}

// due tells whether it is the turn of the server of a rank, of so many, to campaign: those before
// it have not.
func (d doubt) due(rank, of int) bool { return d.turns > 0 && d.turns%of == rank }

// turns returns how many turns there were when one has just ended, and else 0.
func turns(round, each int) int {
	if round%each != 0 {
		return 0
	}
	return round / each
}

// campaignFor makes this server campaign if a quorum finds that the leader is lost, and if no other
// server should or does.
func (e *Elector) campaignFor(ctx context.Context, leader raft.ServerID, d doubt) {
	own := e.Candidacy()
	if !own.WouldCampaign || e.raft.State() != raft.Follower {
		return
	}
	term := e.raft.CurrentTerm()
	p := own.among(e.askForLost(ctx, question{Leader: leader, Why: d.why}), d.why != absent)
	if p.agree < e.voters()/2+1 || ctx.Err() != nil || e.raft.State() != raft.Follower {
		return
	}
	_, id := e.leader()
	if id != "" && id != leader {
		return
	}
	switch {
	case d.due(p.rank, p.of) && (id != "" || d.why == absent):
		// The best server did not campaign, so this one does. Servers take turns: two at once may
		// split the votes. Once Raft has forgotten the leader a server campaigns, or has
		// campaigned; noleader.go finds out when that brought no leader.
	case p.rank > 0:
		return
	case id == "" && d.why != absent && (!d.answered || e.hasVoted()):
		return // for a server that may lead by now, which this one would depose
	}
	still := func() error {
		if d.why == silent && !e.detector.misses(leader) {
			return fmt.Errorf("%s was heard while the others were asked", leader)
		}
		return e.unmoved(id, term)
	}
	if still() != nil || id == "" && e.server.Writing() {
		return // this server's vote was asked for meanwhile, or is being written
	}
	why := fmt.Sprintf("%s, as %d of %d servers found", d.why.explain(group.NameOf(string(leader))), p.agree, e.voters())
	e.history.campaigns(term+1, why, d.why == absent)
	if err := e.Campaign(ctx, still); err != nil {
		if e.raft.CurrentTerm() == term { // else another server campaigns, for the same reason
			e.history.campaigns(term, "", false)
		}
		e.opts.Logger.Debug("this server does not campaign after all", "err", err)
	}
}

// explain tells people why a server campaigns.
func (s suspicion) explain(leader string) string {
	switch s {
	case gone:
		return leader + " is gone: its connections broke and its address refuses new ones"
	case silent:
		return leader + " is gone: nothing was heard of it, nor did it answer"
	default:
		return "an election brought no leader"
	}
}

// place is a server's position among those that could campaign.
type place struct {
	agree int // servers that find the leader lost
	rank  int // servers with longer logs
	of    int // servers that could campaign
}

// among returns the server's place. Servers that have not lost the leader yet count as well: they
// are about to, and would be rivals then. Candidates count if they are waited for.
func (a Answer) among(others []Answer, candidates bool) place {
	p := place{agree: 1, of: 1}
	for _, o := range others {
		if o.Lost {
			p.agree++
		}
		if !o.WouldCampaign || o.Candidate && !candidates {
			continue
		}
		if p.of++; a.before(o) {
			p.rank++
		}
	}
	return p
}

// hasVoted returns whether this server has given its vote in the term of the moment, as far as is
// known.
func (e *Elector) hasVoted() bool {
	term, err := e.server.VotedIn()
	return err != nil || term == e.raft.CurrentTerm()
}

// Candidacy is this server's answer about itself. It is Lost to begin with.
func (e *Elector) Candidacy() Answer {
	a := Answer{Lost: true, ID: e.opts.ID, Index: e.raft.LastIndex(), Candidate: e.raft.State() == raft.Candidate}
	a.Term = e.server.TermAt(a.Index)
	self, ok := e.member(string(e.opts.ID))
	a.WouldCampaign = ok && self.Voter && e.server.MayLead()
	return a
}

// askForLost returns the answers of the voters that answer in time, but for the leader.
func (e *Elector) askForLost(ctx context.Context, q question) []Answer {
	question, err := json.Marshal(q)
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, doubtTimeout)
	defer cancel()
	var mu sync.Mutex
	var answers []Answer
	var asking sync.WaitGroup
	for _, m := range e.server.Members() {
		if m.Self || !m.Voter || raft.ServerID(m.ID) == q.Leader {
			continue
		}
		asking.Go(func() {
			f, err := e.peers.To(m).Call(ctx, peer.CallLost, question)
			var answer Answer
			if err != nil || f.Kind != peer.AnswerOK || json.Unmarshal(f.Payload, &answer) != nil || string(answer.ID) != m.ID {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			answers = append(answers, answer)
		})
	}
	asking.Wait()
	return answers
}

// HandleLost answers whether the leader is lost as this server sees it.
func (e *Elector) HandleLost(ctx context.Context, payload []byte) (byte, []byte) {
	var q question
	if err := json.Unmarshal(payload, &q); err != nil {
		return peer.AnswerRefused, fmt.Appendf(nil, "question for the leader: %v", err)
	}
	a := e.Candidacy()
	a.Lost = e.findsLost(ctx, q)
	data, err := json.Marshal(a)
	if err != nil {
		return peer.Refuse(err)
	}
	return peer.AnswerOK, data
}

// findsLost tells whether this server suspects the same: it hears nothing of the leader; or the
// leader's address refuses connections; or it has known no leader for a while. A server that leads,
// or knows of another leader, has lost none.
func (e *Elector) findsLost(ctx context.Context, q question) bool {
	if _, id := e.leader(); id != "" && id != q.Leader {
		return false
	}
	switch q.Why {
	case silent:
		return e.detector.misses(q.Leader)
	case absent:
		return e.noLeader.lasts()
	case gone:
	default:
		return false
	}
	m, ok := e.member(string(q.Leader))
	if !ok {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, doubtTimeout)
	defer cancel()
	_, err := e.peers.To(m).Connect(ctx) // one that is open, or else a new one
	return errors.Is(err, syscall.ECONNREFUSED)
}

// Campaign makes Raft begin an election if it is still wanted then.
func (e *Elector) Campaign(ctx context.Context, still func() error) error {
	ctx, cancel := context.WithTimeout(ctx, e.opts.Timeouts.Call)
	defer cancel()
	return e.server.Campaign(ctx, still)
}

// unmoved is nil while this server is a follower in a term, of that leader or, if it is empty, of
// none.
func (e *Elector) unmoved(leader raft.ServerID, term uint64) error {
	now, state := e.raft.CurrentTerm(), e.raft.State()
	if _, id := e.leader(); state != raft.Follower || now != term || id != leader {
		return fmt.Errorf("this server is a %v in term %d whose leader is %q; it was a follower in term %d whose leader was %q", state, now, id, term, leader)
	}
	return nil
}
