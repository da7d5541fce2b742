package mvcc

import (
	"context"
	"errors"
	"sort"
	"sync"
	"time"

	"github.com/barque/barque/raftstore/kv"
)

// watcher is a position in a route. It implements kv.Watcher.
type watcher struct {
	log      *eventLog
	route    *route
	pos      int64  // number of the route's next entry
	after    uint64 // everything up to this revision is delivered, or not wanted
	progress time.Duration
	last     time.Time     // when Next returned last
	owed     bool          // progress is due
	asked    chan struct{} // holds a token when progress was requested
	closed   chan struct{}
	once     sync.Once
	left     bool // closed, and out of its route; guarded by the log's lock
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
	if err := l.reaches(after); err != nil {
		return nil, err
	}
	w := &watcher{
		log: l, after: after, progress: opts.Progress, last: time.Now(),
		asked: make(chan struct{}, 1), closed: make(chan struct{}),
	}
	w.enter(opts.Prefix)
	return w, nil
}

// enter takes the watcher's place in the route of the prefix. The caller holds the lock of the log.
func (w *watcher) enter(prefix string) {
	w.route = w.log.join(prefix, w.after)
	skip := sort.Search(len(w.route.entries), func(i int) bool { return w.route.entries[i].revision > w.after })
	w.pos = w.route.first + int64(skip)
}

// reenter goes on in the log that took the place of the one that the watcher was reading, if it has
// all that the watcher has not seen.
func (w *watcher) reenter() error {
	l := w.log
	l.mu.Lock()
	defer l.mu.Unlock()
	old := w.route
	if !old.abandoned || w.left {
		return nil
	}
	if w.pos == old.end() {
		w.after = max(w.after, old.seen)
	}
	if err := l.reaches(w.after); err != nil {
		return err
	}
	l.leave(old)
	w.enter(old.prefix)
	return nil
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
		if errors.Is(err, errAbandoned) {
			if err = w.reenter(); err == nil {
				continue
			}
		}
		if err != nil {
			if errors.Is(err, kv.ErrCompacted) {
				w.log.counts.compacted.Add(1)
			}
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

func (w *watcher) Poll() (kv.Batch, bool) {
	if w.stopped(context.Background()) != nil {
		return kv.Batch{}, false
	}
	batch, _, _, err := w.read()
	if err != nil || batch.Events == nil {
		return kv.Batch{}, false // Next finds out why
	}
	w.last = time.Now()
	return batch, true
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
// has now seen everything, and a channel to wait for.
func (w *watcher) read() (batch kv.Batch, head uint64, changed <-chan struct{}, err error) {
	l := w.log
	l.mu.RLock()
	defer l.mu.RUnlock()
	r := w.route
	if r.abandoned {
		return kv.Batch{}, 0, nil, errAbandoned
	}
	if w.pos < r.first {
		if err := l.reaches(w.after); err != nil {
			return kv.Batch{}, 0, nil, err
		}
		w.pos = r.first // it starts in the future, and wanted nothing of the dropped part
	}
	for ; w.pos < r.end(); w.pos++ {
		if e := r.entries[w.pos-r.first]; e.revision > w.after { // else it starts in the future
			w.pos, w.after = w.pos+1, e.revision
			batch = r.batch(e)
			l.counts.delivered(len(batch.Events), l.head-e.revision)
			return batch, 0, nil, nil
		}
	}
	return kv.Batch{}, l.head, r.changed.wait(), nil
}

// errAbandoned is returned by read, and by nothing else, for a watcher whose route has ended.
var errAbandoned = errors.New("the log was replaced")

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
		w.left = true
		w.log.leave(w.route)
	})
}
