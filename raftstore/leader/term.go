package leader

import (
	"context"
	"errors"

	"github.com/barque/barque/raftstore/kv"
)

// ErrEnded is the cause of a leadership context that has ended because this server is no longer the
// leader.
var ErrEnded = errors.New("this server does not lead any more")

// endedError is an ErrEnded with a reason.
type endedError struct{ why string }

func (e *endedError) Error() string { return ErrEnded.Error() + ": " + e.why }

// Unwrap makes it an ErrEnded.
func (e *endedError) Unwrap() error { return ErrEnded }

// term is one term in which Raft has this server for the leader.
//
//	follower ──elected──▶ elected ──its first entry is applied──▶ leading
//	    ▲                    │                                      │
//	    └────────────────────┴───────────deposed or closed──────────┘
//
// Only in the state leading are all entries applied that earlier leaders acknowledged.
type term struct {
	ctx    context.Context // ends with it
	end    context.CancelCauseFunc
	number uint64 // 0 until it is leading; guarded by Leadership.mu
}

// notifyAll wakes the callers that wait for a change. The caller holds mu.
func (l *Leadership) notifyAll() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// elected begins a term and serves it, in a goroutine that ends with it. Nothing begins after
// Close, nor while a term lasts.
func (l *Leadership) elected(parent context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.current != nil {
		return
	}
	t := &term{}
	t.ctx, t.end = context.WithCancelCause(parent)
	l.current = t
	l.running.Go(func() { l.serve(t) })
}

func (l *Leadership) leading(t *term, number uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.current == t {
		t.number = number
		l.opts.Logger.Info("this server leads", "term", number)
		l.notifyAll()
	}
}

// Depose ends the term in which this server leads, if it does.
func (l *Leadership) Depose(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t := l.current; t != nil {
		l.current = nil
		t.end(cause)
		if t.number != 0 {
			reason := cause.Error()
			if ended, ok := errors.AsType[*endedError](cause); ok {
				reason = ended.why
			}
			l.opts.Logger.Info("this server does not lead any more", "term", t.number, "reason", reason)
			l.parts.Elections.Lost(t.number, reason) // does not block, nor call back
		}
		l.notifyAll()
	}
}

// Close ends the term, and lets no other begin.
func (l *Leadership) Close() {
	l.Depose(kv.ErrClosed)
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.closed = true
		l.notifyAll()
	}
}

// Term returns the term in which this server is leading, or 0.
func (l *Leadership) Term() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.current == nil {
		return 0
	}
	return l.current.number
}

// Await waits until this server is leading. The context that it returns is derived from ctx.
func (l *Leadership) Await(ctx context.Context) (context.Context, uint64, error) {
	for {
		l.mu.Lock()
		t, changed, closed := l.current, l.changed, l.closed
		var number uint64
		if t != nil {
			number = t.number
		}
		l.mu.Unlock()
		if closed {
			return nil, 0, kv.ErrClosed
		}
		if number != 0 && t.ctx.Err() == nil {
			return during(ctx, t.ctx), number, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, 0, context.Cause(ctx)
		}
	}
}

// during derives a context from ctx that ends with the term as well.
func during(ctx, term context.Context) context.Context {
	leading, end := context.WithCancelCause(ctx)
	detach := context.AfterFunc(term, func() { end(context.Cause(term)) })
	context.AfterFunc(leading, func() { detach() })
	return leading
}
