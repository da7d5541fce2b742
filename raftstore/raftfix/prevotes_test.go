package raftfix

import (
	"testing"

	"github.com/hashicorp/raft"
)

// TestAVoteIsPromisedOnce: s1 has voted for s0 in term 2. s2, which has not heard of that, asks
// whether to campaign for the same term.
func TestAVoteIsPromisedOnce(t *testing.T) {
	f := newFollower(t)
	servers := raft.Configuration{
		Servers: []raft.Server{{ID: "s0", Address: "s0"}, {ID: "s1", Address: "s1"}, {ID: "s2", Address: "s2"}}}
	members := &raft.Log{Index: 2, Term: 1, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(servers)}
	f.must(f.append(1, 1, 1, 2, members))
	header := func(server string) raft.RPCHeader {
		return raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(server), Addr: []byte(server)}
	}
	promised := func(server string, term uint64) (bool, uint64) {
		t.Helper()
		var answer raft.RequestPreVoteResponse
		m := raft.RequestPreVoteRequest{RPCHeader: header(server), Term: term, LastLogIndex: 2, LastLogTerm: 1}
		if err := f.leader.RequestPreVote("s1", "s1", &m, &answer); err != nil {
			t.Fatal(err)
		}
		return answer.Granted, answer.Term
	}
	var vote raft.RequestVoteResponse
	m := raft.RequestVoteRequest{RPCHeader: header("s0"), Term: 2, LastLogIndex: 2, LastLogTerm: 1,
		LeadershipTransfer: true}
	if err := f.leader.RequestVote("s1", "s1", &m, &vote); err != nil || !vote.Granted {
		t.Fatalf("s1 does not vote for s0: %v", err)
	}
	if got, term := promised("s2", 2); got || term != 2 {
		t.Errorf("s1 has voted for s0, and its promise to s2 for term 2 is %v, with the term %d", got, term)
	}
	if got, _ := promised("s0", 2); !got {
		t.Error("s1 does not promise s0 the vote that it has given it")
	}
	if got, _ := promised("s2", 3); !got {
		t.Error("a vote of term 2 counts in term 3")
	}
}
