package storage

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/barque/barque/apiserver/watchwriter"
	"github.com/barque/barque/raftstore"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"
)

// answered is a response. It passes nothing on before its client reads.
type answered struct {
	http.ResponseWriter
	reads   <-chan struct{}
	written strings.Builder
	flushed string
}

func (a *answered) Write(p []byte) (int, error) {
	<-a.reads
	return a.written.Write(p)
}

func (a *answered) Flush()                   { a.flushed = a.written.String() }
func (a *answered) CloseNotify() <-chan bool { return nil }

// inTurn serves watches as the API machinery does, each until it sends a certain pod. The path is
// the number of its predicate.
func (e *env) inTurn(t testing.TB, from uint64, preds []storage.SelectionPredicate, last string) http.Handler {
	return watchwriter.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		pred := preds[r.URL.Path[1]-'0']
		opts := storage.ListOptions{ResourceVersion: strconv.FormatUint(from, 10), Predicate: pred, Recursive: true}
		watched, err := e.store.Watch(r.Context(), "/pods/", opts)
		if err != nil {
			t.Error(err)
			return
		}
		watched = watchwriter.Gather(r.Context(), watched)
		defer watched.Stop()
		w.(http.Flusher).Flush()
		for event := range watched.ResultChan() {
			is := tell(event)
			if _, err := fmt.Fprintln(w, is); err != nil {
				t.Error(err)
			}
			if len(watched.ResultChan()) == 0 {
				w.(http.Flusher).Flush()
			}
			if is.name == last {
				return
			}
		}
		t.Error("a watch has ended")
	}))
}

// TestWatchesInTurnTellAll has watches read and written in turns: of all pods and of one node's, by
// clients that read and by some that do so late, with revisions of one change and of more changes
// than a watch holds.
func TestWatchesInTurnTellAll(t *testing.T) {
	t.Parallel()
	e := newEnv(t, envOptions{cached: true, indexes: true})
	from := e.place(t, "first", "a")
	late, now := make(chan struct{}), make(chan struct{})
	close(now)
	preds := []storage.SelectionPredicate{storage.Everything, ofNode("a")}
	handler := e.inTurn(t, from, preds, "last")
	ctx := request.WithRequestInfo(e.ctx, &request.RequestInfo{IsResourceRequest: true, Verb: "watch"})
	var all [20]answered
	var watches sync.WaitGroup
	for i := range all {
		if all[i].reads = now; i%4 > 1 {
			all[i].reads = late
		}
		r := httptest.NewRequest(http.MethodGet, fmt.Sprintf("/%d", i%2), nil).WithContext(ctx)
		watches.Go(func() { handler.ServeHTTP(&all[i], r) })
	}
	const many = 3 * watchBuffer
	for i := range many {
		e.place(t, "p"+strconv.Itoa(i%7), string(rune('a'+i%3)))
	}
	e.placeAtOnce(t, many)
	for i := range many {
		e.place(t, "p"+strconv.Itoa(i%7), string(rune('a'+i%3)))
	}
	close(late)
	e.place(t, "last", "a")
	watches.Wait()
	for i := range preds {
		var want strings.Builder
		for _, is := range until(t, e.watch(t, preds[i], from), "last") {
			fmt.Fprintln(&want, is)
		}
		for j := i; j < len(all); j += len(preds) {
			if all[j].flushed != want.String() {
				t.Errorf("watch %d was told\n%s\nand not\n%s", j, all[j].flushed, want.String())
			}
		}
	}
}

// TestAWatchKeepsNoRoomForManyEvents sends a watch a revision of many changes.
func TestAWatchKeepsNoRoomForManyEvents(t *testing.T) {
	t.Parallel()
	e := newEnv(t, envOptions{cached: true})
	from := e.place(t, "first", "a")
	handler := watchwriter.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		opts := storage.ListOptions{ResourceVersion: strconv.FormatUint(from, 10), Predicate: storage.Everything,
			Recursive: true}
		watched, err := e.store.Watch(r.Context(), "/pods/", opts)
		if err != nil {
			t.Error(err)
			return
		}
		gathered := watchwriter.Gather(r.Context(), watched)
		w.(http.Flusher).Flush()
		const many = 5 * watchBuffer
		e.placeAtOnce(t, many)
		for range many {
			<-gathered.ResultChan()
		}
		gathered.Stop()
		for range gathered.ResultChan() { // until it has ended
			t.Error("there is one event more")
		}
		if has := cap(watched.(*watcher).events); has > most {
			t.Errorf("there is room for %d events", has)
		}
	}))
	ctx := request.WithRequestInfo(e.ctx, &request.RequestInfo{IsResourceRequest: true, Verb: "watch"})
	handler.ServeHTTP(&answered{}, httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx))
}

// placeAtOnce makes pods in one revision.
func (e *env) placeAtOnce(t testing.TB, n int) {
	t.Helper()
	var ops []raftstore.Op
	for i := range n {
		pod := &example.Pod{}
		pod.Name, pod.Namespace, pod.Spec.NodeName = "m"+strconv.Itoa(i), "ns", "a"
		value, err := runtime.Encode(e.codec, pod)
		if err != nil {
			t.Fatal(err)
		}
		ops = append(ops,
			raftstore.Op{Kind: raftstore.Put, Key: "/pods/ns/" + pod.Name,
				Value: append([]byte(testValuePrefix), value...)})
	}
	if _, err := e.backend.Commit(e.ctx, raftstore.Txn{Ops: ops}); err != nil {
		t.Fatal(err)
	}
}

// moody is a response whose client is slow now and then, and may end.
type moody struct {
	answered
	slow int    // once in so many writes, if not 0
	ends int    // after so many writes, if not 0
	end  func() // with an error, if nil
}

func (m *moody) Write(p []byte) (int, error) {
	if m.slow > 0 && rand.IntN(m.slow) == 0 {
		<-time.After(time.Duration(rand.IntN(12)) * time.Millisecond) // brief: around a turn's patience
	}
	if m.ends--; m.ends == 0 {
		if m.end == nil {
			return 0, errors.New("the client has gone")
		}
		m.end()
	}
	return m.written.Write(p)
}

func (m *moody) Flush() { m.flushed = m.written.String() }

// TestWatchesOfMoodyClientsTellAll has many clients, of which some are slow and others end early:
// the others get all events.
func TestWatchesOfMoodyClientsTellAll(t *testing.T) {
	t.Parallel()
	e := newEnv(t, envOptions{cached: true, indexes: true})
	from := e.place(t, "first", "a")
	preds := []storage.SelectionPredicate{storage.Everything, ofNode("a"), ofNode("none")}
	handler := watchwriter.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		pred := preds[r.URL.Path[1]-'0']
		opts := storage.ListOptions{ResourceVersion: strconv.FormatUint(from, 10), Predicate: pred, Recursive: true}
		watched, err := e.store.Watch(r.Context(), "/pods/", opts)
		if err != nil {
			return // it has ended already
		}
		watched = watchwriter.Gather(r.Context(), watched)
		defer watched.Stop()
		w.(http.Flusher).Flush()
		for {
			select {
			case <-r.Context().Done():
				return
			case event, ok := <-watched.ResultChan():
				if !ok {
					return
				}
				is := tell(event)
				if _, err := fmt.Fprintln(w, is); err != nil {
					return
				}
				if len(watched.ResultChan()) == 0 {
					w.(http.Flusher).Flush()
				}
				if is.name == "last" {
					return
				}
			}
		}
	}))
	ctx := request.WithRequestInfo(e.ctx, &request.RequestInfo{IsResourceRequest: true, Verb: "watch"})
	all := make([]moody, 200)
	var stay, others sync.WaitGroup
	for i := range all {
		mine, cancel := context.WithCancel(ctx)
		t.Cleanup(cancel)
		kind := i % 3
		serve := func() {
			r := httptest.NewRequest(http.MethodGet, fmt.Sprintf("/%d", kind), nil).WithContext(mine)
			handler.ServeHTTP(&all[i], r)
		}
		if i%5 == 0 {
			all[i].slow = 1 + rand.IntN(8)
		}
		switch {
		case kind == 2: // it gets nothing, and ends at any time
			others.Go(serve)
			others.Go(func() {
				<-time.After(time.Duration(rand.IntN(2000)) * time.Millisecond) // brief: nothing waits for its end
				cancel()
			})
		case i%4 == 0:
			all[i].ends, all[i].end = 1+rand.IntN(50), cancel
			others.Go(serve)
		case i%4 == 1:
			all[i].ends = 1 + rand.IntN(50)
			others.Go(serve)
		default:
			stay.Go(serve)
		}
	}
	for range 2 {
		for i := range 3 * watchBuffer {
			e.place(t, "p"+strconv.Itoa(i%7), string(rune('a'+i%3)))
		}
		e.placeAtOnce(t, 3*watchBuffer)
	}
	e.place(t, "last", "a")
	stay.Wait()
	for i := range preds[:2] {
		var want strings.Builder
		for _, is := range until(t, e.watch(t, preds[i], from), "last") {
			fmt.Fprintln(&want, is)
		}
		for j := range all {
			if j%3 == i && j%4 > 1 && all[j].written.String() != want.String() {
				t.Errorf("watch %d was told\n%s\nand not\n%s", j, all[j].written.String(), want.String())
			}
		}
	}
	others.Wait()
}
