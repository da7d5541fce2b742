package raftfix

import (
	"bytes"

	"github.com/hashicorp/raft"
)

// Raft's keys of the last vote, as in its file raft.go.
var (
	keyLastVoteTerm = []byte("LastVoteTerm")
	keyLastVoteCand = []byte("LastVoteCand")
)

// voted returns whether this server has given its vote to another candidate in the term for which a
// server campaigns. Raft (1.8.0) encourages that server all the same: a pre-vote is to be what the
// vote would be (Raft thesis, section 9.6), and Raft looks only at terms and logs. The server then
// votes for itself, and is lost as a voter for the candidate that nearly won. With three servers
// two such candidates share the votes until one of them times out first.
//
// The vote of a message that Raft has not handled yet counts too.
func (f *Filter) voted(m *raft.RequestPreVoteRequest, stopped <-chan struct{}) bool {
	f.awaitRaft(nil, stopped)
	term, err := f.votes.GetUint64(keyLastVoteTerm)
	if err != nil || term < m.Term { // an error: it has never voted
		return false
	}
	candidate, err := f.votes.Get(keyLastVoteCand)
	return err == nil && !bytes.Equal(candidate, m.Addr)
}
