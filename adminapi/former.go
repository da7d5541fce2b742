package adminapi

import (
	"slices"

	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/raftstore"
)

// Leavers finds servers outside the store.
type Leavers struct {
	Store interface {
		Members() []raftstore.Member
		Gone() map[string]raftstore.Removal
		Predecessors() []raftstore.Succession
	}
	Member func(name string) (gossip.Member, bool) // of gossip
	// Marked returns the names of the Nodes that are marked as servers; nil before the Nodes are
	// synced.
	Marked func() []string
}

// IsAgent implements Outsiders.
func (l Leavers) IsAgent(name string) bool {
	m, ok := l.Member(name)
	return ok && m.Role == pki.RoleAgent
}

// IsFormer implements Outsiders. A former server was removed, or still has a Node.
func (l Leavers) IsFormer(name string) bool {
	return slices.Contains(l.Gone(), name) ||
		slices.ContainsFunc(l.Former(), func(f clusterstatus.FormerServer) bool { return f.Name == name })
}

// Former returns the former servers in this server's view; nil before the Nodes are synced.
func (l Leavers) Former() []clusterstatus.FormerServer {
	return clusterstatus.Former(l.Marked(), l.Store.Members(), l.Store.Gone(), l.Store.Predecessors())
}

// Gone are the names of servers that were taken out and have not come back as new ones.
func (l Leavers) Gone() (names []string) {
	members := l.Store.Members()
	for _, r := range l.Store.Gone() {
		if !slices.ContainsFunc(members, func(m raftstore.Member) bool { return m.Name == r.Name }) {
			names = append(names, r.Name)
		}
	}
	return names
}
