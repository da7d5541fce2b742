package watchwriter

import (
	"context"
	"net/http"
	"runtime"
	"sync"

	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
)

// enough is how many bytes are written without waiting for more: one frame of HTTP/2 that, with its
// head of 9 bytes, fits into one record of TLS. A byte more is a record and a system call more.
const enough = 16<<10 - 9

type writerKey struct{}

// Handler lets the responses of watches be gathered. It stands behind the filter that parses
// the request.
func Handler(next http.Handler) http.Handler {
	turns := &turns{}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := request.RequestInfoFrom(r.Context())
		flusher, flushes := w.(http.Flusher)
		if !ok || info.Verb != "watch" || !flushes {
			next.ServeHTTP(w, r)
			return
		}
		gathering := &writer{ResponseWriter: w, flusher: flusher, turn: newTurn(turns)}
		next.ServeHTTP(responsewriter.WrapForHTTP1Or2(gathering),
			r.WithContext(context.WithValue(r.Context(), writerKey{}, gathering)))
	})
}

// Gather gives the response of a request the watch that it is written from. The watch that it
// returns must be the one that goes to the client.
func Gather(ctx context.Context, w watch.Interface) watch.Interface {
	response, ok := ctx.Value(writerKey{}).(*writer)
	if !ok {
		return w
	}
	response.queue = w.ResultChan()
	if r, ok := w.(Reader); ok {
		r.ReadInTurn(response.turn)
	}
	return &gathered{w, response}
}

// Reader is a watch that reads its events when it is its turn. The events that it has read by then
// go out together.
type Reader interface {
	watch.Interface
	// ReadInTurn is called once, before the first event is taken from the watch, which may have
	// begun.
	ReadInTurn(turn *Turn)
}

// gathered is a watch whose response may hold events back.
type gathered struct {
	watch.Interface
	response *writer
}

// Stop implements watch.Interface. The server calls it when the last event was written, before the
// response ends.
func (g *gathered) Stop() {
	g.Interface.Stop()
	g.response.release()
	g.response.turn.end()
}

// writer is the response of a watch. Only the goroutine that serves the request uses it.
type writer struct {
	http.ResponseWriter
	flusher http.Flusher
	queue   <-chan watch.Event // of the events that follow; nil before Gather
	begun   bool               // the header was sent, and only events follow
	turn    *Turn
	writing bool    // it is this response's turn
	full    bool    // something was passed on since the last flush
	held    *[]byte // written, but not passed on; nil when there is nothing
	err     error   // of a write to the wrapped response
}

var (
	_ responsewriter.UserProvidedDecorator = (*writer)(nil)
	_ http.Flusher                         = (*writer)(nil)
)

// buffers are for held bytes. A watch has one only while it holds something.
var buffers = sync.Pool{New: func() any { return new(make([]byte, 0, enough)) }}

// Unwrap implements responsewriter.UserProvidedDecorator.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Write implements http.ResponseWriter.
func (w *writer) Write(p []byte) (int, error) {
	if w.err != nil {
		return 0, w.err
	}
	if !w.begun {
		return w.ResponseWriter.Write(p)
	}
	if w.held != nil && len(*w.held)+len(p) > enough {
		w.full = true
		if w.release(); w.err != nil {
			return 0, w.err
		}
	}
	if len(p) > enough {
		w.full = true
		return w.ResponseWriter.Write(p)
	}
	if w.held == nil {
		w.held = buffers.Get().(*[]byte)
	}
	*w.held = append(*w.held, p...)
	return len(p), nil
}

// Flush implements http.Flusher. Held bytes wait for the turn of this response, and further events
// go out with them.
func (w *writer) Flush() {
	if w.queue != nil && !w.begun {
		w.begun = true
		w.turn.begin()
	}
	if w.held == nil && !w.full {
		w.flusher.Flush()
		return
	}
	// The event that is in the queue is written next, and ends with a flush. After enough bytes the
	// turn ends, with any number of further events.
	if !w.writing {
		if !w.turn.passed() {
			if runtime.Gosched(); len(w.queue) > 0 && !w.full {
				return
			}
			w.turn.write()
		}
		w.writing = true
	}
	if len(w.queue) > 0 && !w.full {
		return
	}
	w.release()
	w.flusher.Flush()
	w.full, w.writing = false, false
	w.turn.done()
}

// release passes on the held bytes.
func (w *writer) release() {
	if w.held == nil {
		return
	}
	if _, err := w.ResponseWriter.Write(*w.held); err != nil && w.err == nil {
		w.err = err
	}
	*w.held = (*w.held)[:0]
	buffers.Put(w.held)
	w.held = nil
}
