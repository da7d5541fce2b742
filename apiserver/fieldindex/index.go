package fieldindex

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/barque/barque/apiserver/objectcache"
	"github.com/barque/barque/raftstore"
	"k8s.io/apiserver/pkg/storage"
)

// Index sorts the objects of a resource by the value of one field: pods by their node. A watch
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
type Index struct {
	cfg Config

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
	watches  map[string]map[*Watch]bool
	waiting  map[*Watch]bool // want to enter when it knows the objects
	asking   map[*Watch]bool // want to know how far it is
	moved    chan struct{}   // closed, and replaced, when revision has changed
}

// Config has the resource of an index.
type Config struct {
	// Field is the name of the field.
	Field string
	// Prefix begins the keys of all objects.
	Prefix string
	// View returns this server's state.
	View func(ctx context.Context) (raftstore.View, error)
	// Value returns the field's value of a stored object. It is false for an object that cannot be
	// read: every watch gets it, and every list reads it, and returns the error. With keep, the
	// object is wanted decoded next.
	Value func(ctx context.Context, of objectcache.Stored, keep bool) (string, bool)
	// Follow begins the index's own watch, and History the one of a Watch that begins in the past.
	Follow, History func(raftstore.WatchOptions) (raftstore.Watcher, error)
	Logger          *slog.Logger
}

const (
	// QueueLength is how many revisions with changes an index keeps for one watch.
	QueueLength = 256
	// pause is how long an index waits before it begins anew.
	pause = 100 * time.Millisecond
)

// New returns an index, which begins with its first watch.
func New(cfg Config) *Index {
	return &Index{
		cfg: cfg, watches: make(map[string]map[*Watch]bool), waiting: make(map[*Watch]bool),
		asking: make(map[*Watch]bool), moved: make(chan struct{}),
	}
}

// Field is the name of the field.
func (x *Index) Field() string { return x.cfg.Field }

// Wanted returns the value that a predicate demands. It is false where it demands none, and for a
// nil index.
func (x *Index) Wanted(pred *storage.SelectionPredicate) (string, bool) {
	if x == nil || pred.Field == nil {
		return "", false
	}
	return pred.Field.RequiresExactMatch(x.cfg.Field)
}

// start begins to follow the resource, once.
func (x *Index) start() {
	if x.started || x.closed {
		return
	}
	x.started = true
	ctx, cancel := context.WithCancel(context.Background())
	x.cancel = cancel
	x.running.Go(func() { x.run(ctx) }) // ends with Close
}

// Close ends the index, and waits for its goroutine. Its watches find out from history.
func (x *Index) Close() {
	x.mu.Lock()
	x.closed = true
	if x.cancel != nil {
		x.cancel()
	}
	x.mu.Unlock()
	x.running.Wait()
}

// run follows the resource, and begins anew when history was faster.
func (x *Index) run(ctx context.Context) {
	for {
		err := x.read(ctx)
		x.reset()
		if ctx.Err() != nil || errors.Is(err, raftstore.ErrClosed) {
			return // the watches find out from history
		}
		x.cfg.Logger.Debug("the index begins anew", "field", x.cfg.Field, "err", err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// reset drops all state. The watches read history until the index knows the objects again.
func (x *Index) reset() {
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
func (x *Index) read(ctx context.Context) error {
	prefix := x.cfg.Prefix
	view, err := x.cfg.View(ctx)
	if err != nil {
		return err
	}
	source, err := x.cfg.Follow(raftstore.WatchOptions{Prefix: prefix, After: view.Revision()})
	if err != nil {
		return err
	}
	defer source.Close()
	values, keys, unread := make(map[string]string), make(map[string]map[string]bool), make(map[string]bool)
	view.Ascend(prefix, prefix, func(item raftstore.Item) bool {
		if value, known := x.cfg.Value(ctx, stored(&item), false); known {
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

func stored(item *raftstore.Item) objectcache.Stored {
	return objectcache.Stored{Key: item.Key, Value: item.Value, Revision: item.ModRevision}
}

// take hands out the changes of one revision, or learns how far the store is.
func (x *Index) take(ctx context.Context, batch raftstore.Batch) {
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
		// Watches want it decoded next.
		changes[i].value, changes[i].known = x.cfg.Value(ctx, stored(&batch.Events[i].Item), true)
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
			if len(w.queue) < QueueLength { // else its consumer has enough to do
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
func (x *Index) drop(key string) {
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
func (x *Index) advance(revision uint64) {
	x.revision = revision
	close(x.moved)
	x.moved = make(chan struct{})
}

// deliver queues a change for the watches of a value. Changes of one revision are one batch.
func (x *Index) deliver(value string, revision uint64, event *raftstore.Event) {
	for w := range x.watches[value] {
		if !strings.HasPrefix(event.Item.Key, w.prefix) {
			continue
		}
		if n := len(w.queue); n > 0 && w.queue[n-1].Revision == revision {
			w.queue[n-1].Events = append(w.queue[n-1].Events, *event)
			continue
		}
		if len(w.queue) == QueueLength {
			x.expel(w)
			continue
		}
		w.push(raftstore.Batch{Revision: revision, Events: []raftstore.Event{*event}})
	}
}

// enter adds a watch, unless it is there already, and returns the revision after which its queue
// has all changes. It is false while the index does not know the objects.
func (x *Index) enter(w *Watch) (from uint64, entered bool) {
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
		x.watches[w.value] = make(map[*Watch]bool)
	}
	x.watches[w.value][w] = true
	w.entered, w.from = true, x.revision
	if w.history != nil {
		w.history.RequestProgress() // which reports that it has come to that revision
	}
	return w.from, true
}

// Stats returns the number of values with watches, and of objects that could not be read.
func (x *Index) Stats() (values, unread int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.watches), len(x.unread)
}

// expel takes out a watch, which goes on with the store's history. The caller holds the lock.
func (x *Index) expel(w *Watch) {
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

// List returns the keys of the objects with a value, in order, and the revision as of which they
// are. Those that could not be read may have it, too. It waits until the revision is not below the
// one given. It is false while no watch uses the index.
func (x *Index) List(
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
