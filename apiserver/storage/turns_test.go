package storage

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

// turns lets the scenarios of one test, each with a namespace, go one after the other:
// from a scenario's first object until it stops its watch.
//
// RunWatchSemantics has nearly twenty at once over one store. A watch of its cache holds ten events, of
// all namespaces, and a cache as young as those of tests has no patience: it ends the watches that
// nobody has come to read yet, as it may. A store that commits many objects at once is too quick for
// them. And each event has 150 ms, which twenty together do not always have on a busy machine, without a cache either.
type turns struct {
	storage.Interface
	free chan struct{} // holds a token when nobody has the turn

	mu  sync.Mutex
	now string
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
	case <-time.After(2 * wait.ForeverTestTimeout):
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
	return t.Interface.Create(ctx, key, obj, out, ttl)
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
	return &turnsWatch{Interface: w, give: sync.OnceFunc(t.give)}, nil
}

type turnsWatch struct {
	watch.Interface
	give func()
}

// Stop implements watch.Interface.
func (w *turnsWatch) Stop() {
	w.Interface.Stop()
	w.give()
}

// unhurried creates objects however long it takes. RunTestOptionalWatchBookmarksWithCorrectResourceVersion
// creates a hundred under the deadline that ends its watch, and fails when a busy machine has not done
// the last one by then.
type unhurried struct{ storage.Interface }

// Create implements storage.Interface.
func (u unhurried) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	return u.Interface.Create(context.WithoutCancel(ctx), key, obj, out, ttl)
}
