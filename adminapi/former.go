package adminapi

import (
	"slices"

	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/raftstore"
)

// Leavers knows those that are no members of the store, or no more.
type Leavers struct {
	Store interface {
		Members() []raftstore.Member
		Gone() map[string]raftstore.Removal
	}
	Member func(name string) (gossip.Member, bool) // of gossip
	// Marked are the names of the Nodes that are marked as servers'; none before the Nodes are
	// known.
	Marked func() []string
}

// IsAgent implements Outsiders.
func (l Leavers) IsAgent(name string) bool {
	m, ok := l.Member(name)
	return ok && m.Role == pki.RoleAgent
}

// IsFormer implements Outsiders: the server was taken out, or its Node is there yet.
func (l Leavers) IsFormer(name string) bool {
	return slices.Contains(l.Gone(), name) ||
		slices.ContainsFunc(l.Former(), func(f clusterstatus.FormerServer) bool { return f.Name == name })
}

// Former are the former servers as this server knows them; none before it knows the Nodes.
func (l Leavers) Former() []clusterstatus.FormerServer {
	return clusterstatus.Former(l.Marked(), l.Store.Members(), l.Store.Gone())
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
