package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/autopilot"
	"github.com/barque/barque/raftstore/command"
	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/peer"
)

// Members returns the members as this server knows them, with the leader marked.
func (n *Node) Members() []group.Member {
	_, leader := n.leaderWithID()
	var members []group.Member
	for _, s := range n.raft.GetConfiguration().Configuration().Servers {
		id := string(s.ID)
		members = append(members, group.Member{
			ID: id, Name: group.NameOf(id), Address: string(s.Address), Voter: s.Suffrage == raft.Voter,
			Leader: s.ID == leader, Self: id == n.id.ServerID,
		})
	}
	return members
}

func (n *Node) voters() int { return group.Voters(n.Members()) }

func (n *Node) member(id string) (group.Member, bool) { return group.Find(n.Members(), id) }

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

// ChangeKind tells changes apart. All of them may be repeated without harm.
type ChangeKind string

const (
	// AddMember makes a server a member without a vote, or gives a member a new address.
	AddMember ChangeKind = "add"
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

// Apply makes the change, wherever the leader is, and waits until it is done. It fails with a
// *RefusedError that says why, with ErrUnavailable, or with ErrUnknownOutcome. A removal or
// demotion that was begun goes on whatever becomes of the caller, of this server or of the leader;
// it fails with a *PendingError when it has to wait.
func (n *Node) Apply(ctx context.Context, c Change) error {
	if err := n.submit(ctx, c); err != nil {
		return err
	}
	if !c.DryRun && (c.Kind == RemoveMember || c.Kind == DemoteMember) {
		return n.awaitDeparture(ctx, c)
	}
	return nil
}

// submit has the leader accept the change.
func (n *Node) submit(ctx context.Context, c Change) error {
	leader, local, err := n.leader()
	if err != nil {
		return err
	}
	if local {
		return n.change(ctx, c)
	}
	c.Forwarded = true
	return n.applyAt(ctx, leader, c)
}

func (n *Node) applyAt(ctx context.Context, dest string, c Change) error {
	_, err := n.peers.TellAt(ctx, dest, peer.CallMembers, c)
	return n.changeError(err)
}

// changeError says what the failure of a call means for the change that was asked for.
func (n *Node) changeError(err error) error {
	var refused *peer.RefusedError
	if err == nil || errors.As(err, &refused) || errors.Is(err, kv.ErrUnavailable) || errors.Is(err, kv.ErrUnknownOutcome) {
		return err
	}
	return n.callError(err, kv.ErrUnknownOutcome)
}

const (
	departureLook = 25 * time.Millisecond
	// departureRead bounds one of these looks: the leader may be about to forget this server.
	departureRead = 500 * time.Millisecond
	// hindranceLook is how often the leader is asked whether it is blocked, and pendingAfter for
	// how long it may be until its caller is told. A server that is restarted is back by then.
	hindranceLook = 5 * time.Second
	pendingAfter  = 30 * time.Second
)

// awaitDeparture waits until a server has lost its place or its vote.
func (n *Node) awaitDeparture(ctx context.Context, c Change) error {
	ticker := time.NewTicker(departureLook)
	defer ticker.Stop()
	asked, hindrance := time.Now(), group.Health{}
	for {
		done, err := n.departed(ctx, c)
		if done && c.Kind == RemoveMember && c.ID == n.id.ServerID {
			s := n.standing(c.ID)
			removal := s.Removal()
			removal.Dropped = false // it was asked for, and is for good
			n.expelled(removal)
		}
		if done || err != nil {
			return err
		}
		if time.Since(asked) >= hindranceLook {
			n.settle(ctx)
			if hindrance = n.hindrance(ctx, c.ID); hindrance.Blocked >= pendingAfter {
				return pending(c, hindrance)
			}
			asked = time.Now()
		}
		out := n.out
		if c.ID != n.id.ServerID {
			out = nil
		}
		select {
		case <-out:
			return nil
		case <-n.ctx.Done():
			return fmt.Errorf("%w: the %s of server %q was begun and goes on: this server stops", kv.ErrUnknownOutcome, departure(c), c.ID)
		case <-ctx.Done():
			if hindrance.Blocked > 0 {
				return pending(c, hindrance)
			}
			return fmt.Errorf("%w: the %s of server %q was begun and goes on: %w", kv.ErrUnknownOutcome, departure(c), c.ID, context.Cause(ctx))
		case <-ticker.C:
		}
	}
}

// departure is what people call the change.
func departure(c Change) string {
	if c.Kind == DemoteMember {
		return "demotion"
	}
	return "removal"
}

func pending(c Change, h group.Health) error {
	return &PendingError{fmt.Sprintf("the %s of server %q is recorded and waits, for %s now: %s. It is carried out as soon as that is over; to take it back, promote the server",
		departure(c), c.ID, h.Blocked.Round(time.Second), h.Reason)}
}

// hindrance asks the leader whether the departure of a server is blocked, and since when. It is
// empty when nobody answers.
func (n *Node) hindrance(ctx context.Context, id string) group.Health {
	ctx, cancel := context.WithTimeout(ctx, departureRead)
	defer cancel()
	for _, m := range n.Members() {
		if !m.Leader {
			continue
		}
		status, err := n.board.Ask(ctx, m)
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

// departed tells whether what was decided about a server is done, by what is committed and settled:
// this server may have configurations in its log that never will be.
func (n *Node) departed(ctx context.Context, c Change) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, departureRead)
	defer cancel()
	revision, err := n.ReadRevision(ctx)
	if err == nil {
		err = n.state.Wait(ctx, revision)
	}
	if err != nil {
		return false, nil // it is looked at again
	}
	member, voter, known := n.committed.place(c.ID)
	settled := n.committed.settled(n.raft.AppliedIndex()) // of that configuration or a newer one
	decided := n.standing(c.ID).State
	switch {
	case !known:
	case decided == group.Unreadable:
		return false, fmt.Errorf("%w: what is recorded about server %q was written by a newer version, which this server cannot read: ask a server of that version",
			kv.ErrUnknownOutcome, c.ID)
	case c.Kind == DemoteMember && member && decided == group.Regular:
		return false, peer.Refusedf("the demotion of server %q was taken back: somebody has promoted it meanwhile", c.ID)
	case c.Kind == DemoteMember:
		return !voter && settled, nil
	case decided == group.Removed || decided != group.Leaving && !member:
		return settled, nil
	case decided != group.Leaving:
		return false, peer.Refusedf("the removal of server %q was taken back: somebody has promoted it meanwhile, and it stays a member", c.ID)
	}
	return false, nil
}

// settle has an entry follow the newest configuration where this server knows of none. A leader of
// an older version does not see to it, and in a group in which nobody writes there may be none for
// ever.
func (n *Node) settle(ctx context.Context) {
	if !n.committed.endsLog(n.raft.LastIndex()) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, departureRead)
	defer cancel()
	if _, err := n.Propose(ctx, &command.Request{Kind: command.KindTxn}); err != nil {
		n.cfg.Logger.Debug("nothing follows the newest configuration yet", "err", err)
	}
}

// agreed tells whether a place of a member that this server acts by is also committed: the leader
// that wrote it may have been deposed before.
func (n *Node) agreed(m group.Member) bool {
	member, voter, known := n.committed.place(m.ID)
	return known && member && voter == m.Voter
}

// Join asks the servers at the addresses, one after the other, to make this server a member. It
// returns when one of them, or the leader that it passed the request to, has done so. The vote
// follows by itself.
func (n *Node) Join(ctx context.Context, addrs []string) error {
	if _, ok := n.member(n.id.ServerID); ok {
		return nil
	}
	err := fmt.Errorf("%w: no server to join is given", kv.ErrUnavailable)
	for _, addr := range addrs {
		limited, cancel := context.WithTimeout(ctx, 5*n.cfg.Timeouts.Call)
		err = n.joinBy(limited, addr)
		cancel()
		var refused *peer.RefusedError
		if err == nil || errors.As(err, &refused) || ctx.Err() != nil {
			return err
		}
		n.cfg.Logger.Debug("cannot join by this server", "address", addr, "err", err)
	}
	return err
}

// joinBy asks the server at an address to make this one a member.
func (n *Node) joinBy(ctx context.Context, addr string) error {
	_, err := n.peers.TellUnknown(ctx, addr, peer.CallMembers, Change{Kind: AddMember, ID: n.id.ServerID, Address: n.cfg.Stream.Addr()})
	return n.changeError(err)
}

// handleMembers answers another server's wish. A joiner does not know who leads, so that one is
// passed on, once.
func (n *Node) handleMembers(ctx context.Context, payload []byte) (byte, []byte) {
	var c Change
	if err := json.Unmarshal(payload, &c); err != nil {
		return peer.AnswerRefused, []byte(err.Error())
	}
	if _, local, err := n.leader(); err != nil || c.Forwarded && !local {
		return peer.Refuse(errNoLeader)
	}
	if err := n.submit(ctx, c); err != nil {
		return peer.Refuse(err)
	}
	return peer.AnswerOK, nil
}

// change makes the change on the leader. A removal and a demotion are only decided here; the
// autopilot carries them out.
func (n *Node) change(ctx context.Context, c Change) error {
	if err := n.changing.enter(ctx); err != nil {
		return err
	}
	defer n.changing.leave()
	term := n.leadership.term()
	if term == 0 {
		return errNoLeader
	}
	defer n.nudge()
	m, known := n.member(c.ID)
	if !known && c.Kind != AddMember && !(c.Kind == TransferLeadership && c.ID == "") {
		if c.Kind == RemoveMember {
			return nil
		}
		return peer.Refusedf("there is no server %q in this cluster", c.ID)
	}
	if !c.DryRun {
		log := n.cfg.Logger
		if c.Address != "" {
			log = log.With("address", c.Address)
		}
		if c.Why != "" {
			log = log.With("why", c.Why)
		}
		log.Info("a change of the members was asked for", "change", c.Kind, "server", c.ID)
	}
	switch c.Kind {
	case AddMember, MoveMember:
		return n.place(c, m, known)
	case PromoteMember:
		return n.promote(ctx, term, m)
	case DemoteMember, RemoveMember:
		return n.retire(ctx, term, c, m)
	case TransferLeadership:
		return n.handOver(ctx, c.ID, m)
	}
	return peer.Refusedf("this server does not know the change %q", c.Kind)
}

// place gives a server its address, and makes it a member when it is none.
func (n *Node) place(c Change, m group.Member, known bool) error {
	if c.ID == "" || c.Address == "" {
		return peer.Refusedf("a new member needs an ID and an address")
	}
	s := n.standing(c.ID)
	switch {
	case s.State == group.Removed:
		return peer.Refusedf("server %q was taken out of this cluster at %s (%s): it can join as a new one, with an empty directory", c.ID, s.At().Format(time.RFC3339), s.Why)
	case s.State == group.Leaving && !known:
		return peer.Refusedf("server %q is on its way out of this cluster (%s)", c.ID, s.Why)
	case known && m.Address == c.Address && n.agreed(m):
		return nil
	}
	for _, other := range n.Members() {
		if s.State == group.Dropped && other.Name == s.Name && other.ID != c.ID { // who asked for a place by its name has got it
			return peer.Refusedf("server %q was dropped at %s (%s), and another one of its name, %q, is a member now: give one of them another name",
				c.ID, s.At().Format(time.RFC3339), s.Why, other.ID)
		}
		if other.Address == c.Address && other.ID != c.ID {
			if err := n.makeWay(other); err != nil {
				return err
			}
		}
	}
	if known && m.Voter {
		return n.configured(n.raft.AddVoter(raft.ServerID(c.ID), raft.ServerAddress(c.Address), 0, n.cfg.Timeouts.Call))
	}
	return n.configured(n.raft.AddNonvoter(raft.ServerID(c.ID), raft.ServerAddress(c.Address), 0, n.cfg.Timeouts.Call))
}

// makeWay gives a member that is known to be elsewhere its own new address, so that another one can
// have the old one; for a moment none, when the new one is also still another's.
func (n *Node) makeWay(m group.Member) error {
	addr := n.peers.AddressOf(m)
	if addr == m.Address {
		return peer.Refusedf("the address %s belongs to server %q: remove that one first if it is gone for good", m.Address, m.ID)
	}
	for _, other := range n.Members() {
		if other.Address == addr {
			addr = group.Nowhere(m.ID)
		}
	}
	set := n.raft.AddNonvoter
	if m.Voter {
		set = n.raft.AddVoter
	}
	return n.configured(set(raft.ServerID(m.ID), raft.ServerAddress(addr), 0, n.cfg.Timeouts.Call))
}

// promote gives a member its vote, if the autopilot would give it one but for the time.
func (n *Node) promote(ctx context.Context, term uint64, m group.Member) error {
	s := n.standing(m.ID)
	if s.State == group.Removed {
		return peer.Refusedf("server %q is on its way out of this cluster (%s)", m.ID, s.Why)
	}
	if !m.Voter {
		servers, err := n.surveyed(ctx)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(servers, func(s autopilot.Server) bool { return s.ID == m.ID })
		if i < 0 {
			return peer.Refusedf("server %q is no member any more", m.ID)
		}
		servers[i].State = group.Regular // which it is to be
		(&observer{node: n}).apart(ctx, servers)
		if why := autopilot.Fit(servers[i], n.policy()); why != "" {
			return peer.Refusedf("server %q cannot have a vote now: %s", m.ID, why)
		}
	}
	if s.State != group.Regular {
		if err := n.decide(ctx, term, m.ID, s, group.Decision{}); err != nil {
			return err
		}
	}
	if m.Voter && n.agreed(m) {
		return nil
	}
	return n.configured(n.raft.AddVoter(raft.ServerID(m.ID), raft.ServerAddress(m.Address), 0, n.cfg.Timeouts.Call))
}

// retire decides that a server is to lose its vote, or to leave.
func (n *Node) retire(ctx context.Context, term uint64, c Change, m group.Member) error {
	to := group.Decision{State: group.Leaving, Name: m.Name, Why: c.Why}
	if c.Kind == DemoteMember {
		to.State = group.Standby
	}
	old := n.standing(m.ID)
	switch {
	case old.State == to.State:
		return nil
	case old.State == group.Leaving || old.State == group.Removed:
		return peer.Refusedf("server %q is on its way out of this cluster (%s)", m.ID, old.Why)
	}
	if err := n.guardQuorum(ctx, m.ID); err != nil || c.DryRun {
		return err
	}
	return n.decide(ctx, term, m.ID, old, to)
}

// guardQuorum refuses to take the vote of a member away when the voters that stay and are able
// would be no quorum.
func (n *Node) guardQuorum(ctx context.Context, id string) error {
	servers, err := n.surveyed(ctx)
	if err != nil {
		return err
	}
	if err := autopilot.Guard(servers, id); err != nil {
		return peer.Refusedf("%v", err)
	}
	return nil
}

// surveyed is survey for somebody who waits. A question that was given up says nothing about the
// members.
func (n *Node) surveyed(ctx context.Context) ([]autopilot.Server, error) {
	servers := n.survey(ctx)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%w: %w", kv.ErrUnavailable, context.Cause(ctx))
	}
	return servers, nil
}

// handOver makes a member the leader, or the voter that is the least behind.
func (n *Node) handOver(ctx context.Context, id string, m group.Member) error {
	if m.Self {
		return nil
	}
	servers, err := n.surveyed(ctx)
	if err != nil {
		return err
	}
	if id == "" {
		heir, ok := autopilot.Heir(servers, n.id.ServerID)
		if !ok {
			return peer.Refusedf("no other voter is able to lead")
		}
		m, _ = n.member(heir.ID)
		return n.transfer(ctx, m, "an operator wants it")
	}
	if !m.Voter {
		return peer.Refusedf("server %q has no vote, so it cannot lead", m.ID)
	}
	for _, s := range servers {
		if s.ID != id {
			continue
		}
		if why := autopilot.Fit(s, n.policy()); why != "" {
			return peer.Refusedf("server %q cannot lead now: %s", m.ID, why)
		}
		if s.State == group.Leaving {
			return peer.Refusedf("server %q is on its way out of this cluster", m.ID)
		}
	}
	return n.transfer(ctx, m, "an operator wants it")
}

// Removed returns a channel that is closed when this server has learned that it was taken out of
// the group.
func (n *Node) Removed() <-chan struct{} { return n.out }

// nudge has the leader look after its members now.
func (n *Node) nudge() {
	select {
	case n.nudged <- struct{}{}:
	default: // it is about to
	}
}
