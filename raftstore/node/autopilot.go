package node

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/autopilot"
	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/peer"
	"github.com/barque/barque/raftstore/status"
)

const (
	// lookEvery is how often the leader looks after the members while there is something to do,
	// and idleEvery while there is not, or others have to do something first.
	lookEvery = 200 * time.Millisecond
	idleEvery = time.Second
	// failingMost bounds the pause after a step that failed, which is twice as long each time.
	failingMost = 5 * time.Second
	// tellEvery is how often the log says the same of a member: a failure may repeat at each look.
	tellEvery = time.Minute
	// dropAfter is for how long a server that has no vote yet may be silent. It may be restarting,
	// or its machine.
	dropAfter = 10 * time.Minute
	// caughtUp is how many entries a server may lag behind and count as caught up.
	caughtUp = 64
)

// observer is what the leader remembers of the members from one look to the next. It lasts for a
// tenure: a new leader has seen nobody be stable, or silent, before.
type observer struct {
	node     *Node
	term     uint64               // of the tenure
	last     time.Time            // of the looks
	answered map[string]time.Time // by ID: when it did last
	stable   map[string]time.Time // since when
	blocked  map[string]time.Time // since when its departure or demotion is
	told     map[string]time.Time // by what and of whom: when the log said so
	failing  time.Duration        // the pause after the next step that fails; 0 after one that did not
	settling <-chan error         // not nil: an entry was begun that is to settle a configuration
}

// manageWhileLeading carries out what the autopilot decides, and closes the links to servers that
// are members no more. It ends with the tenure.
func (n *Node) manageWhileLeading(ctx context.Context, term uint64) {
	o := newObserver(n, term)
	defer n.health.Store(nil)
	wait := time.NewTimer(0)
	defer wait.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.nudged:
		case <-wait.C:
		}
		n.peers.Keep()
		wait.Reset(o.look(ctx))
	}
}

func newObserver(n *Node, term uint64) *observer {
	return &observer{
		node: n, term: term, answered: make(map[string]time.Time), stable: make(map[string]time.Time),
		blocked: make(map[string]time.Time), told: make(map[string]time.Time),
	}
}

// look observes the members once and takes a step if one is due. It returns how long the next look
// has time.
func (o *observer) look(ctx context.Context) (pause time.Duration) {
	n := o.node
	servers := o.observe(ctx)
	if ctx.Err() != nil {
		return 0
	}
	pause = idleEvery
	policy := n.policy()
	step, due, blocked := autopilot.Decide(servers, policy)
	for due && o.reached(ctx, servers, step) {
		step, due, blocked = autopilot.Decide(servers, policy)
	}
	o.noteBlocked(blocked, due)
	health := make([]group.Health, len(servers))
	for i, s := range servers {
		health[i] = autopilot.HealthOf(s, policy, blocked[s.ID])
		if blocked[s.ID] != "" {
			health[i].Blocked = max(time.Since(o.blocked[s.ID]), 1)
		}
		health[i].Lag, health[i].LagFor = s.Lag, n.lagFor(s)
		if blocked[s.ID] == "" && inMotion(s) {
			pause = lookEvery
		}
	}
	n.health.Store(&health)
	defer o.settle() // also where a step fails again and again
	if due {
		if err := o.take(ctx, step); err != nil {
			if ctx.Err() == nil && o.mayTell("failed "+string(step.Kind), step.Server.ID) {
				n.cfg.Logger.Warn("a change of the members failed; it is tried again", "step", step.Kind, "server", step.Server.ID, "err", err)
			}
			o.failing = min(max(2*o.failing, lookEvery), failingMost)
			return o.failing // what this server takes for the configuration may never be committed
		}
	}
	o.failing = 0
	o.bury(ctx)
	return pause
}

// inMotion tells whether a member is on its way to a vote, or out, and nobody else has to do
// something first.
func inMotion(s autopilot.Server) bool {
	return s.State == group.Leaving || s.State == group.Regular && !s.Voter && s.Answers || s.State == group.Standby && s.Voter
}

// mayTell tells whether the log may say something of a member: it has not for a while.
func (o *observer) mayTell(what, id string) bool {
	key := what + " " + id
	if at, ok := o.told[key]; ok && time.Since(at) < tellEvery {
		return false
	}
	o.told[key] = time.Now()
	return true
}

// lagFor is how long ago the first entry came into this server's log that the member has not
// applied; 0 when that is not known, as when the member does not answer.
func (n *Node) lagFor(s autopilot.Server) time.Duration {
	var first raft.Log
	if !s.Answers || s.Lag == 0 || n.storage.Log.GetLog(s.Applied+1, &first) != nil || first.AppendedAt.IsZero() {
		return 0
	}
	return max(0, time.Since(first.AppendedAt))
}

func (n *Node) policy() autopilot.Policy {
	return autopilot.Policy{
		PromoteAfter: n.cfg.Timeouts.PromoteAfter, MaxLag: caughtUp, CleanAfter: n.cfg.CleanAfter, MinVoters: n.cfg.MinVoters,
		DropAfter: dropAfter,
	}
}

// observe asks all members how they do, for a short time only: one that is dead must not hold up
// the others.
func (o *observer) observe(ctx context.Context) []autopilot.Server {
	n, now := o.node, time.Now()
	limit := o.patience()
	asking, cancel := context.WithTimeout(ctx, limit)
	servers := n.survey(asking)
	cancel()
	asking, cancel = context.WithTimeout(ctx, limit) // whoever is silent has used up the first one
	o.apart(asking, servers)
	cancel()
	o.resume(now, lookGap+4*limit)
	known := make(map[string]bool)
	for i := range servers {
		s := &servers[i]
		known[s.ID] = true
		if _, ok := o.answered[s.ID]; !ok || s.Answers {
			o.answered[s.ID] = now
		}
		s.Silent = now.Sub(o.answered[s.ID])
		if autopilot.Fit(*s, n.policy()) != "" {
			delete(o.stable, s.ID)
			continue
		}
		if _, ok := o.stable[s.ID]; !ok {
			o.stable[s.ID] = now
		}
		s.Stable = now.Sub(o.stable[s.ID])
	}
	for _, seen := range []map[string]time.Time{o.answered, o.stable, o.blocked} {
		maps.DeleteFunc(seen, func(id string, _ time.Time) bool { return !known[id] })
	}
	maps.DeleteFunc(o.told, func(_ string, at time.Time) bool { return now.Sub(at) >= tellEvery })
	return servers
}

// patience is how long members are asked for something.
func (o *observer) patience() time.Duration {
	return max(2*o.node.cfg.Timeouts.Heartbeat, 500*time.Millisecond)
}

// reached finds out, before a step that takes out a server for its silence, whether a voter reaches
// it, and notes which.
func (o *observer) reached(ctx context.Context, servers []autopilot.Server, step autopilot.Step) bool {
	if step.Kind != autopilot.Drop && step.Kind != autopilot.Expire {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, o.patience())
	defer cancel()
	names := make(chan string, len(servers))
	var asking sync.WaitGroup
	for _, v := range servers {
		if !v.Voter || !v.Answers || v.Leader {
			continue
		}
		asking.Go(func() {
			if o.node.reaches(ctx, v.ID, step.Server.ID) == nil {
				names <- v.Name
				cancel() // one is enough
			}
		})
	}
	asking.Wait()
	select {
	case name := <-names:
		i := slices.IndexFunc(servers, func(s autopilot.Server) bool { return s.ID == step.Server.ID })
		servers[i].Reached = name
		return true
	default:
		return false
	}
}

// lookGap is longer than a look takes beside what it asks of others, unless this process was
// stopped in it.
const lookGap = 10 * time.Second

// resume begins a look. After a gap nothing is known of the time in it: nobody was asked, so nobody
// was silent, nor well. Without that, a machine that was frozen would take servers for dead as soon
// as it wakes up.
func (o *observer) resume(now time.Time, gap time.Duration) {
	if !o.last.IsZero() && now.Sub(o.last) > gap {
		clear(o.answered)
		clear(o.stable)
		clear(o.blocked)
	}
	o.last = now
}

// survey returns the members, and what they say of themselves.
func (n *Node) survey(ctx context.Context) []autopilot.Server {
	last, roster := n.raft.LastIndex(), n.roster()
	peers := n.PeerStatus(ctx)
	servers := make([]autopilot.Server, len(peers))
	for i, p := range peers {
		decided := roster[p.Member.ID]
		s := autopilot.Server{
			ID: p.Member.ID, Name: p.Member.Name, Voter: p.Member.Voter, Leader: p.Member.Self,
			State: decided.Effective(), Decided: decided.At(), Answers: p.Status != nil,
		}
		if p.Status != nil {
			s.Ill = illness(p.Status)
			s.Applied, s.Lag = p.Status.AppliedIndex, last-min(last, p.Status.AppliedIndex)
		}
		servers[i] = s
	}
	return servers
}

func illness(s *status.Status) string {
	switch {
	case s.Quarantined != "":
		return "it is in quarantine: " + s.Quarantined
	case s.DiskFull:
		return "its disk is full"
	case s.DiskError != "":
		return "it cannot write its log: " + s.DiskError
	}
	return ""
}

// apart finds out, for those that are to get a vote, whether all voters that answer and they reach
// each other.
func (o *observer) apart(ctx context.Context, servers []autopilot.Server) {
	n := o.node
	var ways []func() // begun when all are known: they write to what is read here
	var mu sync.Mutex
	for i := range servers {
		s := &servers[i]
		if s.Voter || s.State != group.Regular || autopilot.Fit(*s, n.policy()) != "" {
			continue
		}
		for _, v := range servers {
			if !v.Voter || !v.Answers {
				continue
			}
			for _, way := range [][2]autopilot.Server{{*s, v}, {v, *s}} {
				ways = append(ways, func() {
					from, to := way[0], way[1]
					if err := n.reaches(ctx, from.ID, to.ID); err != nil {
						mu.Lock()
						defer mu.Unlock()
						s.Apart = append(s.Apart, fmt.Sprintf("%s does not reach %s: %v", from.Name, to.Name, err))
					}
				})
			}
		}
	}
	var asking sync.WaitGroup
	for _, ask := range ways {
		asking.Go(ask)
	}
	asking.Wait()
}

// reach is the question whether a server reaches a member.
type reach struct {
	ID string `json:"id"`
}

// reaches asks one member whether it can talk to another one.
func (n *Node) reaches(ctx context.Context, from, to string) error {
	if from == n.id.ServerID {
		return n.peers.Ping(ctx, to)
	}
	m, ok := n.member(from)
	if !ok {
		return fmt.Errorf("%q is no member", from)
	}
	_, err := n.peers.Tell(ctx, m, peer.CallReach, reach{ID: to})
	return err
}

func (n *Node) handleReach(ctx context.Context, payload []byte) (byte, []byte) {
	var q reach
	if err := json.Unmarshal(payload, &q); err != nil {
		return peer.AnswerRefused, []byte(err.Error())
	}
	if q.ID == n.id.ServerID {
		return peer.AnswerOK, nil
	}
	ctx, cancel := context.WithTimeout(ctx, n.cfg.Timeouts.Call)
	defer cancel()
	if err := n.peers.Ping(ctx, q.ID); err != nil {
		return peer.AnswerUnavailable, []byte(err.Error())
	}
	return peer.AnswerOK, nil
}

// take carries out one step.
func (o *observer) take(ctx context.Context, step autopilot.Step) error {
	n, term := o.node, o.term
	if err := n.changing.enter(ctx); err != nil {
		return err
	}
	defer n.changing.leave()
	if n.leadership.term() != term {
		return errNoLeader
	}
	if o.mayTell(string(step.Kind), step.Server.ID) {
		n.cfg.Logger.Info("this server changes the members", "step", step.Kind, "server", step.Server.ID, "why", step.Why)
	}
	m, ok := n.member(step.Server.ID)
	if !ok || n.standing(m.ID).Effective() != step.Server.State {
		return nil // somebody decided otherwise since the look, as by a promotion: the next look goes by that
	}
	id, call := raft.ServerID(m.ID), n.cfg.Timeouts.Call
	switch step.Kind {
	case autopilot.Promote:
		return n.configured(n.raft.AddVoter(id, raft.ServerAddress(m.Address), 0, call))
	case autopilot.Demote:
		return n.configured(n.raft.DemoteVoter(id, 0, call))
	case autopilot.Remove:
		return n.configured(n.raft.RemoveServer(id, 0, call))
	case autopilot.Drop: // after a crash in between it is out, and only nobody is told
		if err := n.configured(n.raft.RemoveServer(id, 0, call)); err != nil {
			return err
		}
		return n.decide(ctx, term, m.ID, n.standing(m.ID), group.Decision{State: group.Dropped, Name: m.Name, Why: step.Why})
	case autopilot.HandOver:
		return n.transfer(ctx, m, n.whyRetires())
	case autopilot.Expire:
		old := n.standing(m.ID)
		return n.decide(ctx, term, m.ID, old, group.Decision{State: group.Leaving, Name: m.Name, Why: "it was dead: " + step.Why})
	}
	return fmt.Errorf("the step %q is not known", step.Kind)
}

// settle has an entry follow the newest configuration where nobody writes one: see committed. It
// does not wait for it.
func (o *observer) settle() {
	n := o.node
	select {
	case <-o.settling:
		o.settling = nil
	default:
	}
	if o.settling == nil && n.committed.endsLog(n.raft.LastIndex()) {
		o.settling = n.questions.Begin(func() raft.Future { return n.beginMark() })
	}
}

// noteBlocked takes note of what is recorded and cannot be done now. While a step is due not all of
// it was looked at.
func (o *observer) noteBlocked(blocked map[string]string, due bool) {
	for id, reason := range blocked {
		if _, was := o.blocked[id]; !was {
			o.blocked[id] = time.Now()
			if o.mayTell("blocked", id) {
				o.node.cfg.Logger.Warn("a server is to leave, or to lose its vote, and cannot yet; to keep it after all, promote it", "server", id, "why", reason)
			}
		}
	}
	for id := range o.blocked {
		if _, is := blocked[id]; !is && !due {
			delete(o.blocked, id)
		}
	}
}

// bury writes down who has left: is decided to leave, and not in the configuration any more. Who
// was dropped and has joined again is as any other.
func (o *observer) bury(ctx context.Context) {
	n := o.node
	for id, s := range n.roster() {
		_, member := n.member(id)
		if s.State == group.Dropped && member {
			if err := n.decide(ctx, o.term, id, s, group.Decision{}); err != nil {
				n.cfg.Logger.Debug("cannot write down yet that a server is here again", "server", id, "err", err)
			}
			continue
		}
		if s.State == group.Removed || s.State == group.Dropped || member {
			continue
		}
		why := s.Why
		if s.State != group.Leaving {
			why = "it is no member any more"
		}
		if err := n.decide(ctx, o.term, id, s, group.Decision{State: group.Removed, Name: s.Name, Why: why}); err != nil {
			n.cfg.Logger.Debug("cannot write down yet that a server has left", "server", id, "err", err)
			continue
		}
		n.cfg.Logger.Info("a server has left the cluster", "server", id, "why", why)
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
