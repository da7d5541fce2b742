package storage

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/barque/barque/apiserver/objectcache"
	"github.com/barque/barque/raftstore"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// An index sorts the objects of a resource by the value of one field: pods by their node. A watch
// that wants one value is woken for changes of objects that have it, or had it before. So a
// thousand kubelets, each of which watches its own pods, cost as much as the changes of those pods.
//
// The index follows the resource by a watch of its own:
//
//	store ──each change──▶ index ──those with the value──▶ queue of a watch
//	  └─────────history, until the watch has caught up─────────▶┘
//
// A watch that begins in the past reads the store's history first. It is in the index meanwhile,
// and skips the changes that it has from both. When the queue of a watch is full, because its
// consumer is slow, the index drops it: the watch reads history from where it was. When history
// does not reach back so far, it ends with 410, as any watch does.
type index struct {
	store  *Store
	follow func(raftstore.WatchOptions) (raftstore.Watcher, error) // the backend's Watch
	field  string
	value  func(runtime.Object) string

	running sync.WaitGroup // of the goroutine

	mu       sync.Mutex
	started  bool
	closed   bool
	cancel   context.CancelFunc // ends the goroutine
	source   raftstore.Watcher
	revision uint64                     // up to which it knows the objects; 0 while it does not
	values   map[string]string          // of the objects' keys
	keys     map[string]map[string]bool // of the objects with a value
	unread   map[string]bool            // keys of objects with an unknown value: it may be any
	watches  map[string]map[*fieldWatch]bool
	waiting  map[*fieldWatch]bool // want to enter when it knows the objects
	asking   map[*fieldWatch]bool // want to know how far it is
	moved    chan struct{}        // closed, and replaced, when revision has changed
}

const (
	// indexQueue is how many revisions with changes an index keeps for one watch.
	indexQueue = 256
	// indexPause is how long an index waits before it begins anew.
	indexPause = 100 * time.Millisecond
)

func newIndex(s *Store, field string, value func(runtime.Object) string) *index {
	return &index{
		store: s, follow: s.backend.Watch, field: field, value: value,
		watches: make(map[string]map[*fieldWatch]bool), waiting: make(map[*fieldWatch]bool),
		asking: make(map[*fieldWatch]bool), moved: make(chan struct{}),
	}
}

// wanted returns the value that a predicate demands. It is false where it demands none.
func (x *index) wanted(pred *storage.SelectionPredicate) (string, bool) {
	if x == nil || pred.Field == nil {
		return "", false
	}
	return pred.Field.RequiresExactMatch(x.field)
}

// start begins to follow the resource, once.
func (x *index) start() {
	if x.started || x.closed {
		return
	}
	x.started = true
	ctx, cancel := context.WithCancel(context.Background())
	x.cancel = cancel
	x.running.Go(func() { x.run(ctx) }) // ends with close
}

// close ends the index, and waits for its goroutine. Its watches find out from history.
func (x *index) close() {
	x.mu.Lock()
	x.closed = true
	if x.cancel != nil {
		x.cancel()
	}
	x.mu.Unlock()
	x.running.Wait()
}

// run follows the resource, and begins anew when history was faster.
func (x *index) run(ctx context.Context) {
	for {
		err := x.read(ctx)
		x.reset()
		if ctx.Err() != nil || errors.Is(err, raftstore.ErrClosed) {
			return // the watches find out from history
		}
		x.store.log.Debug("the index begins anew", "field", x.field, "err", err)
		select {
		case <-time.After(indexPause):
		case <-ctx.Done():
			return
		}
	}
}

// reset drops all state. The watches read history until the index knows the objects again.
func (x *index) reset() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.advance(0) // lists that wait for it go on without it
	x.source, x.values, x.keys, x.unread = nil, nil, nil, nil
	for _, watches := range x.watches {
		for w := range watches {
			x.expel(w)
		}
	}
}

// read reads all objects, and then their changes.
func (x *index) read(ctx context.Context) error {
	prefix, err := x.store.prepareKey(x.store.resourcePrefix, true)
	if err != nil {
		return err
	}
	view, err := x.store.view(ctx, "list", raftstore.ViewOptions{Stale: true})
	if err != nil {
		return err
	}
	source, err := x.follow(raftstore.WatchOptions{Prefix: prefix, After: view.Revision()})
	if err != nil {
		return err
	}
	defer source.Close()
	values, keys, unread := make(map[string]string), make(map[string]map[string]bool), make(map[string]bool)
	view.Ascend(prefix, prefix, func(item raftstore.Item) bool {
		if value, known := x.valueOf(ctx, &item); known {
			set(values, keys, item.Key, value)
		} else {
			unread[item.Key] = true
		}
		return ctx.Err() == nil
	})
	if err := ctx.Err(); err != nil {
		return err // it has not seen all
	}
	x.mu.Lock()
	x.source, x.values, x.keys, x.unread = source, values, keys, unread
	x.advance(view.Revision())
	for w := range x.waiting { // each enters with the next batch that it reads
		w.history.RequestProgress()
	}
	clear(x.waiting)
	x.mu.Unlock()
	for {
		batch, err := source.Next(ctx)
		if err != nil {
			return err
		}
		x.take(ctx, batch)
	}
}

// valueOf returns the value of an object's field. It is false for an object that cannot be read:
// every watch gets it, and every list reads it, and returns the error.
func (x *index) valueOf(ctx context.Context, item *raftstore.Item) (string, bool) {
	of := storedItem(item)
	if value, ok := x.stored(of); ok {
		return value, true
	}
	if o := x.store.peek(of); o != nil {
		return x.value(o.Shared()), true
	}
	obj, err := x.store.decodeStored(ctx, of)
	if err != nil {
		return "", false
	}
	return x.value(obj), true
}

// stored returns the value of an object's field from its bytes, where it is found there.
func (x *index) stored(of objectcache.Stored) (string, bool) {
	if !x.store.marked(of) {
		return "", false
	}
	return x.store.format.Field(x.field, of.Value)
}

// take hands out the changes of one revision, or learns how far the store is.
func (x *index) take(ctx context.Context, batch raftstore.Batch) {
	type change struct {
		event *raftstore.Event
		value string
		known bool
	}
	changes := make([]change, len(batch.Events))
	for i := range batch.Events {
		changes[i].event = &batch.Events[i]
		if batch.Events[i].Kind == raftstore.Deleted {
			continue
		}
		of := storedItem(&batch.Events[i].Item)
		if changes[i].value, changes[i].known = x.stored(of); changes[i].known {
			continue
		}
		// Watches want it decoded next.
		if o, err := x.store.shared(ctx, of); err == nil {
			changes[i].value, changes[i].known = x.value(o.Shared()), true
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, c := range changes {
		key := c.event.Item.Key
		was, had := x.values[key]
		x.drop(key)
		deleted := c.event.Kind == raftstore.Deleted
		switch {
		case c.known:
			set(x.values, x.keys, key, c.value)
		case !deleted:
			x.unread[key] = true
		}
		if !c.known && !deleted || !had && c.event.Kind != raftstore.Created {
			for value := range x.watches {
				x.deliver(value, batch.Revision, c.event)
			}
			continue
		}
		if had {
			x.deliver(was, batch.Revision, c.event)
		}
		if c.known && (!had || c.value != was) {
			x.deliver(c.value, batch.Revision, c.event)
		}
	}
	x.advance(batch.Revision)
	if len(batch.Events) == 0 {
		for w := range x.asking {
			if len(w.queue) < indexQueue { // else its consumer has enough to do
				w.push(raftstore.Batch{Revision: batch.Revision})
			}
		}
		clear(x.asking)
	}
}

func set(values map[string]string, keys map[string]map[string]bool, key, value string) {
	values[key] = value
	if keys[value] == nil {
		keys[value] = make(map[string]bool)
	}
	keys[value][key] = true
}

// drop drops an object.
func (x *index) drop(key string) {
	delete(x.unread, key)
	value, ok := x.values[key]
	if !ok {
		return
	}
	delete(x.values, key)
	if delete(x.keys[value], key); len(x.keys[value]) == 0 {
		delete(x.keys, value)
	}
}

// advance notes up to which revision the index knows the objects, 0 for not at all.
func (x *index) advance(revision uint64) {
	x.revision = revision
	close(x.moved)
	x.moved = make(chan struct{})
}

// deliver queues a change for the watches of a value. Changes of one revision are one batch.
func (x *index) deliver(value string, revision uint64, event *raftstore.Event) {
	for w := range x.watches[value] {
		if !strings.HasPrefix(event.Item.Key, w.prefix) {
			continue
		}
		if n := len(w.queue); n > 0 && w.queue[n-1].Revision == revision {
			w.queue[n-1].Events = append(w.queue[n-1].Events, *event)
			continue
		}
		if len(w.queue) == indexQueue {
			x.expel(w)
			continue
		}
		w.push(raftstore.Batch{Revision: revision, Events: []raftstore.Event{*event}})
	}
}

// enter adds a watch, unless it is there already, and returns the revision after which its queue
// has all changes. It is false while the index does not know the objects.
func (x *index) enter(w *fieldWatch) (from uint64, entered bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if w.entered {
		return w.from, true
	}
	if w.isClosed() {
		return 0, false
	}
	x.start()
	if x.revision == 0 {
		if w.history != nil {
			x.waiting[w] = true
		}
		return 0, false
	}
	if x.watches[w.value] == nil {
		x.watches[w.value] = make(map[*fieldWatch]bool)
	}
	x.watches[w.value][w] = true
	w.entered, w.from = true, x.revision
	if w.history != nil {
		w.history.RequestProgress() // which reports that it has come to that revision
	}
	return w.from, true
}

// expel takes out a watch, which goes on with the store's history. The caller holds the lock.
func (x *index) expel(w *fieldWatch) {
	if w.entered {
		if delete(x.watches[w.value], w); len(x.watches[w.value]) == 0 {
			delete(x.watches, w.value)
		}
	}
	delete(x.waiting, w)
	delete(x.asking, w)
	w.entered, w.queue = false, nil
	w.wake()
}

// list returns the keys of the objects with a value, in order, and the revision as of which they
// are. Those that could not be read may have it, too. It waits until the revision is not below the
// one given. It is false while no watch uses the index.
func (x *index) list(
	ctx context.Context, prefix, value string, notBefore uint64,
) (keys []string, revision uint64, ok bool) {
	for {
		x.mu.Lock()
		if x.revision == 0 || x.closed {
			x.mu.Unlock()
			return nil, 0, false
		}
		if x.revision >= notBefore {
			keys = make([]string, 0, len(x.keys[value])+len(x.unread))
			for _, some := range []map[string]bool{x.keys[value], x.unread} {
				for key := range some {
					if strings.HasPrefix(key, prefix) {
						keys = append(keys, key)
					}
				}
			}
			revision = x.revision
			x.mu.Unlock()
			slices.Sort(keys)
			return keys, revision, true
		}
		moved := x.moved
		x.source.RequestProgress()
		x.mu.Unlock()
		select {
		case <-moved:
		case <-ctx.Done():
			return nil, 0, false
		}
	}
}
