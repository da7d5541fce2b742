package raftfix

import "github.com/hashicorp/raft"

// Leader returns the leader that a server follows, or is; empty while it knows of none, as a
// candidate does. Raft itself names a leader whose message comes while the server campaigns as it
// was told to: it goes on with that, and when the leader dies and no other one is elected, Raft
// names it for ever (TestACandidateFollowsNobody of package node). An observer is told again of the
// same leader when it is followed.
func Leader(r interface {
	State() raft.RaftState
	LeaderWithID() (raft.ServerAddress, raft.ServerID)
}) (raft.ServerAddress, raft.ServerID) {
	if r.State() == raft.Candidate {
		return "", ""
	}
	return r.LeaderWithID()
}
