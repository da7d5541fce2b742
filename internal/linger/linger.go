// Package linger closes the connections of upgraded requests without losing bytes on their way.
//
// A kernel resets a TCP connection that is closed with unread input, or that gets input after its
// close. A reset discards all output that the peer's kernel has not received, which is megabytes
// for a slow reader. Clients of streams send pings until they have read the end, so there the reset
// is the rule. The client's next ping gets its error: the reader may see an ordinary end. Here the
// close waits for the peer, and reads and drops input meanwhile.
package linger

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Patience bounds the waits of a close.
type Patience struct {
	// Progress is the longest time in which the peer's kernel takes nothing of the output.
	Progress time.Duration
	// End is the time that the peer has to close, when its kernel has all output.
	End time.Duration
}

// Default is the patience with clients. A reader may pause for as long as a stream may be idle. A
// kernel that does not answer at all ends the connection earlier (tcp(7), tcp_retries2).
var Default = Patience{Progress: 4 * time.Hour, End: time.Minute}

// look is the interval in which the output is looked at.
const look = 20 * time.Millisecond

// Conn is a connection whose Close waits until the peer has all output and closes its side.
type Conn struct {
	net.Conn
	patience Patience
	once     sync.Once
	gone     chan struct{} // closed when nothing more can be read
	goneOnce sync.Once
	err      error
}

// New returns a connection around conn. All reads of conn must pass through it.
func New(conn net.Conn, patience Patience) *Conn {
	return &Conn{Conn: conn, patience: patience, gone: make(chan struct{})}
}

// Gone is closed when a read has failed or met the end: the peer has closed, or is lost.
func (c *Conn) Gone() <-chan struct{} { return c.gone }

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil {
		c.goneOnce.Do(func() { close(c.gone) })
	}
	return n, err
}

// Close implements net.Conn. Calls after the first one wait for it, and return its error.
func (c *Conn) Close() error {
	c.once.Do(func() {
		var drained sync.WaitGroup
		drained.Go(func() { // ends with the peer, or with the close below
			_, _ = io.Copy(io.Discard, struct{ io.Reader }{c})
		})
		if c.awaitOutput() {
			halfClose(c.Conn)
			c.wait(c.patience.End)
		}
		c.err = c.Conn.Close()
		drained.Wait()
	})
	return c.err
}

// awaitOutput waits until the peer's kernel has taken all output, and reports whether it may.
func (c *Conn) awaitOutput() bool {
	last, since, pause := -1, time.Now(), look
	for {
		rest, err := unsent(c.Conn)
		if err != nil {
			return false
		}
		if rest == 0 {
			return true
		}
		if rest != last {
			last, since, pause = rest, time.Now(), look
		} else {
			pause = min(2*pause, time.Second) // a client that takes nothing costs little
		}
		if time.Since(since) > c.patience.Progress || c.wait(pause) {
			return false
		}
	}
}

// wait waits for the peer's end, and reports whether it has come.
func (c *Conn) wait(limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-c.gone:
		return true
	case <-timer.C:
		return false
	}
}

// unsent returns the number of bytes of output that the peer's kernel has not acknowledged. It is 0
// for a connection that is not of the kernel.
func unsent(conn net.Conn) (int, error) {
	raw, ok := underneath(conn).(syscall.Conn)
	if !ok {
		return 0, nil
	}
	control, err := raw.SyscallConn()
	if err != nil {
		return 0, err
	}
	var n int
	var failed error
	if err := control.Control(func(fd uintptr) { n, failed = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }); err != nil {
		return 0, err
	}
	if errors.Is(failed, unix.ENOTTY) || errors.Is(failed, unix.EOPNOTSUPP) {
		return 0, nil // no such queue
	}
	return n, failed
}

// halfClose ends the output to the peer.
func halfClose(conn net.Conn) {
	type half interface{ CloseWrite() error }
	if h, ok := conn.(half); ok {
		_ = h.CloseWrite() // a peer that is lost shows in reads
	}
	if under := underneath(conn); under != conn {
		if h, ok := under.(half); ok {
			_ = h.CloseWrite()
		}
	}
}

// underneath returns the connection below TLS.
func underneath(conn net.Conn) net.Conn {
	if secure, ok := conn.(*tls.Conn); ok {
		return secure.NetConn()
	}
	return conn
}

// Writer is a response whose hijacked connection is a Conn. It cannot be unwrapped: libraries would
// hijack the connection below.
type Writer struct {
	http.ResponseWriter
	conn *Conn
}

// NewWriter returns a response around w.
func NewWriter(w http.ResponseWriter) *Writer { return &Writer{ResponseWriter: w} }

// Conn returns the hijacked connection, or nil.
func (w *Writer) Conn() *Conn { return w.conn }

// Hijack implements http.Hijacker.
func (w *Writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	plain, buffers, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	w.conn = New(plain, Default)
	var input io.Reader = w.conn
	if buffers != nil { // the server has read ahead, from below
		if n := buffers.Reader.Buffered(); n > 0 {
			ahead, err := buffers.Reader.Peek(n)
			if err != nil {
				plain.Close()
				return nil, nil, err
			}
			input = io.MultiReader(bytes.NewReader(ahead), w.conn)
		}
	}
	return w.conn, bufio.NewReadWriter(bufio.NewReader(input), bufio.NewWriter(w.conn)), nil
}
