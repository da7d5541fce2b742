package raftfix

import (
	"sync"

	"github.com/hashicorp/raft"
)

// heartbeats is Raft's transport. With it, Raft handles no heartbeat after its end.
//
// Raft's transport hands heartbeats to Raft past its queue, on a goroutine that Raft (1.8.0) does
// not wait for when it stops. A heartbeat of a new term writes the term to the log. The log may be
// closed then, and Raft panics on the error.
type heartbeats struct {
	Transport
	mu      sync.Mutex
	closed  bool
	handled sync.WaitGroup
}

// AwaitHeartbeats returns a transport whose end waits for the heartbeats that Raft handles.
func AwaitHeartbeats(inner Transport) Transport { return &heartbeats{Transport: inner} }

// SetHeartbeatHandler implements raft.Transport.
func (h *heartbeats) SetHeartbeatHandler(handle func(raft.RPC)) {
	if handle == nil {
		h.Transport.SetHeartbeatHandler(nil)
		return
	}
	h.Transport.SetHeartbeatHandler(func(rpc raft.RPC) {
		if !h.enter() {
			rpc.Respond(nil, raft.ErrTransportShutdown)
			return
		}
		defer h.handled.Done()
		handle(rpc)
	})
}

// enter returns false when the transport is closed. Otherwise the caller calls handled.Done.
func (h *heartbeats) enter() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return false
	}
	h.handled.Add(1)
	return true
}

// Close implements raft.WithClose. Raft calls it when it has stopped.
func (h *heartbeats) Close() error {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	err := h.Transport.Close()
	h.handled.Wait()
	return err
}
