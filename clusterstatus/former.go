package clusterstatus

import (
	"slices"
	"strings"
	"time"

	"github.com/barque/barque/raftstore"
)

// A former server is no member of the store any more, but still has a server's Node. It was
// removed, or the cluster was recovered or restored from a backup without it. The state ends when
// it joins again, or when an operator deletes its Node because it does not come back. A former
// server that ran with --no-node has no Node and does not appear.

// Former returns the servers that have a Node and are no members of the store. successions are
// those by which this cluster came to be. A recovery or a restore notes no removals: a server that
// had joined again after a removal, and was left out by a later succession, has the same traces as
// one that had not.
func Former(
	servers []string, members []raftstore.Member, gone map[string]raftstore.Removal, successions []raftstore.Succession,
) []FormerServer {
	var last time.Time
	for _, s := range successions {
		if s.At.After(last) {
			last = s.At
		}
	}
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
		if !f.At.IsZero() && last.After(f.At) {
			f.Succession = last
		}
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b FormerServer) int { return strings.Compare(a.Name, b.Name) })
	return out
}
