package memnet

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// window is how much may be under way in one direction before a writer waits.
const window = 256 << 10

// conn is one end of a connection.
type conn struct {
	net     *Network
	in, out *pipe
}

func (c *conn) Read(p []byte) (int, error)  { return c.in.read(p) }
func (c *conn) Write(p []byte) (int, error) { return c.out.write(p) }

// Close ends both directions. The peer reads the bytes under way, and then the end.
func (c *conn) Close() error {
	c.net.mu.Lock()
	delete(c.net.conns, c)
	c.net.mu.Unlock()
	c.in.stopReading()
	c.out.stopWriting()
	return nil
}

// abort breaks the connection at once, for both ends.
func (c *conn) abort() {
	c.in.abort()
	c.out.abort()
}

func (c *conn) LocalAddr() net.Addr  { return addr(c.out.from) }
func (c *conn) RemoteAddr() net.Addr { return addr(c.out.to) }

func (c *conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.in.change(func() { c.in.readBy = t })
	return nil
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	c.out.change(func() { c.out.writeBy = t })
	return nil
}

// pipe is one direction of a connection.
type pipe struct {
	net      *Network
	from, to string

	mu              sync.Mutex
	changed         chan struct{} // closed and replaced with each change
	parcels         []parcel
	size            int
	readBy, writeBy time.Time
	readerGone      bool
	writerGone      bool
	broken          bool
	readerLost      bool // that end vanished, unknown to the other
	writerLost      bool
}

// parcel is the bytes of one write, or without bytes the end of the stream.
type parcel struct {
	arrives time.Time
	bytes   []byte
}

func newPipe(n *Network, from, to string) *pipe {
	return &pipe{net: n, from: from, to: to, changed: make(chan struct{})}
}

// change makes a change and wakes the callers that wait for one.
func (p *pipe) change(make func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	make()
	p.notify()
}

func (p *pipe) notify() {
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *pipe) abort()       { p.change(func() { p.broken = true }) }
func (p *pipe) stopReading() { p.change(func() { p.readerGone = true }) }

func (p *pipe) stopWriting() {
	travel := p.net.travel(p.from, p.to, 0)
	p.change(func() {
		if !p.writerGone {
			p.writerGone = true
			p.parcels = append(p.parcels, parcel{arrives: p.arrival(travel)})
		}
	})
}

// arrival returns the arrival time of bytes sent now: never before earlier ones.
func (p *pipe) arrival(travel time.Duration) time.Time {
	at := time.Now().Add(travel)
	if n := len(p.parcels); n > 0 && p.parcels[n-1].arrives.After(at) {
		return p.parcels[n-1].arrives
	}
	return at
}

func (p *pipe) gone(what string, err error) error {
	return fmt.Errorf("%s %s over a connection to %s: %w", p.from, what, p.to, err)
}

func (p *pipe) write(b []byte) (int, error) {
	travel := p.net.travel(p.from, p.to, len(b))
	sent := 0
	for {
		p.mu.Lock()
		var err error
		switch {
		case p.broken, p.readerGone:
			err = p.gone("writes", syscall.ECONNRESET)
		case p.writerGone, p.writerLost:
			err = net.ErrClosed
		case expired(p.writeBy):
			err = os.ErrDeadlineExceeded
		}
		if room := min(window-p.size, len(b)-sent); err == nil && room > 0 {
			p.parcels = append(p.parcels, parcel{p.arrival(travel), append([]byte(nil), b[sent:sent+room]...)})
			p.size += room
			sent += room
			p.notify()
		}
		changed, deadline := p.changed, p.writeBy
		p.mu.Unlock()
		if err != nil || sent == len(b) {
			return sent, err
		}
		await(changed, nil, deadline)
	}
}

func (p *pipe) read(b []byte) (int, error) {
	for {
		held := p.net.held(p.from, p.to)
		p.mu.Lock()
		n, next, err := p.take(b, held != nil)
		changed, deadline := p.changed, p.readBy
		p.mu.Unlock()
		if n > 0 || err != nil || len(b) == 0 {
			return n, err
		}
		if held == nil && !next.IsZero() && (deadline.IsZero() || next.Before(deadline)) {
			deadline = next
		}
		await(changed, held, deadline)
	}
}

// take reads the arrived bytes. Without any, it returns the time of the next arrival, if known.
func (p *pipe) take(b []byte, held bool) (n int, next time.Time, err error) {
	switch {
	case p.readerGone, p.readerLost:
		return 0, next, net.ErrClosed
	case p.broken:
		return 0, next, p.gone("is read", syscall.ECONNRESET)
	case expired(p.readBy):
		return 0, next, os.ErrDeadlineExceeded
	case held || len(p.parcels) == 0:
		return 0, next, nil
	}
	for len(p.parcels) > 0 && n < len(b) {
		first := &p.parcels[0]
		if first.arrives.After(time.Now()) {
			next = first.arrives
			break
		}
		if len(first.bytes) == 0 {
			if n == 0 {
				err = io.EOF
			}
			break
		}
		k := copy(b[n:], first.bytes)
		n += k
		if first.bytes = first.bytes[k:]; len(first.bytes) == 0 {
			p.parcels[0] = parcel{}
			p.parcels = p.parcels[1:]
		}
	}
	if p.size -= n; n > 0 && p.size+n >= window {
		p.notify()
	}
	return n, next, err
}

func expired(deadline time.Time) bool { return !deadline.IsZero() && !time.Now().Before(deadline) }

// await returns when one of the channels is closed, or at the deadline if there is one.
func await(changed, opened <-chan struct{}, deadline time.Time) {
	var at <-chan time.Time
	if !deadline.IsZero() {
		timer := time.NewTimer(time.Until(deadline))
		defer timer.Stop()
		at = timer.C
	}
	select {
	case <-changed:
	case <-opened:
	case <-at:
	}
}
