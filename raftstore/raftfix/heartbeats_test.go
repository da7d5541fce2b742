package raftfix

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/raft"
)

// directTransport hands heartbeats to Raft as Raft's network transport does.
type directTransport struct {
	*raft.InmemTransport
	heartbeat func(raft.RPC)
}

func (d *directTransport) SetHeartbeatHandler(handle func(raft.RPC)) { d.heartbeat = handle }

// TestTheEndWaitsForHeartbeats: the owner of a log closes it after Raft's end. A heartbeat that is
// still handled then would write to it.
func TestTheEndWaitsForHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, inmem := raft.NewInmemTransport("s1")
		network := &directTransport{InmemTransport: inmem}
		transport := AwaitHeartbeats(network)
		disk, answers := make(chan struct{}), make(chan raft.RPCResponse, 2)
		open, written := true, 0
		transport.SetHeartbeatHandler(func(rpc raft.RPC) {
			<-disk
			if !open {
				t.Error("a heartbeat is handled after the end")
			}
			written++
			rpc.Respond(&raft.AppendEntriesResponse{}, nil)
		})
		deliver := func() { network.heartbeat(raft.RPC{Command: &raft.AppendEntriesRequest{}, RespChan: answers}) }
		go deliver() // ends with the answer
		synctest.Wait()
		ended := make(chan error, 1)
		go func() { // ends with the heartbeat
			err := transport.Close()
			open = false
			ended <- err
		}()
		synctest.Wait()
		close(disk)
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		if answer := <-answers; answer.Error != nil || written != 1 {
			t.Errorf("the heartbeat under way: %v, written %d times", answer.Error, written)
		}
		deliver()
		if answer := <-answers; !errors.Is(answer.Error, raft.ErrTransportShutdown) || written != 1 {
			t.Errorf("a heartbeat after the end: %v, written %d times", answer.Error, written)
		}
	})
}
