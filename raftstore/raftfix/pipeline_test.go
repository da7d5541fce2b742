package raftfix

import (
	"context"
	"log/slog"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/raftlog"
	"github.com/barque/barque/raftstore/transport/memnet"
)

// TestPipelineSendsWhileNobodyTakesAnswers does as Raft does when it stops to take answers in the
// middle of sending. Raft's own pipeline blocks for ever at the third message.
func TestPipelineSendsWhileNobodyTakesAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := new(memnet.Network)
		transport := func(addr string) *raft.NetworkTransport {
			trans := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
				Stream: newStream(network.Host(addr)), MaxPool: 1, Timeout: time.Second,
				Logger: raftlog.New(slog.New(slog.DiscardHandler)), MsgpackUseNewTimeFormat: true,
			})
			t.Cleanup(func() { trans.Close() })
			return trans
		}
		from, to := transport("a"), transport("b")
		done := make(chan struct{})
		answering := make(chan struct{})
		go func() { // ends with done
			defer close(answering)
			for {
				select {
				case rpc := <-to.Consumer():
					rpc.Respond(&raft.AppendEntriesResponse{}, nil)
				case <-done:
					return
				}
			}
		}()
		raw, err := from.AppendEntriesPipeline("b", "b")
		if err != nil {
			t.Fatal(err)
		}
		p := newPipeline(raw)
		sent := make(chan error, 1)
		go func() { // ends when all is sent, or with the pipeline
			for range 10 {
				if _, err := p.AppendEntries(&raft.AppendEntriesRequest{Term: 1},
					&raft.AppendEntriesResponse{}); err != nil {
					sent <- err
					return
				}
			}
			sent <- nil
		}()
		select {
		case err := <-sent:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(10 * time.Second):
			t.Error("a message waits for somebody to take the answers")
		}
		for range 10 { // and none of them is lost
			if err := (<-p.Consumer()).Error(); err != nil {
				t.Error(err)
			}
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		close(done)
		<-answering
	})
}

// stream is a raft.StreamLayer in memory.
type stream struct {
	net.Listener
	host *memnet.Host
}

func newStream(h *memnet.Host) *stream { return &stream{h.Listener("raft"), h} }

// Dial implements raft.StreamLayer.
func (s *stream) Dial(addr raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return s.host.Dial(ctx, string(addr), "raft")
}
