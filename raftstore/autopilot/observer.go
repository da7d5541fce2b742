package autopilot

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/peer"
	"github.com/barque/barque/raftstore/status"
)

const (
	// lookEvery is the interval of the leader's looks at the members while there is work. IdleEvery
	// is the interval without work, or while it waits for others.
	lookEvery = 200 * time.Millisecond
	IdleEvery = time.Second
	// failingMost bounds the pause after a step that failed, which is twice as long each time.
	failingMost = 5 * time.Second
	// tellEvery is the interval of repeated log lines about a member: a failure may repeat at each
	// look.
	tellEvery = time.Minute
	// dropAfter is how long a server without a vote may be silent. It, or its machine, may be
	// restarting.
	dropAfter = 10 * time.Minute
	// caughtUp is how many entries a server may lag behind and count as caught up.
	caughtUp = 64
)

// Observer is the leader's memory of the members between two looks. It lasts for a term: a new
// leader has not yet seen any server be stable or silent.
type Observer struct {
	manager  *Manager
	term     uint64               // of this server's leadership
	last     time.Time            // of the looks
	answered map[string]time.Time // by ID: when it did last
	stable   map[string]time.Time // since when
	blocked  map[string]time.Time // since when its departure or demotion is
	told     map[string]time.Time // by event and server: when it was logged
	failing  time.Duration        // the pause after the next failed step; 0 after a success
	settling <-chan error         // not nil: an entry that settles a configuration is under way
}

// Manage carries out the autopilot's decisions, and closes the links to removed members. It ends
// with the term.
func (a *Manager) Manage(ctx context.Context, term uint64) {
	o := NewObserver(a, term)
	defer a.health.Store(nil)
	wait := time.NewTimer(0)
	defer wait.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.nudged:
		case <-wait.C:
		}
		a.peers.Keep()
		wait.Reset(o.look(ctx))
	}
}

// NewObserver returns the Observer of a term that begins.
func NewObserver(a *Manager, term uint64) *Observer {
	return &Observer{
		manager: a, term: term, answered: make(map[string]time.Time), stable: make(map[string]time.Time),
		blocked: make(map[string]time.Time), told: make(map[string]time.Time),
	}
}

// look observes the members once and takes a due step. It returns the pause before the next look.
func (o *Observer) look(ctx context.Context) (pause time.Duration) {
	a := o.manager
	servers := o.Observe(ctx)
	if ctx.Err() != nil {
		return 0
	}
	pause = IdleEvery
	policy := a.policy()
	step, due, blocked := Decide(servers, policy)
	for due && o.reached(ctx, servers, step) {
		step, due, blocked = Decide(servers, policy)
	}
	o.noteBlocked(blocked, due)
	health := make([]group.Health, len(servers))
	for i, s := range servers {
		health[i] = HealthOf(s, policy, blocked[s.ID])
		if blocked[s.ID] != "" {
			health[i].Blocked = max(time.Since(o.blocked[s.ID]), 1)
		}
		health[i].Lag, health[i].LagFor = s.Lag, a.lagFor(s)
		if blocked[s.ID] == "" && inMotion(s) {
			pause = lookEvery
		}
	}
	a.health.Store(&health)
	defer o.settle() // also where a step fails again and again
	if due {
		if err := o.Take(ctx, step); err != nil {
			if ctx.Err() == nil && o.mayTell("failed "+string(step.Kind), step.Server.ID) {
				a.opts.Logger.Warn("a change of the members failed; it is tried again", "step", step.Kind, "server",
					step.Server.ID, "err", err)
			}
			o.failing = min(max(2*o.failing, lookEvery), failingMost)
			return o.failing // this server's configuration may never be committed
		}
	}
	o.failing = 0
	o.recordLeft(ctx)
	return pause
}

// inMotion reports whether a member is on its way to a vote, or out, and waits for no other server.
func inMotion(s Server) bool {
	return s.State == group.Leaving || s.State == group.Regular && !s.Voter && s.Answers ||
		s.State == group.Standby && s.Voter
}

// mayTell reports whether the log may mention a member again, after a pause.
func (o *Observer) mayTell(what, id string) bool {
	key := what + " " + id
	if at, ok := o.told[key]; ok && time.Since(at) < tellEvery {
		return false
	}
	o.told[key] = time.Now()
	return true
}

// lagFor is the age of the first entry in this server's log that the member has not applied; 0 if
// unknown, as for a member that does not answer.
func (a *Manager) lagFor(s Server) time.Duration {
	if !s.Answers || s.Lag == 0 {
		return 0
	}
	first := a.server.AppendedAt(s.Applied + 1)
	if first.IsZero() {
		return 0
	}
	return max(0, time.Since(first))
}

func (a *Manager) policy() Policy {
	return Policy{
		PromoteAfter: a.opts.Timeouts.PromoteAfter, MaxLag: caughtUp, CleanAfter: a.opts.CleanAfter,
		MinVoters: a.opts.MinVoters,
		DropAfter: dropAfter,
	}
}

// Observe asks all members for their state, with a short timeout: a dead one must not delay the
// others.
func (o *Observer) Observe(ctx context.Context) []Server {
	a, now := o.manager, time.Now()
	limit := o.patience()
	asking, cancel := context.WithTimeout(ctx, limit)
	servers := a.Observe(asking)
	cancel()
	asking, cancel = context.WithTimeout(ctx, limit) // silent servers have used up the first one
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
		if Fit(*s, a.policy()) != "" {
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
func (o *Observer) patience() time.Duration {
	return max(2*o.manager.opts.Timeouts.Heartbeat, 500*time.Millisecond)
}

// reached checks, before the removal of a silent server, whether a voter reaches it, and records
// which.
func (o *Observer) reached(ctx context.Context, servers []Server, step Step) bool {
	if step.Kind != Drop && step.Kind != Expire {
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
			if o.manager.reaches(ctx, v.ID, step.Server.ID) == nil {
				names <- v.Name
				cancel() // one is enough
			}
		})
	}
	asking.Wait()
	select {
	case name := <-names:
		i := slices.IndexFunc(servers, func(s Server) bool { return s.ID == step.Server.ID })
		servers[i].Reached = name
		return true
	default:
		return false
	}
}

// lookGap exceeds the time of a look without its requests to others, unless this process was
// stopped in it.
const lookGap = 10 * time.Second

// resume begins a look. After a gap the time in it is unknown: no server was asked, so none was
// silent, nor healthy. Otherwise a machine that was frozen would take servers for dead as soon as
// it wakes up.
func (o *Observer) resume(now time.Time, gap time.Duration) {
	if !o.last.IsZero() && now.Sub(o.last) > gap {
		clear(o.answered)
		clear(o.stable)
		clear(o.blocked)
	}
	o.last = now
}

// Observe returns the members, with their own reports.
func (a *Manager) Observe(ctx context.Context) []Server {
	last, decisions := a.raft.LastIndex(), group.Decisions(a.server.State().Latest())
	peers := a.survey.All(ctx)
	servers := make([]Server, len(peers))
	for i, p := range peers {
		decided := decisions[p.Member.ID]
		s := Server{
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

// apart checks, for servers that are to get a vote, whether all answering voters and they reach
// each other.
func (o *Observer) apart(ctx context.Context, servers []Server) {
	a := o.manager
	var ways []func() // begun when all are known: they write to the data read here
	var mu sync.Mutex
	for i := range servers {
		s := &servers[i]
		if s.Voter || s.State != group.Regular || Fit(*s, a.policy()) != "" {
			continue
		}
		for _, v := range servers {
			if !v.Voter || !v.Answers {
				continue
			}
			for _, way := range [][2]Server{{*s, v}, {v, *s}} {
				ways = append(ways, func() {
					from, to := way[0], way[1]
					if err := a.reaches(ctx, from.ID, to.ID); err != nil {
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
func (a *Manager) reaches(ctx context.Context, from, to string) error {
	if from == a.opts.ID {
		return a.peers.Ping(ctx, to)
	}
	m, ok := a.member(from)
	if !ok {
		return fmt.Errorf("%q is no member", from)
	}
	_, err := a.peers.Tell(ctx, m, peer.CallReach, reach{ID: to})
	return err
}

// HandleReach answers another server whether this one can talk to a member.
func (a *Manager) HandleReach(ctx context.Context, payload []byte) (byte, []byte) {
	var q reach
	if err := json.Unmarshal(payload, &q); err != nil {
		return peer.AnswerRefused, []byte(err.Error())
	}
	if q.ID == a.opts.ID {
		return peer.AnswerOK, nil
	}
	ctx, cancel := context.WithTimeout(ctx, a.opts.Timeouts.Call)
	defer cancel()
	if err := a.peers.Ping(ctx, q.ID); err != nil {
		return peer.AnswerUnavailable, []byte(err.Error())
	}
	return peer.AnswerOK, nil
}

// Take carries out one step.
func (o *Observer) Take(ctx context.Context, step Step) error {
	a, term := o.manager, o.term
	if err := a.changing.enter(ctx); err != nil {
		return err
	}
	defer a.changing.leave()
	if a.server.Term() != term {
		return group.ErrNoLeader
	}
	if o.mayTell(string(step.Kind), step.Server.ID) {
		a.opts.Logger.Info("this server changes the members", "step", step.Kind, "server", step.Server.ID, "reason",
			step.Why)
	}
	m, ok := a.member(step.Server.ID)
	if !ok || a.decision(m.ID).Effective() != step.Server.State {
		return nil // the decision has changed since the look, as by a promotion: the next look uses it
	}
	old := a.decision(m.ID)
	err := o.carryOut(ctx, step, m, old)
	if err == nil && step.Kind != HandOver && a.opts.OnChange != nil {
		a.opts.OnChange(
			group.MemberChange{Change: string(step.Kind), ID: m.ID, Name: m.Name, Why: cmp.Or(old.Why, step.Why)})
	}
	return err
}

// carryOut carries out a step for a member, about which old is decided.
func (o *Observer) carryOut(ctx context.Context, step Step, m group.Member, old group.Decision) error {
	a, term := o.manager, o.term
	id, call := raft.ServerID(m.ID), a.opts.Timeouts.Call
	switch step.Kind {
	case Promote:
		return a.Configured(a.raft.AddVoter(id, raft.ServerAddress(m.Address), 0, call))
	case Demote:
		return a.Configured(a.raft.DemoteVoter(id, 0, call))
	case Remove:
		return a.Configured(a.raft.RemoveServer(id, 0, call))
	case Drop: // after a crash in between it is removed, without a line in the log
		if err := a.Configured(a.raft.RemoveServer(id, 0, call)); err != nil {
			return err
		}
		return a.Decide(ctx, term, m.ID, a.decision(m.ID),
			group.Decision{State: group.Dropped, Name: m.Name, Why: step.Why})
	case HandOver:
		return a.server.Transfer(ctx, m, a.whyRetires())
	case Expire:
		return a.Decide(ctx, term, m.ID, old,
			group.Decision{State: group.Leaving, Name: m.Name, Why: "it was dead: " + step.Why})
	}
	return fmt.Errorf("the step %q is not known", step.Kind)
}

// settle has an entry follow the newest configuration where no write makes one: see Committed. It
// does not wait for it.
func (o *Observer) settle() {
	a := o.manager
	select {
	case <-o.settling:
		o.settling = nil
	default:
	}
	if o.settling == nil && a.committed.endsLog(a.raft.LastIndex()) {
		o.settling = a.server.Begin(func() raft.Future { return a.server.NoOp() })
	}
}

// noteBlocked records decisions that are not possible now. While a step is due the observation is
// incomplete.
func (o *Observer) noteBlocked(blocked map[string]string, due bool) {
	for id, reason := range blocked {
		if _, was := o.blocked[id]; !was {
			o.blocked[id] = time.Now()
			if o.mayTell("blocked", id) {
				o.manager.opts.Logger.Warn(
					"a server is to leave, or to lose its vote, and cannot yet; to keep it after all, promote it",
					"server", id, "reason", reason)
			}
		}
	}
	for id := range o.blocked {
		if _, is := blocked[id]; !is && !due {
			delete(o.blocked, id)
		}
	}
}

// recordLeft records the servers that have left: each was to leave, and is not in the configuration
// any more. A dropped server that has joined again is like any other.
func (o *Observer) recordLeft(ctx context.Context) {
	a := o.manager
	for id, s := range group.Decisions(a.server.State().Latest()) {
		_, member := a.member(id)
		if s.State == group.Dropped && member {
			if err := a.Decide(ctx, o.term, id, s, group.Decision{}); err != nil {
				a.opts.Logger.Debug("cannot write down yet that a server is here again", "server", id, "err", err)
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
		if err := a.Decide(ctx, o.term, id, s,
			group.Decision{State: group.Removed, Name: s.Name, Why: why}); err != nil {
			a.opts.Logger.Debug("cannot write down yet that a server has left", "server", id, "err", err)
			continue
		}
		a.opts.Logger.Info("a server has left the cluster", "server", id, "reason", why)
	}
}

// whyRetires is why this server, which leads, is to lose its vote.
func (a *Manager) whyRetires() string {
	switch s := a.decision(a.opts.ID); {
	case s.State == group.Leaving && s.Why != "":
		return "it leaves the cluster: " + s.Why
	case s.State == group.Leaving:
		return "it leaves the cluster"
	case s.State == group.Standby:
		return "it is to have no vote until it is promoted"
	}
	return "it is to lose its vote"
}
