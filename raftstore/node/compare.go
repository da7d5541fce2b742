package node

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/barque/barque/raftstore/rpc"
)

// compareEvery is how often the leader compares the states of all members, when there are revisions
// that it has not compared.
const compareEvery = 5 * time.Second

// state is what one server has made of the log, at one revision.
type state struct {
	Revision uint64 `json:"revision"`
	Hash     uint64 `json:"hash"`
}

func (s state) String() string { return fmt.Sprintf("revision %d with hash %016x", s.Revision, s.Hash) }

// stateQuestion asks for the state at a revision. Whoever has applied the log up to Index has the
// revision, or has made something else of the log.
type stateQuestion struct {
	Revision uint64 `json:"revision"`
	Index    uint64 `json:"index"`
}

type stateAnswer struct {
	ID          string `json:"id"`
	State       state  `json:"state"`
	Quarantined bool   `json:"quarantined,omitempty"`
}

// verdict tells a server that its state is wrong.
type verdict struct {
	Yours  state `json:"yours"`
	Right  state `json:"right"`
	Agree  int   `json:"agree"`  // voters that have it
	Voters int   `json:"voters"` // all there are
}

// compared is what a leader has found.
type compared struct {
	revision atomic.Uint64 // the newest at which all members agreed
	doubt    atomic.Pointer[string]
}

func (c *compared) undecided() string {
	if doubt := c.doubt.Load(); doubt != nil {
		return *doubt
	}
	return ""
}

// comparison holds what the members say of one revision. An answer stays true for ever, whoever
// leads: all members have the same committed log.
type comparison struct {
	question stateQuestion
	own      state
	answers  map[string]stateAnswer // by the member's ID
}

// compareWhileLeading finds the members whose state is not that of most voters. While no revision
// is new it only asks those that have not answered yet. It ends with the tenure.
func (n *Node) compareWhileLeading(ctx context.Context) {
	defer n.compared.doubt.Store(nil) // the next leader compares anew
	ticker := time.NewTicker(compareEvery)
	defer ticker.Stop()
	var c *comparison
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if view := n.state.Latest(); c == nil || c.question.Revision != view.Revision() {
			// The index is read after the revision, so it is not below the revision's entry.
			c = &comparison{
				question: stateQuestion{Revision: view.Revision(), Index: n.raft.CommitIndex()},
				own:      state{Revision: view.Revision(), Hash: view.Hash()}, answers: make(map[string]stateAnswer),
			}
		}
		members := n.Members()
		if n.askStates(ctx, c, members) && ctx.Err() == nil {
			n.conclude(ctx, c, members)
		}
	}
}

// askStates asks the members that have not answered, all at once, and returns whether one of them
// has now.
func (n *Node) askStates(ctx context.Context, c *comparison, members []Member) bool {
	var (
		asking sync.WaitGroup
		mu     sync.Mutex
	)
	before := len(c.answers)
	missing := slices.DeleteFunc(slices.Clone(members), func(m Member) bool {
		_, answered := c.answers[m.ID]
		return m.Self || answered
	})
	for _, m := range missing {
		asking.Go(func() {
			answer, err := n.askState(ctx, m, c.question)
			if err != nil {
				n.cfg.Logger.Debug("a server does not say what state it has", "server", m.ID, "revision", c.question.Revision, "err", err)
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

func (n *Node) askState(ctx context.Context, m Member, q stateQuestion) (stateAnswer, error) {
	var answer stateAnswer
	data, err := n.tell(ctx, m, callState, q)
	if err == nil {
		err = json.Unmarshal(data, &answer)
	}
	if err == nil && answer.ID != m.ID {
		err = fmt.Errorf("server %q answers at the address %s", answer.ID, m.Address)
	}
	return answer, err
}

// tell sends something in JSON to a member and returns the answer.
func (n *Node) tell(ctx context.Context, m Member, kind byte, what any) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.Timeouts.Call)
	defer cancel()
	return n.tellTo(ctx, n.peers.to(n.dial(m)), kind, what)
}

func (n *Node) tellTo(ctx context.Context, c *rpc.Client, kind byte, what any) ([]byte, error) {
	payload, err := json.Marshal(what)
	if err != nil {
		return nil, err
	}
	f, err := c.Call(ctx, kind, payload)
	if err != nil {
		return nil, err
	}
	if f.Kind != answerOK {
		return nil, answerError(f)
	}
	return f.Payload, nil
}

// handleState says what state this server has, once it has applied as much of the log as is asked
// for.
func (n *Node) handleState(ctx context.Context, payload []byte) (byte, []byte) {
	var q stateQuestion
	if err := json.Unmarshal(payload, &q); err != nil {
		return answerRefused, []byte(err.Error())
	}
	ctx, cancel := context.WithTimeout(ctx, n.cfg.Timeouts.Call)
	defer cancel()
	if err := n.fsm.Waiter().Wait(ctx, q.Index); err != nil {
		return answerUnavailable, fmt.Appendf(nil, "log entry %d is not applied yet", q.Index)
	}
	at := min(q.Revision, n.state.Revision())
	hash, err := n.state.HashAt(at)
	if err != nil { // a snapshot took its place, or it is long ago
		return answerUnavailable, fmt.Appendf(nil, "the state at revision %d is not known any more: %v", at, err)
	}
	data, err := json.Marshal(stateAnswer{ID: n.id.ServerID, State: state{at, hash}, Quarantined: n.quarantine.err() != nil})
	if err != nil {
		return answerRefused, []byte(err.Error())
	}
	return answerOK, data
}

// opinion is what one member says.
type opinion struct {
	member Member
	state  state
}

// majority returns what more than half of all voters say, and how many do. Without that it returns
// 0.
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

// conclude draws the consequences of what the members say.
func (n *Node) conclude(ctx context.Context, c *comparison, members []Member) {
	opinions, voters := c.opinions(members)
	right, agree := majority(opinions, voters)
	if agree == 0 {
		n.doubt(opinions)
		return
	}
	n.compared.doubt.Store(nil)
	wrong := slices.DeleteFunc(slices.Clone(opinions), func(o opinion) bool { return o.state == right })
	if len(wrong) == 0 && len(opinions) == len(members) {
		n.compared.revision.Store(right.Revision)
	}
	for _, o := range wrong {
		v := verdict{Yours: o.state, Right: right, Agree: agree, Voters: voters}
		switch {
		case o.member.Self:
			defer n.isolate(v.reason(n)) // the last deed of this tenure
		case !c.answers[o.member.ID].Quarantined:
			n.condemn(ctx, c, o.member, v)
		}
	}
}

func (c *comparison) opinions(members []Member) (opinions []opinion, voters int) {
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

// condemn tells another server that its state is wrong. When it does not take it, it is asked
// again.
func (n *Node) condemn(ctx context.Context, c *comparison, m Member, v verdict) {
	log := n.cfg.Logger.With("server", m.ID, "its", v.Yours, "right", v.Right)
	if _, err := n.tell(ctx, m, callIsolate, v); err != nil {
		delete(c.answers, m.ID)
		log.Error("the state of a server is wrong, and it could not be told so yet", "err", err)
		return
	}
	answer := c.answers[m.ID]
	answer.Quarantined = true
	c.answers[m.ID] = answer
	log.Error("the state of a server is wrong: it is in quarantine, and gets a right one by itself")
}

// handleVerdict puts this server in quarantine, if the verdict is about the state that it has.
func (n *Node) handleVerdict(payload []byte) (byte, []byte) {
	var v verdict
	if err := json.Unmarshal(payload, &v); err != nil {
		return answerRefused, []byte(err.Error())
	}
	if hash, err := n.state.HashAt(v.Yours.Revision); err != nil || hash != v.Yours.Hash || v.Yours == v.Right {
		return answerRefused, fmt.Appendf(nil, "this server does not have %v", v.Yours)
	}
	n.isolate(v.reason(n))
	return answerOK, nil
}

func (v *verdict) reason(n *Node) string {
	return fmt.Sprintf("the same log brought %d of %d voters to %v, and server %s to %v, so its state is wrong; "+
		"it gets a right one from the leader by itself; should it not, remove it from the cluster and %s (its store is in %q)",
		v.Agree, v.Voters, v.Right, n.id.ServerID, v.Yours, n.cfg.JoinAgain, n.cfg.Dir)
}

// doubt notes that the members differ, if they do, and nobody can tell who is right.
func (n *Node) doubt(opinions []opinion) {
	if !slices.ContainsFunc(opinions, func(o opinion) bool { return o.state != opinions[0].state }) {
		return // too few answer
	}
	var said []string
	for _, o := range opinions {
		said = append(said, fmt.Sprintf("%s has %v", o.member.Name, o.state))
	}
	text := "the states of the servers differ, and no majority tells which one is wrong: " + strings.Join(said, ", ") +
		"; bring back the servers that do not answer, and if all do, keep a copy of their data directories and restore the cluster from a backup"
	if n.compared.undecided() == "" { // once in a tenure; status shows the newest
		n.cfg.Logger.Error(text)
	}
	n.compared.doubt.Store(&text)
}
