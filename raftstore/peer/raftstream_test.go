package peer

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/raftlog"
	"github.com/barque/barque/raftstore/transport/memnet"
)

func (s *RaftStream) acceptedFrom(host string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.accepted[host])
}

// TestRaftConnectionsAreBounded: a server whose Raft takes nothing, because its disk hangs, does
// not pile up the connections of one that tries again and again; and it is there again when the
// disk is.
func TestRaftConnectionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := new(memnet.Network)
		open := func(name string) (*raft.NetworkTransport, *RaftStream) {
			stream := newRaftStream(network.Host(name+":1"), Identity{ClusterID: "test", ServerID: name})
			trans := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
				Stream: stream, MaxPool: 1, Timeout: time.Second, Logger: raftlog.New(slog.New(slog.DiscardHandler)),
				MsgpackUseNewTimeFormat: true,
			})
			t.Cleanup(func() { trans.Close() })
			return trans, stream
		}
		from, _ := open("a")
		to, stream := open("b")
		ask := func() error {
			return from.RequestVote("b", "b:1", &raft.RequestVoteRequest{Term: 1}, new(raft.RequestVoteResponse))
		}
		for range 3 * maxRaftConns {
			if err := ask(); err == nil {
				t.Fatal("a vote of a server whose Raft does nothing")
			}
			if n := stream.acceptedFrom("a"); n > maxRaftConns {
				t.Fatalf("%d connections", n)
			}
		}
		if n := stream.acceptedFrom("a"); n != maxRaftConns {
			t.Errorf("%d connections, want %d", n, maxRaftConns)
		}
		done := make(chan struct{})
		defer close(done)
		go func() { // ends with the test
			for {
				select {
				case rpc := <-to.Consumer():
					rpc.Respond(&raft.RequestVoteResponse{Granted: true}, nil)
				case <-done:
					return
				}
			}
		}()
		synctest.Wait()
		if err := ask(); err != nil {
			t.Errorf("after the hang: %v", err)
		}
		if n := stream.acceptedFrom("a"); n > 2 {
			t.Errorf("%d connections are left", n)
		}

		// Connections whose other end is gone without a word make room.
		from.CloseStreams() // so that it needs a new one
		synctest.Wait()     // until the other end is done with it, too
		gone := network.Host("a:2")
		for range maxRaftConns {
			conn, err := greet(context.Background(), gone, "b:1", ProtoRaft, Identity{ClusterID: "test"})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close() })
		}
		if err := ask(); err == nil {
			t.Error("there was room")
		}
		<-time.After(raftSilence + time.Second)
		ask()
		synctest.Wait()
		if err := ask(); err != nil {
			t.Errorf("silent connections keep a server out: %v", err)
		}
	})
}
