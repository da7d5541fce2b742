package raftfix

import "github.com/hashicorp/raft"

// Leader returns the leader that a server follows, or is; empty if unknown, as for a candidate.
// Raft itself names a leader whose message comes during a campaign by request. It continues the
// campaign. If the leader dies and no other one is elected, Raft names it forever
// (TestACandidateFollowsNobody of package node). An observer is notified again of the same leader
// when it is followed.
func Leader(r interface {
	State() raft.RaftState
	LeaderWithID() (raft.ServerAddress, raft.ServerID)
}) (raft.ServerAddress, raft.ServerID) {
	if r.State() == raft.Candidate {
		return "", ""
	}
	return r.LeaderWithID()
}
