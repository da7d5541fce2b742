package fieldindex

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/barque/barque/raftstore"
)

// Watch is a raftstore.Watcher of the changes of objects with one value of the field of an
// index. While it reads history, it may return other changes, too: its reader checks the objects.
type Watch struct {
	index  *Index
	value  string
	prefix string
	after  uint64 // changes up to this revision were returned by Next
	owed   atomic.Bool

	// Guarded by the lock of the index.
	history raftstore.Watcher // nil while the queue has the next changes; changed by Next alone
	entered bool
	from    uint64 // the queue has the changes after this revision
	queue   []raftstore.Batch

	woken  chan struct{} // holds a token when the queue has changed
	closed chan struct{}
	once   sync.Once
}

var _ raftstore.Watcher = (*Watch)(nil)

// Watch returns a watch of the changes after a revision, 0 for the newest.
func (x *Index) Watch(prefix, value string, after uint64) (*Watch, error) {
	w := &Watch{
		index: x, value: value, prefix: prefix, after: after,
		woken: make(chan struct{}, 1), closed: make(chan struct{}),
	}
	if err := w.begin(); err != nil {
		return nil, err
	}
	return w, nil
}

// begin enters the index, and reads history if the index does not reach back far enough.
func (w *Watch) begin() error {
	if from, entered := w.index.enter(w); entered && (w.after >= from || w.after == 0) {
		w.after = max(w.after, from)
		return nil
	}
	history, err := w.index.cfg.History(raftstore.WatchOptions{Prefix: w.prefix, After: w.after})
	if err != nil {
		w.Close()
		return err
	}
	w.index.mu.Lock()
	w.history = history
	closed := w.isClosed()
	w.index.mu.Unlock()
	if closed { // meanwhile: Close has not seen it
		history.Close()
		return raftstore.ErrClosed
	}
	w.join()
	history.RequestProgress()
	return nil
}

// join enters the index, if it can be entered, and leaves history once the queue has the
// following changes.
func (w *Watch) join() {
	if from, entered := w.index.enter(w); !entered || w.after < from {
		return
	}
	w.history.Close()
	w.index.mu.Lock()
	defer w.index.mu.Unlock()
	w.history = nil
	if w.owed.Swap(false) {
		w.ask()
	}
}

// ask has the index report its progress. The caller holds the lock of the index.
func (w *Watch) ask() {
	if w.entered && w.index.source != nil {
		w.index.asking[w] = true
		w.index.source.RequestProgress()
	}
}

// Next implements raftstore.Watcher.
func (w *Watch) Next(ctx context.Context) (raftstore.Batch, error) {
	for {
		if w.history != nil {
			batch, err := w.history.Next(ctx)
			if err != nil {
				return raftstore.Batch{}, err
			}
			w.after = max(w.after, batch.Revision)
			wanted := len(batch.Events) > 0 || w.owed.Swap(false)
			w.join()
			if wanted {
				return batch, nil
			}
			continue
		}
		batch, has, entered := w.unseen()
		switch {
		case has:
			return batch, nil
		case !entered:
			if err := w.begin(); err != nil {
				return raftstore.Batch{}, err
			}
		default:
			if err := w.await(ctx); err != nil {
				return raftstore.Batch{}, err
			}
		}
	}
}

// Poll implements raftstore.Watcher.
func (w *Watch) Poll() (raftstore.Batch, bool) {
	if w.isClosed() {
		return raftstore.Batch{}, false
	}
	if w.history != nil {
		batch, has := w.history.Poll()
		if has {
			w.after = max(w.after, batch.Revision)
			w.join()
		}
		return batch, has
	}
	batch, has, _ := w.unseen()
	return batch, has
}

func (w *Watch) isClosed() bool {
	select {
	case <-w.closed:
		return true
	default:
		return false
	}
}

func (w *Watch) await(ctx context.Context) error {
	select {
	case <-w.woken:
		return nil
	case <-w.closed:
		return raftstore.ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// unseen takes the first batch out of the queue that the watch has not returned. It also reports
// whether the index still knows the watch.
func (w *Watch) unseen() (batch raftstore.Batch, has, entered bool) {
	for {
		batch, has, entered = w.pop()
		if !has || batch.Revision > w.after || batch.Revision == w.after && len(batch.Events) == 0 {
			w.after = max(w.after, batch.Revision)
			return batch, has, entered
		}
		// It was in history, or is before the beginning.
	}
}

// pop takes the first batch out of the queue. It also reports whether the index still knows
// the watch.
func (w *Watch) pop() (batch raftstore.Batch, has, entered bool) {
	w.index.mu.Lock()
	defer w.index.mu.Unlock()
	if has = len(w.queue) > 0; has {
		batch, w.queue[0] = w.queue[0], raftstore.Batch{}
		if w.queue = w.queue[1:]; len(w.queue) == 0 {
			w.queue = nil
		}
	}
	return batch, has, w.entered
}

// push adds a batch to the queue. The caller holds the lock of the index.
func (w *Watch) push(batch raftstore.Batch) {
	w.queue = append(w.queue, batch)
	w.wake()
}

func (w *Watch) wake() {
	select {
	case w.woken <- struct{}{}:
	default:
	}
}

// RequestProgress implements raftstore.Watcher.
func (w *Watch) RequestProgress() {
	x := w.index
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case w.history != nil:
		w.owed.Store(true)
		w.history.RequestProgress()
	default:
		w.ask()
	}
}

// Close implements raftstore.Watcher.
func (w *Watch) Close() {
	w.once.Do(func() {
		close(w.closed)
		w.index.mu.Lock()
		defer w.index.mu.Unlock()
		w.index.expel(w)
		if w.history != nil {
			w.history.Close()
		}
	})
}
