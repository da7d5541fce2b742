// Package lastevents writes the events that wait in a component's queue when the component stops.
//
// Client-go's broadcaster writes events one by one, at the pace of the API server and a rate limit.
// At its shutdown it drops the queue, with the events about the component's last actions. The time
// for them is bounded: events are for people, and a stop does not wait for a silent API server.
package lastevents

import (
	"errors"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
)

// Patience bounds the writing of the last events.
const Patience = 2 * time.Second

// lastKind is the kind of the event that marks the end of the queue. It is not written.
const lastKind = "barque.local/last-event"

// Start writes the broadcaster's events to the sink. stop, which is called once, returns when the
// events before it are written. It returns earlier when the API server does not answer a write, or
// after Patience. The broadcaster is then shut down.
func Start(b record.EventBroadcaster, sink record.EventSink) (stop func()) {
	q := &queue{sink: sink, ended: make(chan struct{})}
	watcher := b.StartRecordingToSink(q)
	return func() {
		if q.stops() {
			b.NewRecorder(scheme.Scheme, v1.EventSource{Component: lastKind}).
				Event(&v1.ObjectReference{Kind: lastKind, Name: lastKind}, v1.EventTypeNormal, "Last",
					"no event follows")
			select {
			case <-q.ended:
			case <-time.After(Patience):
			}
		}
		watcher.Stop()
		b.Shutdown()
	}
}

// queue is the end of a broadcaster's queue.
type queue struct {
	sink  record.EventSink
	ended chan struct{} // closed when nothing more is written

	mu       sync.Mutex
	stopping bool
	silent   bool // the API server did not answer to the last event
	isEnded  bool
}

// stops notes that the component stops. It returns false if events cannot be written now.
func (q *queue) stops() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stopping = true
	return !q.silent
}

func (q *queue) end() {
	if !q.isEnded {
		q.isEnded = true
		close(q.ended)
	}
}

// wrote notes how a write ended. A refusal is an answer: the next event may be taken.
func (q *queue) wrote(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	var answer apierrors.APIStatus
	if q.silent = err != nil && !errors.As(err, &answer); q.silent && q.stopping {
		q.end()
	}
}

// Create implements record.EventSink.
func (q *queue) Create(e *v1.Event) (*v1.Event, error) {
	if e.InvolvedObject.Kind == lastKind {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.end()
		return e, nil
	}
	written, err := q.sink.Create(e)
	q.wrote(err)
	return written, err
}

// Update implements record.EventSink.
func (q *queue) Update(e *v1.Event) (*v1.Event, error) {
	written, err := q.sink.Update(e)
	q.wrote(err)
	return written, err
}

// Patch implements record.EventSink.
func (q *queue) Patch(old *v1.Event, data []byte) (*v1.Event, error) {
	written, err := q.sink.Patch(old, data)
	q.wrote(err)
	return written, err
}
