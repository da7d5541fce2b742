package storage

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

// turns lets the scenarios of one test, each with a namespace, go one after the other:
// from a scenario's first object until it stops its watch.
//
// RunWatchSemantics has nearly twenty at once over one store. A watch of its cache holds ten
// events, of all namespaces, and a cache as young as those of tests has no patience: it may end
// watches that are not read yet. A store that commits many objects at once is too quick for them.
// And each event of an object that is made while it watches has 150 ms, which a busy machine does
// not always keep: its watches are read once such an event is there.
type turns struct {
	storage.Interface
	free chan struct{} // holds a token when the turn is free

	mu   sync.Mutex
	now  string
	last uint64 // revision of the newest object
}

func newTurns(s storage.Interface) *turns {
	t := &turns{Interface: s, free: make(chan struct{}, 1)}
	t.free <- struct{}{}
	return t
}

// take waits until it is the turn of the namespace of a key.
func (t *turns) take(key string) error {
	namespace, _, _ := strings.Cut(strings.TrimPrefix(key, "/pods/"), "/")
	t.mu.Lock()
	mine := t.now == namespace
	t.mu.Unlock()
	if mine {
		return nil
	}
	select {
	case <-t.free:
	case <-time.After(hang):
		return errors.New("another scenario has not ended its watch")
	}
	t.mu.Lock()
	t.now = namespace
	t.mu.Unlock()
	return nil
}

func (t *turns) give() {
	t.mu.Lock()
	t.now = ""
	t.mu.Unlock()
	t.free <- struct{}{}
}

// Create implements storage.Interface.
func (t *turns) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	if err := t.take(key); err != nil {
		return err
	}
	if err := t.Interface.Create(ctx, key, obj, out, ttl); err != nil {
		return err
	}
	revision, err := t.Versioner().ObjectResourceVersion(out)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = revision
	return err
}

func (t *turns) newest() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last
}

// Watch implements storage.Interface.
func (t *turns) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	if err := t.take(key); err != nil {
		return nil, err
	}
	w, err := t.Interface.Watch(ctx, key, opts)
	if err != nil {
		t.give()
		return nil, err
	}
	return newTurnsWatch(t, w), nil
}

// turnsWatch passes on the events of a watch.
type turnsWatch struct {
	watch.Interface
	turns  *turns
	before uint64 // revision of the newest object when it began
	stop   func()

	told    chan watch.Event
	stopped chan struct{}
	over    chan struct{} // closed when nothing more comes

	mu    sync.Mutex
	at    uint64        // revision of the last object in told
	moved chan struct{} // closed and replaced when that changes
}

func newTurnsWatch(t *turns, inner watch.Interface) *turnsWatch {
	w := &turnsWatch{
		Interface: inner, turns: t, before: t.newest(),
		told: make(chan watch.Event, 100), stopped: make(chan struct{}), over: make(chan struct{}),
		moved: make(chan struct{}),
	}
	w.stop = sync.OnceFunc(func() {
		close(w.stopped)
		inner.Stop()
		<-w.over
		t.give()
	})
	go w.hand() // ends with Stop, which every scenario calls, or with the watch
	return w
}

func (w *turnsWatch) hand() {
	defer close(w.over)
	defer close(w.told)
	for e := range w.Interface.ResultChan() {
		select {
		case w.told <- e:
		case <-w.stopped:
			return
		}
		if e.Type == watch.Added {
			w.move(revisionOf(e))
		}
	}
}

func (w *turnsWatch) move(to string) {
	revision, err := w.turns.Versioner().ParseResourceVersion(to)
	if err != nil {
		return // the scenario reads the event itself
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.at = revision
	close(w.moved)
	w.moved = make(chan struct{})
}

// ResultChan implements watch.Interface. It waits for the event of the newest object, if that was
// made since the watch began.
func (w *turnsWatch) ResultChan() <-chan watch.Event {
	newest, patience := w.turns.newest(), time.After(hang)
	for newest > w.before {
		w.mu.Lock()
		at, moved := w.at, w.moved
		w.mu.Unlock()
		if at >= newest {
			break
		}
		select {
		case <-moved:
		case <-w.over:
			return w.told
		case <-patience:
			return w.told
		}
	}
	return w.told
}

// Stop implements watch.Interface.
func (w *turnsWatch) Stop() { w.stop() }
