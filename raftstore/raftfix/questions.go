package raftfix

import (
	"context"
	"fmt"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/kv"
)

// Questions tracks Raft futures whose callers may have given up. Raft answers each while it runs,
// but not during a write to the log: with a hanging disk the answer takes as long as that
// (TestTransferWhileTheDiskHangs of package node).
type Questions struct {
	mu     sync.Mutex
	closed bool
	open   sync.WaitGroup
}

// Ask waits for Raft's answer, no longer than ctx. The request may still take effect after that.
func (q *Questions) Ask(ctx context.Context, question func() raft.Future) error {
	select {
	case err := <-q.Begin(question):
		return err
	case <-ctx.Done():
		return fmt.Errorf("no answer yet, as when the disk hangs; it may still be done: %w", context.Cause(ctx))
	}
}

// Begin asks, and returns where the answer comes.
func (q *Questions) Begin(question func() raft.Future) <-chan error {
	answer := make(chan error, 1)
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		answer <- kv.ErrClosed
	} else {
		q.open.Go(func() { answer <- question().Error() })
	}
	return answer
}

// Close waits for the answers. Raft must still run.
func (q *Questions) Close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.open.Wait()
}
