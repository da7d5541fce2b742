package rpc

import (
	"context"
	"net"
	"sync"
)

// Handler answers requests of a peer.
type Handler struct {
	// Answer may take its time.
	Answer func(ctx context.Context, kind byte, payload []byte) (byte, []byte)
	// AtOnce answers a request that needs no waiting, and reports whether it has.
	AtOnce func(kind byte, payload []byte) (byte, []byte, bool)
	// TooLarge is the answer in place of one that the peer would not read.
	TooLarge func() (byte, []byte)
	Urgent   Urgent
}

const (
	// maxCalls bounds the open calls of one connection, and maxCallBytes their size. A peer with
	// more calls waits.
	maxCalls     = 8192
	maxCallBytes = 4 * maxFrame
)

// Serve answers the requests on one connection until it breaks, or until ctx ends, and returns why.
func Serve(ctx context.Context, conn net.Conn, handle Handler) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l := newLink(conn)
	stop := context.AfterFunc(ctx, l.sever)
	defer stop()
	open := budget{calls: maxCalls, bytes: maxCallBytes, freed: make(chan struct{}, 1)}
	var running sync.WaitGroup
	running.Go(func() {
		l.write()
		cancel()
	})
	reply := func(f Frame, kind byte, payload []byte) {
		if len(payload) > MaxPayload {
			kind, payload = handle.TooLarge()
		}
		l.sendAs(ctx, handle.Urgent, f.Kind, Frame{Call: f.Call, Kind: kind, Payload: payload})
	}
	why := l.read(func(f Frame) {
		if kind, payload, ok := handle.AtOnce(f.Kind, f.Payload); ok {
			reply(f, kind, payload)
			return
		}
		size := len(f.Payload)
		if !open.take(ctx, size) {
			return
		}
		running.Go(func() { // ends with the connection at the latest, by ctx
			defer open.give(size)
			kind, payload := handle.Answer(ctx, f.Kind, f.Payload)
			reply(f, kind, payload)
		})
	})
	cancel()
	running.Wait()
	return why
}

// budget is the remaining amount of one connection's calls. One goroutine takes, any give.
type budget struct {
	mu           sync.Mutex
	calls, bytes int
	freed        chan struct{} // holds a token when something came back
}

// take waits until there is room for a call. It reports false if ctx ends first.
func (b *budget) take(ctx context.Context, bytes int) bool {
	for {
		b.mu.Lock()
		if b.calls > 0 && b.bytes >= bytes {
			b.calls--
			b.bytes -= bytes
			b.mu.Unlock()
			return true
		}
		b.mu.Unlock()
		select {
		case <-b.freed:
		case <-ctx.Done():
			return false
		}
	}
}

func (b *budget) give(bytes int) {
	b.mu.Lock()
	b.calls++
	b.bytes += bytes
	b.mu.Unlock()
	select {
	case b.freed <- struct{}{}:
	default:
	}
}
