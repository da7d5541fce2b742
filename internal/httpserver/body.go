package httpserver

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/barque/barque/internal/connlimit"
)

const (
	// bodyRate is the rate of a request's body below which the grace is used up, in bytes a second.
	bodyRate = 256
	// strangerGrace is how long the bytes of a body may be late, in total, on a connection without
	// credentials; clientGrace is that for authenticated clients, whose own sources may pause.
	strangerGrace, clientGrace = 10 * time.Second, 2 * time.Minute
	// leftoverGrace is how long net/http may read the rest of a body after the answer.
	leftoverGrace = 5 * time.Second
	// earlyBody bounds the part of the body of a GET or HEAD that is read before the handler runs.
	earlyBody = 8 << 10
)

// ErrSlowBody is returned by a body whose client sends too little.
var ErrSlowBody = fmt.Errorf("the request's body arrives at less than %d bytes a second", bodyRate)

// paced is the body of a request with a minimum rate. Only time in which a reader waits for the
// client counts. A handler may take its time, and a client that the handler slows down is not slow.
//
// With HTTP/1, net/http reads the unread rest of a body before it sends the answer. So the deadline
// holds until the end of the body has been read. After that end the connection has no deadline:
// net/http then waits on it for the client's leaving. With HTTP/2, no reads follow for a stream
// whose handler has returned, and a stream's deadline also counts between reads. So a timer runs
// during each read.
type paced struct {
	io.ReadCloser
	control *http.ResponseController
	grace   func() time.Duration
	http2   bool

	mu   sync.Mutex
	late time.Duration // used up of the grace
	over bool          // the body has ended, or the handler has returned
}

func (b *paced) left() time.Duration {
	return max(0, b.grace()-b.late)
}

// graceOf is the grace of a connection's bodies.
func graceOf(conn *connlimit.Conn) time.Duration {
	if conn.Authenticated() {
		return clientGrace
	}
	return strangerGrace
}

// Pace gives the body of a request the minimum rate, for servers that are no Server. It may be late
// by the grace in total. The returned function is called when the request is answered.
func Pace(w http.ResponseWriter, r *http.Request, grace time.Duration) (end func()) {
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
		return func() {}
	}
	body := &paced{
		ReadCloser: r.Body, control: http.NewResponseController(w), grace: func() time.Duration { return grace },
		http2: r.ProtoMajor > 1,
	}
	body.begin()
	r.Body = body
	return body.end
}

// begin sets the first deadline.
func (b *paced) begin() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.http2 {
		_ = b.control.SetReadDeadline(time.Now().Add(b.left())) // a closed connection shows in the next read
	}
}

// Read implements io.Reader.
func (b *paced) Read(p []byte) (int, error) {
	stop := b.arm()
	began := time.Now()
	n, err := b.ReadCloser.Read(p)
	b.mu.Lock()
	defer b.mu.Unlock()
	stop()
	b.late = max(0, b.late+time.Since(began)-time.Duration(n)*time.Second/bodyRate)
	if b.over {
		return n, err
	}
	if err != nil && isTimeout(err) {
		return n, ErrSlowBody
	}
	if err != nil {
		b.over = true
		if !b.http2 && errors.Is(err, io.EOF) {
			_ = b.control.SetReadDeadline(time.Time{})
		}
	}
	return n, err
}

// arm bounds the next read. The returned function is called with mu held.
func (b *paced) arm() (stop func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.over:
	case b.http2:
		timer := time.AfterFunc(b.left(), b.expire)
		return func() { timer.Stop() }
	default:
		_ = b.control.SetReadDeadline(time.Now().Add(b.left()))
	}
	return func() {}
}

// expire ends a read of HTTP/2.
func (b *paced) expire() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.over { // else the response may be gone
		_ = b.control.SetReadDeadline(time.Unix(1, 0))
	}
}

// end is called when the handler has returned.
func (b *paced) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.over && !b.http2 {
		_ = b.control.SetReadDeadline(time.Now().Add(min(b.left(), leftoverGrace)))
	}
	b.over = true
}

// early reads the beginning of the body. A watch never reads its body, so its end would not show,
// and the deadline would end the watch.
func (b *paced) early() (io.ReadCloser, error) {
	start, err := io.ReadAll(io.LimitReader(b, earlyBody))
	if err != nil {
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(start), b), b}, nil
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}
