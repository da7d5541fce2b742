package node

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// The protocol between servers beside Raft's own: frames on one connection, many calls at a time.
//
//	frame = length(4) call(8) kind(1) payload
//
// length counts what follows it. The answer to a call carries its number.

const (
	frameHead = 8 + 1
	maxFrame  = 16 << 20 // far above the largest transaction that the store's limits allow
	// trustedBytes are those for which memory is taken before they are here.
	trustedBytes = 256 << 10
	// frameStall is how long the rest of a message may take, and how long a peer may take none of what is sent to it.
	frameStall = 30 * time.Second
)

// errNotSent is returned by call when the request has certainly not reached the peer.
var errNotSent = errors.New("request was not sent")

// frame is one message.
type frame struct {
	call    uint64
	kind    byte
	payload []byte
}

// errFrameTooLarge is returned for what the peer would not read.
var errFrameTooLarge = fmt.Errorf("message of more than %d bytes for another server", maxFrame)

// readFrame takes memory as the bytes arrive, and not because the length announces them.
func readFrame(r io.Reader) (frame, error) {
	var head [4 + frameHead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return frame{}, err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n < frameHead || n > maxFrame {
		return frame{}, fmt.Errorf("message of %d bytes from another server, the limit is %d", n, maxFrame)
	}
	f := frame{call: binary.LittleEndian.Uint64(head[4:]), kind: head[12]}
	size := int(n - frameHead)
	f.payload = make([]byte, min(size, trustedBytes))
	for read := 0; ; {
		got, err := io.ReadFull(r, f.payload[read:])
		if read += got; err != nil {
			return frame{}, err
		}
		if read == size {
			return f, nil
		}
		larger := make([]byte, min(size, 2*read))
		copy(larger, f.payload)
		f.payload = larger
	}
}

func writeFrame(w *bufio.Writer, f frame) error {
	var head [4 + frameHead]byte
	binary.LittleEndian.PutUint32(head[:], uint32(frameHead+len(f.payload)))
	binary.LittleEndian.PutUint64(head[4:], f.call)
	head[12] = f.kind
	if _, err := w.Write(head[:]); err != nil {
		return err
	}
	_, err := w.Write(f.payload)
	return err
}

// link is one connection, with a goroutine that writes and one that reads. Whoever has a small message for a
// link that is idle writes it by itself, which spares it the way through the other goroutine.
type link struct {
	conn net.Conn
	out  chan frame
	mu   sync.Mutex // held to write
	w    *bufio.Writer
	by   time.Time     // the deadline of writes
	done chan struct{} // closed when the link is broken
	once sync.Once

	began time.Time
	heard atomic.Int64 // when something was read last: time.Duration since began
}

func newLink(conn net.Conn) *link {
	return &link{
		conn: conn, out: make(chan frame, 256), w: bufio.NewWriterSize(conn, 64<<10), done: make(chan struct{}), began: time.Now(),
	}
}

// quiet is how long nothing has been heard over the link.
func (l *link) quiet() time.Duration { return time.Since(l.began) - time.Duration(l.heard.Load()) }

func (l *link) sever() {
	l.once.Do(func() {
		close(l.done)
		l.conn.Close()
	})
}

// write sends what comes in, and flushes when nothing more waits. It ends with the link.
func (l *link) write() {
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

func (l *link) writeLocked(f frame) error {
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
		return nil // the goroutine that writes takes what is in the buffer along
	}
	return l.w.Flush()
}

// maxDirect is the largest payload that is not left to the goroutine that writes. It fits into what the kernel
// takes at once, unless the link is clogged.
const maxDirect = 256

// sendNow is send for small messages that others wait for. It may wait for the network as long as it takes
// until a link that is clogged is severed. It is not for the goroutine that reads answers: if both ends of a
// link waited to write, none would read.
func (l *link) sendNow(ctx context.Context, f frame) error {
	if len(f.payload) > maxDirect || len(l.out) > 0 || !l.mu.TryLock() {
		return l.send(ctx, f)
	}
	err := l.writeLocked(f)
	l.mu.Unlock()
	if err != nil {
		l.sever() // some of it may have gone
	}
	return err
}

// read hands each frame to handle. It ends with the link, and ends it, and tells why.
func (l *link) read(handle func(frame)) error {
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

// next waits for a frame as long as it takes, but not for the rest of one that has begun.
func (l *link) next(r *bufio.Reader) (frame, error) {
	if _, err := r.Peek(1); err != nil {
		return frame{}, err
	}
	if n := r.Buffered(); n >= 4 {
		head, err := r.Peek(4)
		if err != nil {
			return frame{}, err
		}
		if uint64(n) >= 4+uint64(binary.LittleEndian.Uint32(head)) {
			return readFrame(r) // it is all here
		}
	}
	if err := l.conn.SetReadDeadline(time.Now().Add(frameStall)); err != nil {
		return frame{}, err
	}
	f, err := readFrame(r)
	if err != nil {
		return frame{}, err
	}
	return f, l.conn.SetReadDeadline(time.Time{})
}

func (l *link) send(ctx context.Context, f frame) error {
	select {
	case l.out <- f:
		return nil
	case <-l.done:
		return errNotSent
	case <-ctx.Done():
		return errNotSent
	}
}

// sendAs sends a request of a kind, or the answer to one, as suits it: writes come in numbers, and are better
// sent together; one question for a read stands for many readers.
func (l *link) sendAs(ctx context.Context, kind byte, f frame) error {
	if kind == callTerm || kind == callRead {
		return l.sendNow(ctx, f)
	}
	return l.send(ctx, f)
}

// client calls one peer, over one link that it opens when it is needed.
type client struct {
	dial     func(ctx context.Context) (net.Conn, error)
	running  *sync.WaitGroup // of the node
	patience time.Duration   // how long the peer may be silent while it owes an answer

	mu      sync.Mutex
	link    *link
	dialing chan struct{} // closed when the dial under way is over
	next    uint64
	waiting map[uint64]chan frame
	closed  bool
}

// call sends a request and waits for the answer. The error wraps errNotSent when the peer has
// certainly not got it.
func (c *client) call(ctx context.Context, kind byte, payload []byte) (frame, error) {
	return c.callUntil(ctx, nil, kind, payload)
}

// callUntil is call, but waits for the answer no longer than until over is closed.
func (c *client) callUntil(ctx context.Context, over <-chan struct{}, kind byte, payload []byte) (frame, error) {
	if len(payload) > maxFrame-frameHead {
		return frame{}, errFrameTooLarge
	}
	l, err := c.connect(ctx)
	if err != nil {
		return frame{}, fmt.Errorf("%w: %w", errNotSent, err)
	}
	id, answer := c.expect()
	defer c.forget(id)
	if err := l.sendAs(ctx, kind, frame{call: id, kind: kind, payload: payload}); err != nil {
		return frame{}, err
	}
	select {
	case f, ok := <-answer:
		if !ok {
			return frame{}, io.ErrUnexpectedEOF
		}
		return f, nil
	case <-l.done:
		return frame{}, io.ErrUnexpectedEOF
	case <-over:
		return frame{}, errDeposed
	case <-ctx.Done():
		return frame{}, context.Cause(ctx)
	}
}

func (c *client) expect() (uint64, <-chan frame) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next++
	answer := make(chan frame, 1)
	c.waiting[c.next] = answer
	return c.next, answer
}

func (c *client) forget(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, id)
}

func (c *client) deliver(f frame) {
	c.mu.Lock()
	answer, ok := c.waiting[f.call]
	delete(c.waiting, f.call)
	c.mu.Unlock()
	if ok {
		answer <- f
	}
}

// connect returns the link. One caller dials, others wait for it.
func (c *client) connect(ctx context.Context) (*link, error) {
	for {
		c.mu.Lock()
		if c.closed {
			c.mu.Unlock()
			return nil, net.ErrClosed
		}
		if l := c.link; l != nil {
			select {
			case <-l.done:
				c.link = nil
			default:
				c.mu.Unlock()
				return l, nil
			}
		}
		if other := c.dialing; other != nil {
			c.mu.Unlock()
			select {
			case <-other:
				continue
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		mine := make(chan struct{})
		c.dialing = mine
		c.mu.Unlock()
		return c.open(ctx, mine)
	}
}

func (c *client) open(ctx context.Context, dialed chan struct{}) (*link, error) {
	conn, err := c.dial(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dialing = nil
	close(dialed)
	if err != nil {
		return nil, err
	}
	l := newLink(conn)
	if c.closed {
		l.sever()
		return nil, net.ErrClosed
	}
	c.link = l
	c.running.Go(l.write) // all end when the link breaks, which close does
	c.running.Go(func() { l.read(c.deliver) })
	c.running.Go(func() { c.listen(l) })
	return l, nil
}

// listen severs the link when the peer owes an answer and is silent for too long, even to a question
// that it answers at once. A peer that was cut off, or whose machine is gone, breaks no connection: a
// write that waits for it would not be repeated at the next leader, and after the network has healed
// the connection could stay stuck for as long as the kernel waits before it sends again.
//
// It ends with the link.
func (c *client) listen(l *link) {
	ticker := time.NewTicker(c.patience / 4)
	defer ticker.Stop()
	owed := time.Duration(0) // how long an answer has been owed, by the ticks
	for {
		select {
		case <-l.done:
			return
		case <-ticker.C:
		}
		switch quiet := l.quiet(); {
		case !c.waits():
			owed = 0
			continue
		case owed >= c.patience && quiet >= c.patience:
			l.sever()
			return
		case quiet >= c.patience/4:
			l.ping()
		}
		owed += c.patience / 4
	}
}

// ping asks for a sign of life.
func (l *link) ping() {
	select {
	case l.out <- frame{kind: callPing}: // numbered 0: nobody waits for the answer
	default: // the link is clogged, which is silence as well
	}
}

// current returns the link that is open, nil when there is none.
func (c *client) current() *link {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link == nil {
		return nil
	}
	select {
	case <-c.link.done:
		return nil
	default:
		return c.link
	}
}

func (c *client) waits() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.waiting) > 0
}

func (c *client) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.link != nil {
		c.link.sever()
	}
}

// handler answers requests of a peer.
type handler struct {
	// answer may take its time.
	answer func(ctx context.Context, kind byte, payload []byte) (byte, []byte)
	// atOnce answers what needs no waiting, and tells whether it has.
	atOnce func(kind byte, payload []byte) (byte, []byte, bool)
}

const (
	// maxCalls bounds the calls that one connection may have open, and maxCallBytes what they hold. A peer that
	// has more to ask waits.
	maxCalls     = 8192
	maxCallBytes = 4 * maxFrame
)

// serve answers the requests on one connection until it breaks, or until ctx ends, and tells why.
func serve(ctx context.Context, conn net.Conn, handle handler) error {
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
	reply := func(f frame, kind byte, payload []byte) {
		if len(payload) > maxFrame-frameHead {
			kind, payload = refuse(errFrameTooLarge)
		}
		l.sendAs(ctx, f.kind, frame{call: f.call, kind: kind, payload: payload})
	}
	why := l.read(func(f frame) {
		if kind, payload, ok := handle.atOnce(f.kind, f.payload); ok {
			reply(f, kind, payload)
			return
		}
		size := len(f.payload)
		if !open.take(ctx, size) {
			return
		}
		running.Go(func() { // ends with the connection at the latest, by ctx
			defer open.give(size)
			kind, payload := handle.answer(ctx, f.kind, f.payload)
			reply(f, kind, payload)
		})
	})
	cancel()
	running.Wait()
	return why
}

// budget is what the calls of one connection may still take. One goroutine takes, any give.
type budget struct {
	mu           sync.Mutex
	calls, bytes int
	freed        chan struct{} // holds a token when something came back
}

// take waits until there is room for a call. It reports false when ctx ends first.
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
