package watchwriter

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// begun returns the turn of a response that has begun.
func begun(s *turns) *Turn {
	t := newTurn(s)
	t.begin()
	return t
}

// writeAll has so many writing, which leaves no turn for others.
func writeAll(s *turns) (all []*Turn) {
	for range most() {
		t := begun(s)
		t.write()
		all = append(all, t)
	}
	return all
}

// empty reports that there is no turn, and none is waited for.
func (s *turns) empty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.having) == 0 && len(s.waiting) == 0
}

func TestTurnsAreGivenInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s turns
		first := writeAll(&s)
		var mu sync.Mutex
		var order []int
		var all sync.WaitGroup
		for i := range 20 {
			all.Go(func() {
				mine := begun(&s)
				if i%2 == 0 {
					mine.write()
				} else if !mine.Take(t.Context()) {
					t.Error("there is no turn")
				}
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				mine.done()
			})
			synctest.Wait()
		}
		if order != nil {
			t.Errorf("%v have had a turn while there was none", order)
		}
		first[0].done()
		all.Wait()
		if len(order) != 20 || !slices.IsSorted(order) {
			t.Errorf("turns were given in the order %v", order)
		}
		for _, other := range first[1:] {
			other.done()
		}
		if !s.empty() {
			t.Error("some turns have no end")
		}
	})
}

// A slow response delays others for no longer than patience, and needs no turn until it is quick.
func TestTheSlowLoseTheirTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s turns
		slow := writeAll(&s)
		began := time.Now()
		mine := begun(&s)
		mine.write()
		if waited := time.Since(began); waited != patience {
			t.Errorf("it waited for %v", waited)
		}
		for range most() - 1 {
			begun(&s).write() // so that no turn is left
		}
		for _, one := range slow {
			one.done()
			one.write() // at once
			if !one.slow || time.Since(began) != patience {
				t.Error("what took long waits for a turn")
			}
			one.done()
			if one.slow {
				t.Error("what was quick is still slow")
			}
		}
	})
}

// A watch that had nothing to send does not show that its client is quick again.
func TestTheSlowStaySlowUntilTheyWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s turns
		slow := writeAll(&s)[0]
		begun(&s).write() // after patience
		slow.done()
		if !slow.Take(t.Context()) {
			t.Fatal("there is no turn")
		}
		slow.Done()
		if !slow.slow {
			t.Error("what was slow is quick without a write")
		}
		slow.write()
		slow.done()
		if slow.slow {
			t.Error("what was quick is still slow")
		}
	})
}

// While others are written to, a response gathers events.
func TestEventsAreGatheredUntilItIsTheirTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &response{}
		serve(r, "watch", func(w http.ResponseWriter, req *http.Request) {
			queue, watched := begin(t, r, w, req)
			s := req.Context().Value(writerKey{}).(*writer).turn.turns
			others := writeAll(s)
			write(t, w, "a")
			flushed := make(chan struct{})
			go func() {
				w.(http.Flusher).Flush()
				close(flushed)
			}()
			synctest.Wait()
			r.want(t, "before its turn")
			for range 3 {
				queue <- watch.Event{}
			}
			others[0].done()
			<-flushed
			for i := range 3 {
				r.want(t, "while events wait")
				<-queue
				write(t, w, fmt.Sprint(i))
				w.(http.Flusher).Flush()
			}
			r.want(t, "after the last one", "a012", "flush")
			watched.Stop()
			for _, other := range others[1:] {
				other.done()
			}
			if !s.empty() {
				t.Error("a turn has no end")
			}
		})
	})
}

// A watch that ends in its turn gives it up.
func TestAWatchThatEndsGivesUpItsTurn(t *testing.T) {
	r := &response{}
	serve(r, "watch", func(w http.ResponseWriter, req *http.Request) {
		queue, watched := begin(t, r, w, req)
		response := req.Context().Value(writerKey{}).(*writer)
		response.turn.write()
		response.writing = true
		write(t, w, "a")
		queue <- watch.Event{}
		w.(http.Flusher).Flush()
		watched.Stop()
		r.want(t, "at the end", "a")
		if !response.turn.turns.empty() {
			t.Error("it still has its turn")
		}
	})
}

// Events that the watch has sent in its turn are flushed in the same turn, and nothing before all
// are sent.
func TestATurnIsPassedFromTheWatchToTheResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &response{}
		serve(r, "watch", func(w http.ResponseWriter, req *http.Request) {
			queue, watched := begin(t, r, w, req)
			turn := req.Context().Value(writerKey{}).(*writer).turn
			if !turn.Take(t.Context()) {
				t.Error("the watch has no turn")
			}
			write(t, w, "a")
			flushed := make(chan struct{})
			go func() {
				w.(http.Flusher).Flush()
				close(flushed)
			}()
			synctest.Wait()
			r.want(t, "while the watch has the turn")
			queue <- watch.Event{}
			turn.Pass()
			<-flushed
			r.want(t, "while an event waits")
			taken := make(chan bool, 1)
			go func() { taken <- turn.Take(t.Context()) }()
			synctest.Wait()
			if len(taken) > 0 {
				t.Error("the watch has a turn while its response has one")
			}
			<-queue
			write(t, w, "b")
			w.(http.Flusher).Flush()
			r.want(t, "after the last one", "ab", "flush")
			if !<-taken {
				t.Error("the watch has no other turn")
			}
			turn.Done()
			if !turn.turns.empty() {
				t.Error("a turn has no end")
			}
			watched.Stop()
		})
	})
}

// A response that is not flushed, and a watch that is stopped, have no turn to wait for.
func TestThereIsNotAlwaysATurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s turns
		mine := newTurn(&s)
		if mine.Take(t.Context()) {
			t.Error("a response that has not begun has a turn")
		}
		others := writeAll(&s)
		mine.begin()
		ctx, cancel := context.WithCancel(t.Context())
		taken := make(chan bool)
		go func() { taken <- mine.Take(ctx) }()
		synctest.Wait()
		cancel()
		if <-taken {
			t.Error("a watch that is stopped has a turn")
		}
		go func() { taken <- mine.Take(t.Context()) }()
		synctest.Wait()
		mine.end() // the turn that is waited for is still granted, and ends at once
		others[0].done()
		if <-taken {
			mine.Pass()
		}
		if mine.Take(t.Context()) {
			t.Error("a response that has ended has a turn")
		}
		for _, other := range others[1:] {
			other.done()
		}
		if !s.empty() {
			t.Error("a turn has no end")
		}
	})
}

// TestTheBytesAreThoseThatWereWritten has many watches served at once as the API machinery does it,
// with events of any size.
func TestTheBytesAreThoseThatWereWritten(t *testing.T) {
	const watches, events = 50, 300
	var all sync.WaitGroup
	handler := Handler(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		queue := make(chan watch.Event, 10)
		watched := Gather(req.Context(), watch.NewProxyWatcher(queue))
		defer watched.Stop()
		w.(http.Flusher).Flush()
		all.Go(func() {
			for range events {
				queue <- watch.Event{}
			}
			close(queue)
		})
		var want strings.Builder
		for range watched.ResultChan() {
			text := strings.Repeat(fmt.Sprint(want.Len()%10), 1+rand.IntN(2<<rand.IntN(16)))
			want.WriteString(text)
			for _, part := range []string{text[:1], text[1:]} {
				if n, err := io.WriteString(w, part); n != len(part) || err != nil {
					t.Errorf("wrote %d bytes of %d, %v", n, len(part), err)
				}
			}
			if len(watched.ResultChan()) == 0 {
				w.(http.Flusher).Flush()
			}
		}
		sent := req.Context().Value(writerKey{}).(*writer).ResponseWriter.(*response)
		calls := sent.take()
		if last := calls[len(calls)-1]; last != "flush" {
			t.Errorf("the last event was not flushed: %.20q", last)
		}
		got := strings.Join(slices.DeleteFunc(calls, func(call string) bool { return call == "flush" }), "")
		if got != want.String() {
			t.Errorf("%d bytes were written, and %d others sent", want.Len(), len(got))
		}
	}))
	ctx := request.WithRequestInfo(t.Context(), &request.RequestInfo{IsResourceRequest: true, Verb: "watch"})
	for range watches {
		all.Go(func() {
			handler.ServeHTTP(&response{}, httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx))
		})
	}
	all.Wait()
}
