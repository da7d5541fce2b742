package node

import (
	"context"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/autopilot"
	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/kv"
)

// Members returns the members in this server's view, with the leader marked.
func (n *Node) Members() []group.Member {
	_, leader := n.raft.leader()
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

// Apply makes a change of the members, wherever the leader is, and waits until it is done: see
// autopilot.Manager.
func (n *Node) Apply(ctx context.Context, c autopilot.Change) error { return n.autopilot.Apply(ctx, c) }

// Join asks the servers at the addresses, one after the other, to make this server a member.
func (n *Node) Join(ctx context.Context, addrs []string) error { return n.autopilot.Join(ctx, addrs) }

// Removed returns a channel that is closed when this server has learned that it was taken out of
// the group.
func (n *Node) Removed() <-chan struct{} { return n.autopilot.Out() }

// Leaving reports whether a member's removal is recorded, in this server's view.
func (n *Node) Leaving(id string) bool { return n.decision(id).State == group.Leaving }

// Gone returns the removed servers, by ID, in this server's view.
func (n *Node) Gone() map[string]group.Removal {
	gone := make(map[string]group.Removal)
	for id, s := range group.Decisions(n.state.Latest()) {
		if s.State == group.Removed || s.State == group.Dropped {
			gone[id] = s.Removal()
		}
	}
	return gone
}

// decision returns the decision about a server, or about this one, in this server's state.
func (n *Node) decision(id string) group.Decision { return group.DecisionOf(n.state.Latest(), id) }

// Predecessors returns the clusters that this one replaces, in this server's view.
func (n *Node) Predecessors() []group.Succession { return group.Predecessors(n.state.Latest()) }

// Succeed returns the operation that records that this cluster replaces another one.
func (n *Node) Succeed(cluster string) (kv.Op, error) {
	return group.Succession{Cluster: cluster, Successor: n.id.ClusterID, By: n.id.ServerID, At: n.cfg.Now().UTC()}.Op()
}
