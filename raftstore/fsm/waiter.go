package fsm

import (
	"context"
	"sync"
)

// Waiter lets goroutines wait until the machine has applied a log index. The zero value is ready.
type Waiter struct {
	mu    sync.Mutex
	index uint64
	ch    chan struct{}
}

func (w *Waiter) reach(index uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.index = index
	if w.ch != nil {
		close(w.ch)
		w.ch = nil
	}
}

// Wait returns when the index is applied, or with the context's cause.
func (w *Waiter) Wait(ctx context.Context, index uint64) error {
	for {
		w.mu.Lock()
		if w.index >= index {
			w.mu.Unlock()
			return nil
		}
		if w.ch == nil {
			w.ch = make(chan struct{})
		}
		ch := w.ch
		w.mu.Unlock()
		select {
		case <-ch:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
