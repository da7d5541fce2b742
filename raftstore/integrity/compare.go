package integrity

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/peer"
)

// compareEvery is how often the leader compares the states of all members, when there are revisions
// that it has not compared.
const compareEvery = 5 * time.Second

// state is the state of one server, at one revision.
type state struct {
	Revision uint64 `json:"revision"`
	Hash     uint64 `json:"hash"`
}

func (s state) String() string { return fmt.Sprintf("revision %d with hash %016x", s.Revision, s.Hash) }

// stateQuestion asks for the state at a revision. A server that has applied the log up to Index has
// the revision, or has another state.
type stateQuestion struct {
	Revision uint64 `json:"revision"`
	Index    uint64 `json:"index"`
}

type stateAnswer struct {
	ID          string `json:"id"`
	State       state  `json:"state"`
	Quarantined bool   `json:"quarantined,omitempty"`
}

// verdict is the message to a server that its state is wrong.
type verdict struct {
	Yours  state `json:"yours"`
	Right  state `json:"right"`
	Agree  int   `json:"agree"`  // voters that have it
	Voters int   `json:"voters"` // all there are
}

// comparison holds the members' answers about one revision. An answer stays true under every
// leader: all members have the same committed log.
type comparison struct {
	question stateQuestion
	own      state
	answers  map[string]stateAnswer // by the member's ID
}

// CompareWhileLeading finds the members whose state is not that of most voters. While no revision
// is new it only asks those that have not answered yet. It ends with ctx, the context of the
// term.
func (g *Guard) CompareWhileLeading(ctx context.Context) {
	defer g.doubt.Store(nil) // the next leader compares anew
	ticker := time.NewTicker(compareEvery)
	defer ticker.Stop()
	var c *comparison
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if view := g.server.State().Latest(); c == nil || c.question.Revision != view.Revision() {
			// The index is read after the revision, so it is not below the revision's entry.
			c = &comparison{
				question: stateQuestion{Revision: view.Revision(), Index: g.server.CommitIndex()},
				own:      state{Revision: view.Revision(), Hash: view.Hash()}, answers: make(map[string]stateAnswer),
			}
		}
		members := g.server.Members()
		if g.askStates(ctx, c, members) && ctx.Err() == nil {
			g.conclude(ctx, c, members)
		}
	}
}

// askStates asks the members that have not answered, all at once, and returns whether one of them
// has now.
func (g *Guard) askStates(ctx context.Context, c *comparison, members []group.Member) bool {
	var (
		asking sync.WaitGroup
		mu     sync.Mutex
	)
	before := len(c.answers)
	missing := slices.DeleteFunc(slices.Clone(members), func(m group.Member) bool {
		_, answered := c.answers[m.ID]
		return m.Self || answered
	})
	for _, m := range missing {
		asking.Go(func() {
			answer, err := g.askState(ctx, m, c.question)
			if err != nil {
				g.opts.Logger.Debug("a server does not say what state it has", "server", m.ID, "revision",
					c.question.Revision, "err", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			c.answers[m.ID] = answer
		})
	}
	asking.Wait()
	return len(c.answers) > before
}

func (g *Guard) askState(ctx context.Context, m group.Member, q stateQuestion) (stateAnswer, error) {
	var answer stateAnswer
	data, err := g.server.Tell(ctx, m, peer.CallState, q)
	if err == nil {
		err = json.Unmarshal(data, &answer)
	}
	if err == nil && answer.ID != m.ID {
		err = fmt.Errorf("server %q answers at the address %s", answer.ID, m.Address)
	}
	return answer, err
}

// HandleState answers with this server's state, once it has applied the log up to the index.
func (g *Guard) HandleState(ctx context.Context, payload []byte) (byte, []byte) {
	var q stateQuestion
	if err := json.Unmarshal(payload, &q); err != nil {
		return peer.AnswerRefused, []byte(err.Error())
	}
	ctx, cancel := context.WithTimeout(ctx, g.opts.CallTimeout)
	defer cancel()
	if err := g.server.AwaitApplied(ctx, q.Index); err != nil {
		return peer.AnswerUnavailable, fmt.Appendf(nil, "log entry %d is not applied yet", q.Index)
	}
	at := min(q.Revision, g.server.State().Revision())
	hash, err := g.server.State().HashAt(at)
	if err != nil { // a snapshot took its place, or it is long ago
		return peer.AnswerUnavailable, fmt.Appendf(nil, "the state at revision %d is not known any more: %v", at, err)
	}
	data, err := json.Marshal(stateAnswer{ID: g.opts.ServerID, State: state{at, hash}, Quarantined: g.Err() != nil})
	if err != nil {
		return peer.AnswerRefused, []byte(err.Error())
	}
	return peer.AnswerOK, data
}

// opinion is one member's answer.
type opinion struct {
	member group.Member
	state  state
}

// majority returns the state that more than half of all voters have, and how many do. Without a
// majority it returns 0.
func majority(opinions []opinion, voters int) (state, int) {
	counts := make(map[state]int)
	for _, o := range opinions {
		if o.member.Voter {
			counts[o.state]++
		}
	}
	for s, count := range counts {
		if count > voters/2 {
			return s, count
		}
	}
	return state{}, 0
}

// conclude acts on the members' answers.
func (g *Guard) conclude(ctx context.Context, c *comparison, members []group.Member) {
	opinions, voters := c.opinions(members)
	right, agree := majority(opinions, voters)
	if agree == 0 {
		g.noteDoubt(opinions)
		return
	}
	g.doubt.Store(nil)
	wrong := slices.DeleteFunc(slices.Clone(opinions), func(o opinion) bool { return o.state == right })
	if len(wrong) == 0 && len(opinions) == len(members) {
		g.compared.Store(right.Revision)
	}
	for _, o := range wrong {
		v := verdict{Yours: o.state, Right: right, Agree: agree, Voters: voters}
		switch {
		case o.member.Self:
			defer g.isolate(v.reason(g)) // the last deed of this term
		case !c.answers[o.member.ID].Quarantined:
			g.condemn(ctx, c, o.member, v)
		}
	}
}

func (c *comparison) opinions(members []group.Member) (opinions []opinion, voters int) {
	for _, m := range members {
		if m.Voter {
			voters++
		}
		if m.Self {
			opinions = append(opinions, opinion{m, c.own})
		} else if answer, ok := c.answers[m.ID]; ok {
			opinions = append(opinions, opinion{m, answer.State})
		}
	}
	return opinions, voters
}

// condemn sends another server the verdict that its state is wrong. A server that did not get it is
// asked again.
func (g *Guard) condemn(ctx context.Context, c *comparison, m group.Member, v verdict) {
	log := g.opts.Logger.With("server", m.ID, "its", v.Yours, "right", v.Right)
	if _, err := g.server.Tell(ctx, m, peer.CallIsolate, v); err != nil {
		delete(c.answers, m.ID)
		log.Error("the state of a server is wrong, and it could not be told so yet", "err", err)
		return
	}
	answer := c.answers[m.ID]
	answer.Quarantined = true
	c.answers[m.ID] = answer
	log.Error("the state of a server is wrong: it is in quarantine, and gets a right one by itself")
}

// HandleVerdict puts this server in quarantine, if the verdict is about the state that it has.
func (g *Guard) HandleVerdict(payload []byte) (byte, []byte) {
	var v verdict
	if err := json.Unmarshal(payload, &v); err != nil {
		return peer.AnswerRefused, []byte(err.Error())
	}
	if hash, err := g.server.State().HashAt(v.Yours.Revision); err != nil || hash != v.Yours.Hash ||
		v.Yours == v.Right {
		return peer.AnswerRefused, fmt.Appendf(nil, "this server does not have %v", v.Yours)
	}
	g.isolate(v.reason(g))
	return peer.AnswerOK, nil
}

func (v *verdict) reason(g *Guard) string {
	return fmt.Sprintf("the same log brought %d of %d voters to %v, and server %s to %v, so its state is wrong; "+
		"it gets a right one from the leader by itself; should it not, remove it from the cluster and %s (its store is in %q)",
		v.Agree, v.Voters, v.Right, g.opts.ServerID, v.Yours, g.opts.JoinAgain, g.opts.Dir)
}

// noteDoubt records that the members differ, if they do, and no majority shows which one is right.
func (g *Guard) noteDoubt(opinions []opinion) {
	if !slices.ContainsFunc(opinions, func(o opinion) bool { return o.state != opinions[0].state }) {
		return // too few answer
	}
	var said []string
	for _, o := range opinions {
		said = append(said, fmt.Sprintf("%s has %v", o.member.Name, o.state))
	}
	const differ = "the states of the servers differ, and no majority tells which one is wrong"
	const remedy = "bring back the servers that do not answer, and if all do, keep a copy of their data directories and restore the cluster from a backup"
	text := differ + ": " + strings.Join(said, ", ") + "; " + remedy
	if g.doubt.Load() == nil { // once in a term; status shows the newest
		g.opts.Logger.Error(differ+"; "+remedy, "states", said)
	}
	g.doubt.Store(&text)
}
