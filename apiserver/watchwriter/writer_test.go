package watchwriter

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// response notes the sent bytes.
type response struct {
	http.ResponseWriter
	calls []string
	err   error // of a Write
}

func (r *response) Write(p []byte) (int, error) {
	r.calls = append(r.calls, string(p))
	return len(p), r.err
}

func (r *response) Flush()                   { r.calls = append(r.calls, "flush") }
func (r *response) CloseNotify() <-chan bool { return nil }
func (r *response) take() (calls []string)   { calls, r.calls = r.calls, nil; return calls }

func (r *response) want(t *testing.T, when string, calls ...string) {
	t.Helper()
	if got := r.take(); !reflect.DeepEqual(got, calls) {
		t.Errorf("%s: sent %.200q, want %.200q", when, got, calls)
	}
}

// serve calls a handler with a request.
func serve(r *response, verb string, handler http.HandlerFunc) {
	ctx := request.WithRequestInfo(context.Background(), &request.RequestInfo{IsResourceRequest: true, Verb: verb})
	Handler(handler).ServeHTTP(r, httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx))
}

// begin begins a watch as the API machinery does.
func begin(t *testing.T, r *response, w http.ResponseWriter, req *http.Request) (chan watch.Event, watch.Interface) {
	queue := make(chan watch.Event, 10)
	watched := Gather(req.Context(), watch.NewProxyWatcher(queue))
	w.(http.Flusher).Flush()
	r.want(t, "at the beginning", "flush")
	return queue, watched
}

func write(t *testing.T, w http.ResponseWriter, text string) {
	t.Helper()
	if n, err := w.Write([]byte(text)); n != len(text) || err != nil {
		t.Errorf("%.20q: wrote %d bytes, %v", text, n, err)
	}
}

func TestEventsThatWaitAreSentTogether(t *testing.T) {
	r := &response{}
	serve(r, "watch", func(w http.ResponseWriter, req *http.Request) {
		queue, watched := begin(t, r, w, req)
		flusher := w.(http.Flusher)
		write(t, w, "a")
		flusher.Flush()
		r.want(t, "one event", "a", "flush")

		write(t, w, "b")
		queue <- watch.Event{}
		flusher.Flush()
		r.want(t, "while another one waits")
		<-queue
		write(t, w, "c")
		flusher.Flush()
		r.want(t, "after the last one", "bc", "flush")

		write(t, w, "d")
		close(queue)
		flusher.Flush()
		r.want(t, "after the queue was closed", "d", "flush")
		watched.Stop()
		r.want(t, "at the end")
	})
}

// The goroutine that brings the next event is ready, and has not run yet. Once in 61 times Go's
// scheduler prefers the goroutine that has just yielded.
func TestEventsThatAreOnTheirWayAreWaitedFor(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	r := &response{}
	serve(r, "watch", func(w http.ResponseWriter, req *http.Request) {
		queue, _ := begin(t, r, w, req)
		for range 10 {
			write(t, w, "a")
			go func() { queue <- watch.Event{} }()
			w.(http.Flusher).Flush()
			sent := r.take()
			<-queue
			write(t, w, "b")
			w.(http.Flusher).Flush()
			if sent == nil {
				r.want(t, "after the last one", "ab", "flush")
				return
			}
			r.take()
		}
		t.Error("no event has waited for the one that was on its way")
	})
}

func TestWhatIsHeldIsSentWhenTheWatchStops(t *testing.T) {
	r := &response{}
	serve(r, "watch", func(w http.ResponseWriter, req *http.Request) {
		queue, watched := begin(t, r, w, req)
		write(t, w, "a")
		queue <- watch.Event{}
		w.(http.Flusher).Flush()
		r.want(t, "while another one waits")
		watched.Stop()
		r.want(t, "at the end", "a")
	})
}

func TestHoldsNoMoreThanEnough(t *testing.T) {
	r, large := &response{}, strings.Repeat("x", enough-1)
	serve(r, "watch", func(w http.ResponseWriter, req *http.Request) {
		queue, watched := begin(t, r, w, req)
		queue <- watch.Event{}
		write(t, w, large)
		write(t, w, "y")
		w.(http.Flusher).Flush()
		r.want(t, "with enough")
		write(t, w, "ab")
		r.want(t, "with more than enough", large+"y")
		w.(http.Flusher).Flush() // others have their turn
		r.want(t, "with more than enough, flushed", "ab", "flush")
		write(t, w, large+"too long")
		r.want(t, "with what is more than enough alone", large+"too long")
		w.(http.Flusher).Flush()
		r.want(t, "with what is more than enough alone, flushed", "flush")
		write(t, w, "c")
		w.(http.Flusher).Flush()
		r.want(t, "with little again")
		watched.Stop()
		r.want(t, "at the end", "c")
	})
}

func TestErrorsEndTheResponse(t *testing.T) {
	gone := errors.New("the client has gone")
	r := &response{}
	serve(r, "watch", func(w http.ResponseWriter, req *http.Request) {
		begin(t, r, w, req)
		r.err = gone
		write(t, w, "a")
		w.(http.Flusher).Flush()
		if _, err := w.Write([]byte("b")); !errors.Is(err, gone) {
			t.Errorf("the write after one that failed: %v", err)
		}
	})
}

// A response without watch events is passed on at once: an error in place of the events, other
// requests, and watches without Gather.
func TestHoldsNothingElse(t *testing.T) {
	for _, verb := range []string{"watch", "list"} {
		for _, gathers := range []bool{true, false} {
			r := &response{}
			serve(r, verb, func(w http.ResponseWriter, req *http.Request) {
				if queue := make(chan watch.Event, 1); gathers {
					queue <- watch.Event{}
					Gather(req.Context(), watch.NewProxyWatcher(queue))
				}
				write(t, w, "error")
				r.want(t, fmt.Sprintf("%s, gathered: %v", verb, gathers), "error")
				if verb == "watch" && gathers {
					return
				}
				w.(http.Flusher).Flush()
				write(t, w, "more")
				w.(http.Flusher).Flush()
				r.want(t, fmt.Sprintf("%s, gathered: %v", verb, gathers), "flush", "more", "flush")
			})
		}
	}
}

// A buffer that comes back has nothing of its previous user.
func TestBuffersAreEmpty(t *testing.T) {
	for _, text := range []string{"long", "s"} {
		r := &response{}
		serve(r, "watch", func(w http.ResponseWriter, req *http.Request) {
			begin(t, r, w, req)
			write(t, w, text)
			w.(http.Flusher).Flush()
			r.want(t, text, text, "flush")
		})
	}
}
