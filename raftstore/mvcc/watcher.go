package mvcc

import (
	"context"
	"sort"
	"sync"
	"time"

	"github.com/barque/barque/raftstore/kv"
)

// watcher is a position in a route. It implements kv.Watcher.
type watcher struct {
	log      *eventLog
	route    *route
	pos      uint64 // number of the route's next batch
	after    uint64 // everything up to this revision is delivered, or not wanted
	progress time.Duration
	last     time.Time     // when Next returned last
	owed     bool          // progress is due
	asked    chan struct{} // holds a token when progress was requested
	closed   chan struct{}
	once     sync.Once
}

func (l *eventLog) subscribe(opts kv.WatchOptions) (kv.Watcher, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, l.cause
	}
	after := opts.After
	if after == 0 {
		after = l.head
	}
	if after < l.compacted {
		return nil, kv.ErrCompacted
	}
	w := &watcher{
		log: l, route: l.join(opts.Prefix), after: after, progress: opts.Progress, last: time.Now(),
		asked: make(chan struct{}, 1), closed: make(chan struct{}),
	}
	skip := sort.Search(len(w.route.batches), func(i int) bool { return w.route.batches[i].Revision > after })
	w.pos = w.route.base + uint64(skip)
	return w, nil
}

func (w *watcher) Next(ctx context.Context) (kv.Batch, error) {
	for {
		if err := w.stopped(ctx); err != nil {
			return kv.Batch{}, err
		}
		var moved <-chan struct{}
		if w.owed {
			moved = w.log.moved.wait()
		}
		batch, head, changed, err := w.read()
		if err != nil {
			return kv.Batch{}, err
		}
		if batch.Events != nil {
			w.last = time.Now()
			return batch, nil
		}
		// Everything up to head has been delivered, so progress does not overtake an event.
		if w.owed && head >= w.after {
			w.owed, w.after, w.last = false, head, time.Now()
			return kv.Batch{Revision: head}, nil
		}
		if err := w.await(ctx, changed, moved); err != nil {
			return kv.Batch{}, err
		}
	}
}

// stopped returns why there is nothing more to wait for, before anything is delivered.
func (w *watcher) stopped(ctx context.Context) error {
	select {
	case <-w.closed:
		return kv.ErrClosed
	case <-w.log.done:
		return w.log.cause
	case <-ctx.Done():
		return context.Cause(ctx)
	default:
		return nil
	}
}

// read takes the next batch. Without one it returns the head of the log, up to which the watcher
// has now seen everything, and what to wait for.
func (w *watcher) read() (batch kv.Batch, head uint64, changed <-chan struct{}, err error) {
	w.log.mu.RLock()
	defer w.log.mu.RUnlock()
	r := w.route
	for {
		if r.lost || w.pos < r.base {
			return kv.Batch{}, 0, nil, kv.ErrCompacted
		}
		i := w.pos - r.base
		if i == uint64(len(r.batches)) {
			return kv.Batch{}, w.log.head, r.changed.wait(), nil
		}
		w.pos++
		if b := r.batches[i]; b.Revision > w.after {
			w.after = b.Revision
			return b, 0, nil, nil
		}
	}
}

// await waits until there may be something to read, or until progress is due, which it notes.
func (w *watcher) await(ctx context.Context, changed, moved <-chan struct{}) error {
	var tick <-chan time.Time
	if w.progress > 0 && !w.owed { // owed already: the log has not come to the watcher's start yet

		timer := time.NewTimer(time.Until(w.last.Add(w.progress)))
		defer timer.Stop()
		tick = timer.C
	}
	select {
	case <-changed:
	case <-moved:
	case <-w.asked:
		w.owed = true
	case <-tick:
		w.owed = true
	case <-w.closed:
		return kv.ErrClosed
	case <-w.log.done:
		return w.log.cause
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

func (w *watcher) RequestProgress() {
	select {
	case w.asked <- struct{}{}:
	default:
	}
}

func (w *watcher) Close() {
	w.once.Do(func() {
		close(w.closed)
		w.log.mu.Lock()
		defer w.log.mu.Unlock()
		w.log.leave(w.route)
	})
}
