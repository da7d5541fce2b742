package autopilot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/command"
	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/peer"
)

// PendingError is returned for a removal or demotion that is recorded and cannot be carried out
// now. The leader of that time does it as soon as it can. Promoting the server takes it back.
type PendingError struct{ Reason string }

func (e *PendingError) Error() string { return e.Reason }

// Change is a change of the members.
type Change struct {
	Kind    ChangeKind `json:"kind"`
	ID      string     `json:"id"`
	Address string     `json:"address,omitempty"`
	// DryRun asks only whether the removal or demotion would be refused.
	DryRun bool `json:"dryRun,omitempty"`
	// Why is written down with a removal, for people.
	Why string `json:"why,omitempty"`
	// Forwarded marks a joiner's wish that was passed on once; it is not passed on again.
	Forwarded bool `json:"forwarded,omitempty"`
}

// ChangeKind is the kind of a change. All of them may be repeated without harm.
type ChangeKind string

const (
	// AddMember makes a server a member without a vote, or gives a member a new address.
	AddMember ChangeKind = peer.JoinKind
	// MoveMember gives a member a new address.
	MoveMember ChangeKind = "move"
	// PromoteMember gives a member a vote, now if it may have one.
	PromoteMember ChangeKind = "promote"
	// DemoteMember takes a member's vote away until it is promoted.
	DemoteMember ChangeKind = "demote"
	// RemoveMember takes a server out of the group for good.
	RemoveMember ChangeKind = "remove"
	// TransferLeadership makes a member the leader; the most suitable voter when ID is empty.
	TransferLeadership ChangeKind = "transfer"
)

// Apply makes the change on the leader, from any server, and waits until it is done. It fails with
// a *RefusedError that has the reason, with ErrUnavailable, or with ErrUnknownOutcome. A removal or
// demotion that was begun continues without the caller, this server or the leader. If it has to
// wait, the error is a *PendingError.
func (a *Manager) Apply(ctx context.Context, c Change) error {
	if err := a.submit(ctx, c); err != nil {
		return err
	}
	if !c.DryRun && (c.Kind == RemoveMember || c.Kind == DemoteMember) {
		return a.AwaitDeparture(ctx, c)
	}
	return nil
}

// submit has the leader accept the change.
func (a *Manager) submit(ctx context.Context, c Change) error {
	leader, local, err := a.server.LeaderAt()
	if err != nil {
		return err
	}
	if local {
		return a.change(ctx, c)
	}
	c.Forwarded = true
	return a.applyAt(ctx, leader, c)
}

func (a *Manager) applyAt(ctx context.Context, dest string, c Change) error {
	_, err := a.peers.TellAt(ctx, dest, peer.CallMembers, c)
	return a.changeError(err)
}

// changeError converts the failure of a call for the requested change.
func (a *Manager) changeError(err error) error {
	var refused *peer.RefusedError
	if err == nil || errors.As(err, &refused) || errors.Is(err, kv.ErrUnavailable) ||
		errors.Is(err, kv.ErrUnknownOutcome) {
		return err
	}
	return peer.CallError(err, kv.ErrUnknownOutcome)
}

const (
	departureLook = 25 * time.Millisecond
	// departureRead bounds one of these reads: the leader may be about to forget this server.
	departureRead = 500 * time.Millisecond
	// hindranceLook is the interval at which the leader is asked whether the change is blocked.
	// PendingAfter is how long it may be blocked before its caller learns of it. A restarted server
	// is back within that time.
	hindranceLook = 5 * time.Second
	PendingAfter  = 30 * time.Second
)

// AwaitDeparture waits until a server has lost its place or its vote.
func (a *Manager) AwaitDeparture(ctx context.Context, c Change) error {
	ticker := time.NewTicker(departureLook)
	defer ticker.Stop()
	asked, hindrance := time.Now(), group.Health{}
	for {
		done, err := a.Departed(ctx, c)
		if done && c.Kind == RemoveMember && c.ID == a.opts.ID {
			s := a.decision(c.ID)
			removal := s.Removal()
			removal.Dropped = false // it was asked for, and is for good
			a.Expelled(removal)
		}
		if done || err != nil {
			return err
		}
		if time.Since(asked) >= hindranceLook {
			a.settle(ctx)
			if hindrance = a.hindrance(ctx, c.ID); hindrance.Blocked >= PendingAfter {
				return pending(c, hindrance)
			}
			asked = time.Now()
		}
		out := a.out
		if c.ID != a.opts.ID {
			out = nil
		}
		select {
		case <-out:
			return nil
		case <-a.server.Done():
			return fmt.Errorf("%w: the %s of server %q was begun and goes on: this server stops", kv.ErrUnknownOutcome,
				departure(c), c.ID)
		case <-ctx.Done():
			if hindrance.Blocked > 0 {
				return pending(c, hindrance)
			}
			return fmt.Errorf("%w: the %s of server %q was begun and goes on: %w", kv.ErrUnknownOutcome, departure(c),
				c.ID, context.Cause(ctx))
		case <-ticker.C:
		}
	}
}

// departure is the users' name of the change.
func departure(c Change) string {
	if c.Kind == DemoteMember {
		return "demotion"
	}
	return "removal"
}

func pending(c Change, h group.Health) error {
	return &PendingError{
		fmt.Sprintf(
			"the %s of server %q is recorded and waits, for %s now: %s. It is carried out as soon as that is over; to take it back, promote the server",
			departure(c), c.ID, h.Blocked.Round(time.Second), h.Reason)}
}

// hindrance asks the leader whether the departure of a server is blocked, and since when. It is
// empty when no server answers.
func (a *Manager) hindrance(ctx context.Context, id string) group.Health {
	ctx, cancel := context.WithTimeout(ctx, departureRead)
	defer cancel()
	for _, m := range a.server.Members() {
		if !m.Leader {
			continue
		}
		status, err := a.survey.Ask(ctx, m)
		if err != nil {
			break
		}
		for _, h := range status.Health {
			if h.ID == id {
				return h
			}
		}
	}
	return group.Health{}
}

// Departed reports whether a decision about a server is carried out, by the committed and settled
// configuration. This server's log may have configurations that will never be committed.
func (a *Manager) Departed(ctx context.Context, c Change) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, departureRead)
	defer cancel()
	revision, err := a.server.ReadRevision(ctx)
	if err == nil {
		err = a.server.State().Wait(ctx, revision)
	}
	if err != nil {
		return false, nil // the next look decides
	}
	member, voter, known := a.committed.Place(c.ID)
	settled := a.committed.Settled(a.raft.AppliedIndex()) // of that configuration or a newer one
	decided := a.decision(c.ID).State
	switch {
	case !known:
	case decided == group.Unreadable:
		return false,
			fmt.Errorf(
				"%w: what is recorded about server %q was written by a newer version, which this server cannot read: ask a server of that version",
				kv.ErrUnknownOutcome, c.ID)
	case c.Kind == DemoteMember && member && decided == group.Regular:
		return false,
			peer.Refusedf("the demotion of server %q was taken back: an operator has promoted it meanwhile", c.ID)
	case c.Kind == DemoteMember:
		return !voter && settled, nil
	case decided == group.Removed || decided != group.Leaving && !member:
		return settled, nil
	case decided != group.Leaving:
		return false,
			peer.Refusedf(
				"the removal of server %q was taken back: an operator has promoted it meanwhile, and it stays a member",
				c.ID)
	}
	return false, nil
}

// settle makes an entry follow the newest configuration if this server knows of none. A leader of
// an older version does not, and a group without writes may never have one.
func (a *Manager) settle(ctx context.Context) {
	if !a.committed.endsLog(a.raft.LastIndex()) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, departureRead)
	defer cancel()
	if _, err := a.server.Propose(ctx, &command.Request{Kind: command.KindTxn}); err != nil {
		a.opts.Logger.Debug("nothing follows the newest configuration yet", "err", err)
	}
}

// agreed reports whether a member's place in this server's configuration is also committed: the
// leader that wrote it may have been deposed before.
func (a *Manager) agreed(m group.Member) bool {
	member, voter, known := a.committed.Place(m.ID)
	return known && member && voter == m.Voter
}

// Join asks the servers at the addresses, one after the other, to make this server a member. It
// returns when one of them, or the leader that it passed the request to, has done so. The vote
// follows by itself.
func (a *Manager) Join(ctx context.Context, addrs []string) error {
	if _, ok := a.member(a.opts.ID); ok {
		return nil
	}
	err := fmt.Errorf("%w: no server to join is given", kv.ErrUnavailable)
	for _, addr := range addrs {
		limited, cancel := context.WithTimeout(ctx, 5*a.opts.Timeouts.Call)
		err = a.JoinBy(limited, addr)
		cancel()
		var refused *peer.RefusedError
		if err == nil || errors.As(err, &refused) || ctx.Err() != nil {
			return err
		}
		a.opts.Logger.Debug("cannot join by this server", "address", addr, "err", err)
	}
	return err
}

// JoinBy asks the server at an address to make this one a member.
func (a *Manager) JoinBy(ctx context.Context, addr string) error {
	_, err := a.peers.TellUnknown(ctx, addr, peer.CallMembers,
		Change{Kind: AddMember, ID: a.opts.ID, Address: a.opts.Addr()})
	return a.changeError(err)
}

// HandleMembers answers another server's request. A joining server does not know the leader, so its
// request is forwarded, once.
func (a *Manager) HandleMembers(ctx context.Context, payload []byte) (byte, []byte) {
	var c Change
	if err := json.Unmarshal(payload, &c); err != nil {
		return peer.AnswerRefused, []byte(err.Error())
	}
	if _, local, err := a.server.LeaderAt(); err != nil || c.Forwarded && !local {
		return peer.Refuse(group.ErrNoLeader)
	}
	if err := a.submit(ctx, c); err != nil {
		return peer.Refuse(err)
	}
	return peer.AnswerOK, nil
}

// change makes the change on the leader. A removal and a demotion are only decided here; the
// autopilot carries them out.
func (a *Manager) change(ctx context.Context, c Change) error {
	if err := a.changing.enter(ctx); err != nil {
		return err
	}
	defer a.changing.leave()
	term := a.server.Term()
	if term == 0 {
		return group.ErrNoLeader
	}
	defer a.nudge()
	m, known := a.member(c.ID)
	if !known && c.Kind != AddMember && !(c.Kind == TransferLeadership && c.ID == "") {
		if c.Kind == RemoveMember {
			return nil
		}
		return peer.Refusedf("there is no server %q in this cluster", c.ID)
	}
	if !c.DryRun {
		log := a.opts.Logger
		if c.Address != "" {
			log = log.With("address", c.Address)
		}
		if c.Why != "" {
			log = log.With("reason", c.Why)
		}
		log.Info("a change of the members was asked for", "change", c.Kind, "server", c.ID)
	}
	switch c.Kind {
	case AddMember, MoveMember:
		return a.place(c, m, known)
	case PromoteMember:
		return a.promote(ctx, term, m)
	case DemoteMember, RemoveMember:
		return a.retire(ctx, term, c, m)
	case TransferLeadership:
		return a.handOver(ctx, c.ID, m)
	}
	return peer.Refusedf("this server does not know the change %q", c.Kind)
}

// place gives a server its address, and makes it a member if it is none.
func (a *Manager) place(c Change, m group.Member, known bool) error {
	if c.ID == "" || c.Address == "" {
		return peer.Refusedf("a new member needs an ID and an address")
	}
	s := a.decision(c.ID)
	switch {
	case s.State == group.Removed:
		return peer.Refusedf(
			"server %q was taken out of this cluster at %s (%s): it can join as a new one, with an empty directory",
			c.ID, s.At().Format(time.RFC3339), s.Why)
	case s.State == group.Leaving && !known:
		return peer.Refusedf("server %q is on its way out of this cluster (%s)", c.ID, s.Why)
	case known && m.Address == c.Address && a.agreed(m):
		return nil
	}
	for _, other := range a.server.Members() {
		// it asked for a place by its name, and has got it
		if s.State == group.Dropped && other.Name == s.Name && other.ID != c.ID {
			return peer.Refusedf(
				"server %q was dropped at %s (%s), and another one of its name, %q, is a member now: give one of them another name",
				c.ID, s.At().Format(time.RFC3339), s.Why, other.ID)
		}
		if other.Address == c.Address && other.ID != c.ID {
			if err := a.makeWay(other); err != nil {
				return err
			}
		}
	}
	if known && m.Voter {
		return a.Configured(
			a.raft.AddVoter(raft.ServerID(c.ID), raft.ServerAddress(c.Address), 0, a.opts.Timeouts.Call))
	}
	return a.Configured(a.raft.AddNonvoter(raft.ServerID(c.ID), raft.ServerAddress(c.Address), 0, a.opts.Timeouts.Call))
}

// makeWay moves a member to its own new address, so that another one can have the old one. If its
// new address is also still another's, it has none for a moment.
func (a *Manager) makeWay(m group.Member) error {
	addr := a.peers.AddressOf(m)
	if addr == m.Address {
		return peer.Refusedf("the address %s belongs to server %q: remove that one first if it is gone for good",
			m.Address, m.ID)
	}
	for _, other := range a.server.Members() {
		if other.Address == addr {
			addr = group.Nowhere(m.ID)
		}
	}
	set := a.raft.AddNonvoter
	if m.Voter {
		set = a.raft.AddVoter
	}
	return a.Configured(set(raft.ServerID(m.ID), raft.ServerAddress(addr), 0, a.opts.Timeouts.Call))
}

// promote gives a member its vote if it meets all of the autopilot's conditions but the time.
func (a *Manager) promote(ctx context.Context, term uint64, m group.Member) error {
	s := a.decision(m.ID)
	if s.State == group.Removed {
		return peer.Refusedf("server %q is on its way out of this cluster (%s)", m.ID, s.Why)
	}
	if !m.Voter {
		servers, err := a.surveyed(ctx)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(servers, func(s Server) bool { return s.ID == m.ID })
		if i < 0 {
			return peer.Refusedf("server %q is no member any more", m.ID)
		}
		servers[i].State = group.Regular // which it is to be
		(&Observer{manager: a}).apart(ctx, servers)
		if why := Fit(servers[i], a.policy()); why != "" {
			return peer.Refusedf("server %q cannot have a vote now: %s", m.ID, why)
		}
	}
	if s.State != group.Regular {
		if err := a.Decide(ctx, term, m.ID, s, group.Decision{}); err != nil {
			return err
		}
	}
	if m.Voter && a.agreed(m) {
		return nil
	}
	return a.Configured(a.raft.AddVoter(raft.ServerID(m.ID), raft.ServerAddress(m.Address), 0, a.opts.Timeouts.Call))
}

// retire decides that a server is to lose its vote, or to leave.
func (a *Manager) retire(ctx context.Context, term uint64, c Change, m group.Member) error {
	to := group.Decision{State: group.Leaving, Name: m.Name, Why: c.Why}
	if c.Kind == DemoteMember {
		to.State = group.Standby
	}
	old := a.decision(m.ID)
	switch {
	case old.State == to.State:
		return nil
	case old.State == group.Leaving || old.State == group.Removed:
		return peer.Refusedf("server %q is on its way out of this cluster (%s)", m.ID, old.Why)
	}
	if err := a.guardQuorum(ctx, m.ID); err != nil || c.DryRun {
		return err
	}
	return a.Decide(ctx, term, m.ID, old, to)
}

// guardQuorum refuses to take a member's vote away if the remaining able voters would be no quorum.
func (a *Manager) guardQuorum(ctx context.Context, id string) error {
	servers, err := a.surveyed(ctx)
	if err != nil {
		return err
	}
	if err := Guard(servers, id); err != nil {
		return peer.Refusedf("%v", err)
	}
	return nil
}

// surveyed is Observe for a waiting caller. An abandoned request says nothing about the members.
func (a *Manager) surveyed(ctx context.Context) ([]Server, error) {
	servers := a.Observe(ctx)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%w: %w", kv.ErrUnavailable, context.Cause(ctx))
	}
	return servers, nil
}

// handOver makes a member the leader, or the voter that is the least behind.
func (a *Manager) handOver(ctx context.Context, id string, m group.Member) error {
	if m.Self {
		return nil
	}
	servers, err := a.surveyed(ctx)
	if err != nil {
		return err
	}
	if id == "" {
		to, ok := Transferee(servers, a.opts.ID)
		if !ok {
			return peer.Refusedf("no other voter is able to lead")
		}
		m, _ = a.member(to.ID)
		return a.server.Transfer(ctx, m, "an operator wants it")
	}
	if !m.Voter {
		return peer.Refusedf("server %q has no vote, so it cannot lead", m.ID)
	}
	for _, s := range servers {
		if s.ID != id {
			continue
		}
		if why := Fit(s, a.policy()); why != "" {
			return peer.Refusedf("server %q cannot lead now: %s", m.ID, why)
		}
		if s.State == group.Leaving {
			return peer.Refusedf("server %q is on its way out of this cluster", m.ID)
		}
	}
	return a.server.Transfer(ctx, m, "an operator wants it")
}

// nudge wakes the leader's care of the members.
func (a *Manager) nudge() {
	select {
	case a.nudged <- struct{}{}:
	default: // it is about to
	}
}
