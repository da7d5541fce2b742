package node

import (
	"io"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// A candidate follows nobody, also when Raft names a leader: that of one who was told to stand for election, and then heard of
// another one that had won, in the same term. It would be named for ever when it dies and no other is elected.
func TestACandidateFollowsNobody(t *testing.T) {
	_, own := raft.NewInmemTransport("a")
	_, winner := raft.NewInmemTransport("b")
	own.Connect("b", winner)
	winner.Connect("a", own)
	config := raft.DefaultConfig()
	config.LocalID, config.LogOutput = "a", io.Discard
	config.HeartbeatTimeout, config.ElectionTimeout = time.Hour, time.Hour // it stands when it is told to, and goes on
	log, snapshots := raft.NewInmemStore(), raft.NewInmemSnapshotStore()
	members := raft.Configuration{Servers: []raft.Server{{ID: "a", Address: "a"}, {ID: "b", Address: "b"}, {ID: "c", Address: "c"}}}
	if err := raft.BootstrapCluster(config, log, log, snapshots, own, members); err != nil {
		t.Fatal(err)
	}
	r, err := raft.NewRaft(config, &raft.MockFSM{}, log, log, snapshots, own)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.Shutdown().Error(); err != nil {
			t.Error(err)
		}
	}()
	header := raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte("b"), Addr: []byte("b")}
	before := r.CurrentTerm()
	if err := winner.TimeoutNow("a", "a", &raft.TimeoutNowRequest{RPCHeader: header}, &raft.TimeoutNowResponse{}); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); r.CurrentTerm() == before; <-time.After(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it does not stand for election: %v in term %d", r.State(), before)
		}
	}
	n := &Node{raft: r}
	if _, id := n.leaderWithID(); id != "" {
		t.Errorf("it follows %q", id)
	}
	word := &raft.AppendEntriesRequest{RPCHeader: header, Term: r.CurrentTerm()}
	if err := winner.AppendEntries("a", "a", word, &raft.AppendEntriesResponse{}); err != nil {
		t.Fatal(err)
	}
	if _, id := r.LeaderWithID(); id != "b" || r.State() != raft.Candidate {
		t.Fatalf("Raft says %v, led by %q: the case has gone, and leaderWithID is not needed", r.State(), id)
	}
	if _, id := n.leaderWithID(); id != "" {
		t.Errorf("it follows %q, against which it stands", id)
	}
}
