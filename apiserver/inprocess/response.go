package inprocess

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync"
)

// room is how many bytes of a response wait for the client at the most, unless one write has more.
const room = 64 << 10

// kept is the largest buffer that a stream keeps while nothing is in it.
const kept = 4 << 10

// response is the http.ResponseWriter of the handler.
type response struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	header http.Header
	body   pipe

	headed chan struct{} // closed when status and sent are there
	status int
	sent   http.Header // as it was when the header was written
}

var (
	_ http.ResponseWriter = (*response)(nil)
	_ http.Flusher        = (*response)(nil)
)

func newResponse(ctx context.Context, cancel context.CancelCauseFunc) *response {
	w := &response{ctx: ctx, cancel: cancel, header: http.Header{}, headed: make(chan struct{})}
	w.body.broken = make(chan struct{})
	w.body.changed.L = &w.body.mu
	return w
}

// serve has the handler answer the request.
func (w *response) serve(handler http.Handler, r *http.Request) {
	stop := context.AfterFunc(w.ctx, w.breakOff)
	defer w.cancel(nil)
	defer stop() // a response that is complete can still be read
	defer func() {
		if recover() != nil { // the chain of handlers has logged it
			w.body.breakOff(io.ErrUnexpectedEOF)
		}
	}()
	handler.ServeHTTP(w, r)
	w.WriteHeader(http.StatusOK)
	if w.ctx.Err() != nil {
		w.breakOff() // the handler may have ended for that: its response is not a whole one
	}
	w.body.finish()
}

// breakOff ends the body for the reason for which the context has ended.
func (w *response) breakOff() {
	why := context.Cause(w.ctx)
	if errors.Is(why, errClosed) {
		why = io.ErrUnexpectedEOF // as when a connection is closed
	}
	w.body.breakOff(why)
}

// Header implements http.ResponseWriter.
func (w *response) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter. Information before the header is left out.
func (w *response) WriteHeader(status int) {
	if w.status != 0 || status < 200 {
		return
	}
	w.status, w.sent = status, w.header.Clone()
	close(w.headed)
}

// Write implements http.ResponseWriter.
func (w *response) Write(p []byte) (int, error) {
	if w.status == 0 {
		if w.header.Get("Content-Type") == "" && w.header.Get("Content-Encoding") == "" && len(p) > 0 {
			w.header.Set("Content-Type", http.DetectContentType(p))
		}
		w.WriteHeader(http.StatusOK)
	}
	if w.ctx.Err() != nil {
		w.breakOff() // the context's own call may come later
	}
	return w.body.write(p)
}

// Flush implements http.Flusher. The client can already read all written bytes.
func (w *response) Flush() { w.WriteHeader(http.StatusOK) }

// CloseNotify implements http.CloseNotifier, without which the API machinery takes a response for
// one that cannot be streamed.
func (w *response) CloseNotify() <-chan bool {
	gone := make(chan bool, 1)
	context.AfterFunc(w.ctx, func() { gone <- true })
	return gone
}

// answer is the client's response.
func (w *response) answer(r *http.Request) *http.Response {
	length := int64(-1)
	if n, err := strconv.ParseInt(w.sent.Get("Content-Length"), 10, 64); err == nil && n >= 0 {
		length = n
	}
	return &http.Response{
		Status: strconv.Itoa(w.status) + " " + http.StatusText(w.status), StatusCode: w.status,
		Proto: "HTTP/2.0", ProtoMajor: 2, Header: w.sent, ContentLength: length, Request: r, Body: responseBody{w},
	}
}

// responseBody is the body of the client's response.
type responseBody struct{ w *response }

// Read implements io.Reader.
func (b responseBody) Read(p []byte) (int, error) { return b.w.body.read(p) }

// Close implements io.Closer. The handler's context ends.
func (b responseBody) Close() error {
	b.w.body.breakOff(http.ErrBodyReadAfterClose)
	b.w.cancel(context.Canceled)
	return nil
}

// pipe has the bytes that were written and not read yet.
type pipe struct {
	mu       sync.Mutex
	changed  sync.Cond
	data     []byte
	taken    int           // how many bytes of data were read
	finished bool          // nothing more is written
	err      error         // why it was broken off
	broken   chan struct{} // closed when it was
}

// write waits until there is room.
func (p *pipe) write(data []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.err == nil && p.left() > 0 && p.left()+len(data) > room {
		p.changed.Wait()
	}
	if p.err != nil {
		return 0, p.err
	}
	if p.taken > p.left() { // else a reader that never comes to the end would have it grow
		p.data, p.taken = append(p.data[:0], p.data[p.taken:]...), 0
	}
	p.data = append(p.data, data...)
	p.changed.Broadcast()
	return len(data), nil
}

// left is how many bytes are to be read.
func (p *pipe) left() int { return len(p.data) - p.taken }

// read waits until there are bytes, or the end.
func (p *pipe) read(into []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(into) == 0 {
		return 0, nil
	}
	for p.err == nil && !p.finished && p.left() == 0 {
		p.changed.Wait()
	}
	if p.err != nil {
		return 0, p.err
	}
	if p.left() == 0 {
		return 0, io.EOF
	}
	n := copy(into, p.data[p.taken:])
	if p.taken += n; p.left() == 0 {
		p.taken = 0
		if p.data = p.data[:0]; cap(p.data) > kept {
			p.data = nil
		}
	}
	p.changed.Broadcast()
	return n, nil
}

// finish ends the body: no more bytes follow.
func (p *pipe) finish() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.finished = true
	p.changed.Broadcast()
}

// breakOff ends both sides with an error.
func (p *pipe) breakOff(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return
	}
	p.err = err
	close(p.broken)
	p.changed.Broadcast()
}

// why is why it was broken off.
func (p *pipe) why() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}
