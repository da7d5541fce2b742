package rpc

import (
	"bufio"
	"context"
	"encoding/binary"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// frameStall bounds the time for the rest of a message, and the time in which a peer takes no
// bytes.
const frameStall = 30 * time.Second

// Link is one connection, with a goroutine that writes and one that reads. A caller with a small
// message for an idle link writes it itself, without the other goroutine.
type Link struct {
	conn net.Conn
	out  chan Frame
	mu   sync.Mutex // held to write
	w    *bufio.Writer
	by   time.Time     // the deadline of writes
	done chan struct{} // closed when the link is broken
	once sync.Once

	began time.Time
	heard atomic.Int64 // when something was read last: time.Duration since began
}

func newLink(conn net.Conn) *Link {
	return &Link{
		conn: conn, out: make(chan Frame, 256), w: bufio.NewWriterSize(conn, 64<<10), done: make(chan struct{}),
		began: time.Now(),
	}
}

// Done returns a channel that is closed when the link is broken.
func (l *Link) Done() <-chan struct{} { return l.done }

// Heard returns a number that changes with each message of the peer.
func (l *Link) Heard() int64 { return l.heard.Load() }

// Ping asks for a word, and does not wait.
func (l *Link) Ping() {
	select {
	case l.out <- Frame{Kind: Ping}: // numbered 0: no call waits for the answer
	default: // the link is clogged, which is silence as well
	}
}

// quiet is the time since the last message over the link.
func (l *Link) quiet() time.Duration { return time.Since(l.began) - time.Duration(l.heard.Load()) }

func (l *Link) sever() {
	l.once.Do(func() {
		close(l.done)
		l.conn.Close()
	})
}

// write sends queued frames, and flushes when no more wait. It ends with the link.
func (l *Link) write() {
	defer l.sever()
	for {
		select {
		case f := <-l.out:
			l.mu.Lock()
			err := l.writeLocked(f)
			l.mu.Unlock()
			if err != nil {
				return
			}
		case <-l.done:
			return
		}
	}
}

func (l *Link) writeLocked(f Frame) error {
	if now := time.Now(); l.by.Sub(now) < frameStall {
		l.by = now.Add(2 * frameStall)
		if err := l.conn.SetWriteDeadline(l.by); err != nil {
			return err
		}
	}
	if err := writeFrame(l.w, f); err != nil {
		return err
	}
	if len(l.out) > 0 {
		return nil // the writing goroutine also sends the buffer
	}
	return l.w.Flush()
}

// maxDirect is the largest payload that bypasses the writing goroutine. It fits into the kernel's
// buffer, unless the link is clogged.
const maxDirect = 256

// sendNow is send for small messages that others wait for. It may block until a clogged link is
// severed. The goroutine that reads answers must not call it: if both ends of a link waited to
// write, none would read.
func (l *Link) sendNow(ctx context.Context, f Frame) error {
	if len(f.Payload) > maxDirect || len(l.out) > 0 || !l.mu.TryLock() {
		return l.send(ctx, f)
	}
	err := l.writeLocked(f)
	l.mu.Unlock()
	if err != nil {
		l.sever() // some of it may have gone
	}
	return err
}

// read hands each frame to handle. It ends with the link, and ends it, and returns why.
func (l *Link) read(handle func(Frame)) error {
	defer l.sever()
	r := bufio.NewReaderSize(l.conn, 64<<10)
	for {
		f, err := l.next(r)
		if err != nil {
			return err
		}
		l.heard.Store(int64(time.Since(l.began)))
		handle(f)
	}
}

// next waits for a frame without a limit, but not for the rest of one that has begun.
func (l *Link) next(r *bufio.Reader) (Frame, error) {
	if _, err := r.Peek(1); err != nil {
		return Frame{}, err
	}
	if n := r.Buffered(); n >= 4 {
		head, err := r.Peek(4)
		if err != nil {
			return Frame{}, err
		}
		if uint64(n) >= 4+uint64(binary.LittleEndian.Uint32(head)) {
			return readFrame(r) // it is all here
		}
	}
	if err := l.conn.SetReadDeadline(time.Now().Add(frameStall)); err != nil {
		return Frame{}, err
	}
	f, err := readFrame(r)
	if err != nil {
		return Frame{}, err
	}
	return f, l.conn.SetReadDeadline(time.Time{})
}

func (l *Link) send(ctx context.Context, f Frame) error {
	select {
	case l.out <- f:
		return nil
	case <-l.done:
		return ErrNotSent
	case <-ctx.Done():
		return ErrNotSent
	}
}

// Urgent selects the kinds of requests that are sent at once, with their answers. Others are
// batched under load. nil: none.
type Urgent func(kind byte) bool

// sendAs sends a request of a kind, or the answer to one, as suits it.
func (l *Link) sendAs(ctx context.Context, urgent Urgent, kind byte, f Frame) error {
	if urgent != nil && urgent(kind) {
		return l.sendNow(ctx, f)
	}
	return l.send(ctx, f)
}
