package node

import (
	"context"
	"fmt"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/kv"
)

// questions are what Raft was asked, and nobody waits for any more. Raft answers each for as long
// as it runs, but while it writes to the log it hears none: with a disk that hangs the answer takes
// as long as that does.
type questions struct {
	mu     sync.Mutex
	closed bool
	open   sync.WaitGroup
}

// ask waits for Raft's answer, no longer than ctx. What was asked may be done after that.
func (q *questions) ask(ctx context.Context, question func() raft.Future) error {
	select {
	case err := <-q.begin(question):
		return err
	case <-ctx.Done():
		return fmt.Errorf("no answer yet, as when the disk hangs; it may still be done: %w", context.Cause(ctx))
	}
}

// begin asks, and returns where the answer comes.
func (q *questions) begin(question func() raft.Future) <-chan error {
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

// close waits for the answers. Raft must still run.
func (q *questions) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.open.Wait()
}
