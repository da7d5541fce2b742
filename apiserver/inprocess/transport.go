package inprocess

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"syscall"
)

// errClosed ends running requests when the server has ended.
var errClosed = errors.New("the API server has stopped")

// Transport is an http.RoundTripper whose requests a handler in this process answers. Make it with
// New. Any goroutine may use it.
type Transport struct {
	ctx    context.Context // of the server: it ends with Close
	cancel context.CancelCauseFunc

	served  chan struct{} // closed by Serve
	handler http.Handler  // nil before
	once    sync.Once

	refusing  chan struct{} // closed by Refuse
	refuseOne sync.Once
}

// New makes a Transport. Its requests wait until Serve is called.
func New() *Transport {
	t := &Transport{served: make(chan struct{}), refusing: make(chan struct{})}
	t.ctx, t.cancel = context.WithCancelCause(context.Background())
	return t
}

// Serve has requests answered by a handler, from now on.
func (t *Transport) Serve(handler http.Handler) {
	t.once.Do(func() {
		t.handler = handler
		close(t.served)
	})
}

// Refuse refuses requests from now on. Those under way go on.
func (t *Transport) Refuse() { t.refuseOne.Do(func() { close(t.refusing) }) }

// Close refuses requests, and ends those under way.
func (t *Transport) Close() {
	t.Refuse()
	t.cancel(errClosed)
}

// errRefused is the client's error at a closed port.
var errRefused = &net.OpError{Op: "dial", Net: "in process", Err: syscall.ECONNREFUSED}

// await waits until requests are served.
func (t *Transport) await(ctx context.Context) error {
	select {
	case <-t.refusing:
		return errRefused
	default:
	}
	select {
	case <-t.served:
		return nil
	case <-t.refusing:
		return errRefused
	case <-ctx.Done():
		return ctx.Err()
	}
}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	body := &requestBody{from: r.Body}
	if err := t.await(r.Context()); err != nil {
		_ = body.Close()
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(t.ctx)
	w := newResponse(ctx, cancel)
	leave := context.AfterFunc(r.Context(), func() { cancel(r.Context().Err()) })
	served := t.request(ctx, r, body)
	// It ends with the handler, whose context ends with the client's, and with Close.
	go func() {
		defer leave()
		defer body.end()
		w.serve(t.handler, served)
	}()
	select {
	case <-w.headed:
	case <-w.body.broken: // before there was a header
		err := w.body.why()
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = io.EOF // as when a connection is closed
		}
		return nil, err
	}
	return w.answer(r), nil
}

// request makes the handler's request from the client's.
func (t *Transport) request(ctx context.Context, r *http.Request, body *requestBody) *http.Request {
	served := &http.Request{
		Method: r.Method, Proto: "HTTP/2.0", ProtoMajor: 2,
		URL: &url.URL{Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: r.URL.RawQuery,
			ForceQuery: r.URL.ForceQuery},
		Header: r.Header.Clone(), Host: r.Host, RequestURI: r.URL.RequestURI(), RemoteAddr: "127.0.0.1:0",
		ContentLength: r.ContentLength, Body: http.NoBody,
		TLS: &tls.ConnectionState{HandshakeComplete: true}, // it is as safe
	}
	if served.Method == "" {
		served.Method = http.MethodGet
	}
	if served.URL.Path == "" {
		served.URL.Path = "/"
	}
	if served.Host == "" {
		served.Host = r.URL.Host
	}
	if served.Header == nil {
		served.Header = http.Header{}
	}
	if body.from == nil || body.from == http.NoBody {
		served.ContentLength = 0
	} else if served.Body = body; served.ContentLength == 0 {
		served.ContentLength = -1 // the client does not know it
	}
	return served.WithContext(ctx)
}

// requestBody is a request's body, which the handler reads until it returns.
type requestBody struct {
	from  io.ReadCloser // nil when there is none
	mu    sync.Mutex
	ended bool
}

// Read implements io.Reader.
func (b *requestBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	ended := b.ended
	b.mu.Unlock()
	if ended {
		return 0, http.ErrBodyReadAfterClose
	}
	return b.from.Read(p)
}

// Close implements io.Closer.
func (b *requestBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended || b.from == nil {
		b.ended = true
		return nil
	}
	b.ended = true
	return b.from.Close()
}

// end closes the body when the handler has returned.
func (b *requestBody) end() { _ = b.Close() }
