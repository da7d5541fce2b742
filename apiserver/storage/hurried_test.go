package storage

import (
	"context"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/barque/barque/raftstore"
)

// Some tests of the suite have time limits of seconds for steps that they do not test. The wrappers
// here give these steps the time of a busy machine.

// unhurried creates objects however long it takes.
// RunTestOptionalWatchBookmarksWithCorrectResourceVersion creates a hundred under the deadline that
// ends its watch, and fails when a busy machine has not done the last one by then.
type unhurried struct{ storage.Interface }

// Create implements storage.Interface.
func (u unhurried) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	return u.Interface.Create(context.WithoutCancel(ctx), key, obj, out, ttl)
}

// unlimited has watches last until the test ends. RunTestWatchInitializationSignal makes its object
// and begins a watch of it within five seconds, after which the watch that it waits for would not
// begin at all.
type unlimited struct {
	storage.Interface
	t testing.TB
}

// Watch implements storage.Interface.
func (u unlimited) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	u.t.Cleanup(cancel)
	return u.Interface.Watch(ctx, key, opts)
}

// lasting keeps objects that are to end by themselves. That of RunTestGet, which is about reads,
// lives for a second.
type lasting struct{ storage.Interface }

// GuaranteedUpdate implements storage.Interface.
func (l lasting) GuaranteedUpdate(
	ctx context.Context, key string, out runtime.Object, ignoreNotFound bool, preconditions *storage.Preconditions,
	update storage.UpdateFunc, cached runtime.Object,
) error {
	return l.Interface.GuaranteedUpdate(ctx, key, out, ignoreNotFound, preconditions,
		func(input runtime.Object, res storage.ResponseMeta) (runtime.Object, *uint64, error) {
			obj, _, err := update(input, res)
			return obj, nil, err
		}, cached)
}

// untilBookmark has a watch that ends without a bookmark go on for as long again. One comes two
// seconds before a watch ends: of the three seconds that tests give to a watch, a busy machine may
// not have the rest.
type untilBookmark struct {
	storage.Interface
	env *env
	t   testing.TB
}

// Watch implements storage.Interface.
func (u untilBookmark) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	deadline, limited := ctx.Deadline()
	if !opts.Predicate.AllowWatchBookmarks || !limited {
		return u.Interface.Watch(ctx, key, opts)
	}
	each := time.Until(deadline)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), hang)
	w := &repeatedWatch{told: make(chan watch.Event, 1000), some: make(chan struct{}), cancel: cancel}
	w.first = sync.OnceFunc(func() { close(w.some) })
	begin := func() (watch.Interface, context.CancelFunc, error) {
		ctx, cancel := context.WithTimeout(ctx, each) // brief: then it begins anew
		inner, err := u.Interface.Watch(ctx, key, opts)
		return inner, cancel, err
	}
	inner, end, err := begin()
	if err != nil {
		end()
		cancel()
		return nil, err
	}
	done := make(chan struct{})
	u.t.Cleanup(func() { cancel(); <-done })
	go func() { // ends with the watch, Stop, or the test
		defer close(done)
		defer w.first()
		defer close(w.told)
		for {
			marked := false
			for e := range inner.ResultChan() {
				marked = marked || e.Type == watch.Bookmark
				if e.Type != watch.Error {
					opts.ResourceVersion = revisionOf(e)
				}
				w.told <- e
				w.first()
			}
			inner.Stop()
			end()
			if marked || ctx.Err() != nil {
				return
			}
			// A bookmark needs a new revision of the store.
			beat := raftstore.Txn{
				Ops: []raftstore.Op{{Kind: raftstore.Put, Key: "/beat", Value: []byte(opts.ResourceVersion)}}}
			if _, err := u.env.backend.Commit(ctx, beat); err != nil && ctx.Err() == nil {
				u.t.Errorf("write something else: %v", err)
			}
			if inner, end, err = begin(); err != nil {
				end()
				if ctx.Err() == nil {
					u.t.Errorf("watch again from %s: %v", opts.ResourceVersion, err)
				}
				return
			}
		}
	}()
	return w, nil
}

// repeatedWatch is several watches, one after the other.
type repeatedWatch struct {
	told   chan watch.Event
	some   chan struct{} // closed when told has an entry, or none comes
	first  func()        // closes it
	cancel context.CancelFunc
}

// ResultChan implements watch.Interface. It waits for the first event.
func (w *repeatedWatch) ResultChan() <-chan watch.Event {
	<-w.some
	return w.told
}

// Stop implements watch.Interface.
func (w *repeatedWatch) Stop() { w.cancel() }
