package storage

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

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

// inTurn serves watches as the API machinery does, each until it tells of a pod. The path is the
// number of its predicate.
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
	var ops []raftstore.Op
	for i := range many {
		e.place(t, "p"+strconv.Itoa(i%7), string(rune('a'+i%3)))
		pod := &example.Pod{}
		pod.Name, pod.Namespace, pod.Spec.NodeName = "m"+strconv.Itoa(i), "ns", "a"
		value, err := runtime.Encode(e.codec, pod)
		if err != nil {
			t.Fatal(err)
		}
		ops = append(ops, raftstore.Op{Kind: raftstore.Put, Key: "/pods/ns/" + pod.Name, Value: append([]byte(testValuePrefix), value...)})
	}
	if _, err := e.backend.Commit(e.ctx, raftstore.Txn{Ops: ops}); err != nil {
		t.Fatal(err)
	}
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
