package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/kv"
)

// Member is one server of the group.
type Member struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	Address string `json:"address"`
	Voter   bool   `json:"voter"`
	Leader  bool   `json:"leader"`
	Self    bool   `json:"self"`
}

// Members returns the members as this server knows them, with the leader marked.
func (n *Node) Members() []Member {
	_, leader := n.raft.LeaderWithID()
	var members []Member
	for _, s := range n.raft.GetConfiguration().Configuration().Servers {
		id := string(s.ID)
		name := id
		if i := strings.LastIndexByte(id, '.'); i > 0 {
			name = id[:i]
		}
		members = append(members, Member{
			ID: id, Name: name, Address: string(s.Address), Voter: s.Suffrage == raft.Voter,
			Leader: s.ID == leader, Self: id == n.id.ServerID,
		})
	}
	return members
}

func (n *Node) voters() int {
	voters := 0
	for _, m := range n.Members() {
		if m.Voter {
			voters++
		}
	}
	return voters
}

func (n *Node) member(id string) (Member, bool) {
	for _, m := range n.Members() {
		if m.ID == id {
			return m, true
		}
	}
	return Member{}, false
}

// Change is a change of the members.
type Change struct {
	Kind    ChangeKind `json:"kind"`
	ID      string     `json:"id"`
	Address string     `json:"address,omitempty"`
	// Forwarded marks a joiner's wish that was passed on once; it is not passed on again.
	Forwarded bool `json:"forwarded,omitempty"`
}

// ChangeKind tells changes apart. All of them may be repeated without harm.
type ChangeKind string

const (
	// AddMember makes a server a member without a vote, or gives a member a new address.
	AddMember ChangeKind = "add"
	// PromoteMember gives a member a vote.
	PromoteMember ChangeKind = "promote"
	// RemoveMember takes a server out of the group.
	RemoveMember ChangeKind = "remove"
	// TransferLeadership makes a member the leader; any voter when ID is empty.
	TransferLeadership ChangeKind = "transfer"
)

// Apply makes the change, wherever the leader is. It fails with a *RefusedError that says why,
// with ErrUnavailable, or with ErrUnknownOutcome.
func (n *Node) Apply(ctx context.Context, c Change) error {
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

func (n *Node) applyAt(ctx context.Context, addr string, c Change) error {
	payload, err := json.Marshal(c)
	if err != nil {
		return err
	}
	f, err := n.peers.to(addr).call(ctx, callMembers, payload)
	if err != nil {
		return n.callError(err, kv.ErrUnknownOutcome)
	}
	if f.kind != answerOK {
		return answerError(f)
	}
	return nil
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
		err = n.applyAt(limited, addr, Change{Kind: AddMember, ID: n.id.ServerID, Address: n.cfg.Stream.Addr()})
		cancel()
		var refused *RefusedError
		if err == nil || errors.As(err, &refused) || ctx.Err() != nil {
			return err
		}
		n.cfg.Logger.Debug("cannot join by this server", "address", addr, "err", err)
	}
	return err
}

// handleMembers answers another server's wish. A joiner does not know who leads, so that one is
// passed on, once.
func (n *Node) handleMembers(ctx context.Context, payload []byte) (byte, []byte) {
	var c Change
	if err := json.Unmarshal(payload, &c); err != nil {
		return answerRefused, []byte(err.Error())
	}
	if _, local, err := n.leader(); err != nil || c.Forwarded && !local {
		return refuse(errNoLeader)
	}
	if err := n.Apply(ctx, c); err != nil {
		return refuse(err)
	}
	return answerOK, nil
}

// change makes the change on the leader.
func (n *Node) change(ctx context.Context, c Change) error {
	n.changing.Lock()
	defer n.changing.Unlock()
	if n.leadership.term() == 0 {
		return errNoLeader
	}
	m, known := n.member(c.ID)
	if !known && c.Kind != AddMember && !(c.Kind == TransferLeadership && c.ID == "") {
		if c.Kind == RemoveMember {
			return nil
		}
		return refused("there is no server %q in this cluster", c.ID)
	}
	n.cfg.Logger.Info("members change", "change", c.Kind, "server", c.ID, "address", c.Address)
	var future interface{ Error() error }
	switch c.Kind {
	case AddMember:
		if err := n.checkAddress(c); err != nil {
			return err
		}
		if known && m.Address == c.Address {
			return nil
		}
		future = n.setMember(c.ID, c.Address, known && m.Voter)
	case PromoteMember:
		if m.Voter {
			return nil
		}
		future = n.setMember(c.ID, m.Address, true)
	case RemoveMember:
		if err := n.checkRemoval(ctx, m); err != nil {
			return err
		}
		if m.Self {
			// Another leader removes this server better than it does itself.
			if err := n.raft.LeadershipTransfer().Error(); err != nil {
				return fmt.Errorf("%w: hand leadership over before this server leaves: %w", kv.ErrUnavailable, err)
			}
			return errNoLeader
		}
		future = n.raft.RemoveServer(raft.ServerID(c.ID), 0, n.cfg.Timeouts.Call)
	case TransferLeadership:
		return n.transfer(m)
	default:
		return refused("this server does not know the change %q", c.Kind)
	}
	if err := future.Error(); err != nil {
		return proposeError(err)
	}
	return nil
}

func refused(format string, args ...any) error {
	return &RefusedError{Reason: fmt.Sprintf(format, args...)}
}

func (n *Node) setMember(id, addr string, voter bool) raft.IndexFuture {
	if voter {
		return n.raft.AddVoter(raft.ServerID(id), raft.ServerAddress(addr), 0, n.cfg.Timeouts.Call)
	}
	return n.raft.AddNonvoter(raft.ServerID(id), raft.ServerAddress(addr), 0, n.cfg.Timeouts.Call)
}

func (n *Node) checkAddress(c Change) error {
	if c.ID == "" || c.Address == "" {
		return refused("a new member needs an ID and an address")
	}
	for _, m := range n.Members() {
		if m.Address == c.Address && m.ID != c.ID {
			return refused("the address %s belongs to server %q: remove that one first if it is gone for good", m.Address, m.ID)
		}
	}
	return nil
}

// checkRemoval refuses to remove a voter when those that stay and answer are no quorum.
func (n *Node) checkRemoval(ctx context.Context, m Member) error {
	if !m.Voter {
		return nil
	}
	voters, alive := 0, 0
	for _, p := range n.PeerStatus(ctx) {
		if p.Member.Voter && p.Member.ID != m.ID {
			voters++
			if p.Status != nil {
				alive++
			}
		}
	}
	switch {
	case voters == 0:
		return refused("server %q is the only voter: the cluster would be gone. Stop it instead", m.ID)
	case alive < voters/2+1:
		return refused("only %d of the %d voters that would stay answer, and they need %d to agree on anything: "+
			"bring servers back, or let new ones join, before you remove %q", alive, voters, voters/2+1, m.ID)
	}
	return nil
}

func (n *Node) transfer(m Member) error {
	var err error
	switch {
	case m.ID == "":
		err = n.raft.LeadershipTransfer().Error()
	case m.Self:
		return nil
	case !m.Voter:
		return refused("server %q has no vote, so it cannot lead", m.ID)
	default:
		err = n.raft.LeadershipTransferToServer(raft.ServerID(m.ID), raft.ServerAddress(m.Address)).Error()
	}
	if err != nil {
		return fmt.Errorf("%w: transfer leadership: %w", kv.ErrUnavailable, err)
	}
	return nil
}

const (
	promoteEvery = 200 * time.Millisecond
	// caughtUp is how many entries a server may lag behind and count as caught up.
	caughtUp = 64
)

// promoteWhileLeading gives votes to the members that have none, once they have kept up for a
// while, and closes the links to servers that are members no more. It ends with the tenure.
func (n *Node) promoteWhileLeading(ctx context.Context) {
	since := make(map[string]time.Time)
	ticker := time.NewTicker(promoteEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		members := n.Members()
		n.peers.keep(members)
		for _, m := range members {
			if m.Voter || !n.keepsUp(ctx, m) {
				delete(since, m.ID)
				continue
			}
			if _, ok := since[m.ID]; !ok {
				since[m.ID] = time.Now()
			}
			if time.Since(since[m.ID]) < n.cfg.Timeouts.PromoteAfter {
				continue
			}
			if err := n.change(ctx, Change{Kind: PromoteMember, ID: m.ID}); err != nil {
				n.cfg.Logger.Warn("could not give a server its vote", "server", m.ID, "err", err)
			}
		}
	}
}

func (n *Node) keepsUp(ctx context.Context, m Member) bool {
	status, err := n.ask(ctx, m.Address)
	return err == nil && status.ID == m.ID && status.Quarantined == "" && status.AppliedIndex+caughtUp >= n.raft.LastIndex()
}

// addressEvery is how often a server compares the address at which the others know it.
const addressEvery = 2 * time.Second

// keepAddress sees to it that the others know this server's address when it has changed. It ends
// with the node.
func (n *Node) keepAddress() {
	ticker := time.NewTicker(addressEvery)
	defer ticker.Stop()
	for {
		if m, ok := n.member(n.id.ServerID); ok && m.Address != n.cfg.Stream.Addr() {
			ctx, cancel := context.WithTimeout(n.ctx, n.cfg.Timeouts.Call)
			if err := n.Apply(ctx, Change{Kind: AddMember, ID: m.ID, Address: n.cfg.Stream.Addr()}); err != nil {
				n.cfg.Logger.Warn("the other servers do not know this server's new address yet",
					"old", m.Address, "new", n.cfg.Stream.Addr(), "err", err)
			}
			cancel()
		}
		select {
		case <-n.ctx.Done():
			return
		case <-ticker.C:
		}
	}
}
