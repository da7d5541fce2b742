package clusterstatus

import (
	"slices"
	"strings"

	"github.com/barque/barque/raftstore"
)

// A former server is one that the cluster had and has no more: its Node is there, as that of a
// server, and it is no member of the store. It was taken out, or the cluster was recovered, or
// began with a backup, without it. That is a state to pass through: it joins again, or an operator
// says that it does not come back by deleting its Node, as for an agent. Servers that were
// started with --no-node have no Node, so nothing is known of those once they are out.

// Former are those of the servers that have a Node which are no members of the store.
func Former(servers []string, members []raftstore.Member, gone map[string]raftstore.Removal) []FormerServer {
	var out []FormerServer
	for _, name := range servers {
		if slices.ContainsFunc(members, func(m raftstore.Member) bool { return m.Name == name }) {
			continue
		}
		f := FormerServer{Name: name}
		for _, r := range gone {
			if r.Name == name && r.At.After(f.At) { // it may have been one more than once
				f.At, f.Why, f.Dropped = r.At, r.Why, r.Dropped
			}
		}
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b FormerServer) int { return strings.Compare(a.Name, b.Name) })
	return out
}
