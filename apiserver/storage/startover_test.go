package storage

import (
	"context"
	"errors"
	"path"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
)

// transformable lets a test change how the store reads, in both ways of the suite.
type transformable interface {
	storagetesting.InterfaceWithPrefixTransformer
	storagetesting.InterfaceWithTransformerOverride
}

// startingOver makes store and watch cache anew whenever a test changes what can be read, as a
// server does that starts again. A cache that has decoded its objects goes on with these, and would
// not notice; one that begins with what cannot be read is not ready for as long.
type startingOver struct {
	withPrefixTransformer
	t testing.TB
}

func newStartingOver(t testing.TB, e *env) transformable {
	if !e.cached {
		return withPrefixTransformer{e.store, e}
	}
	return &startingOver{withPrefixTransformer{e.store, e}, t}
}

func (s *startingOver) begin() {
	s.env.start(s.t)
	s.Interface = s.env.store
}

// UpdatePrefixTransformer implements storagetesting.InterfaceWithPrefixTransformer.
func (s *startingOver) UpdatePrefixTransformer(modify storagetesting.PrefixTransformerModifier) func() {
	return s.update(s.withPrefixTransformer.UpdatePrefixTransformer(modify))
}

// UpdateTransformer implements storagetesting.InterfaceWithTransformerOverride.
func (s *startingOver) UpdateTransformer(modify storagetesting.TransformerModifier) func() {
	return s.update(s.withPrefixTransformer.UpdateTransformer(modify))
}

func (s *startingOver) update(revert func()) func() {
	s.begin()
	return func() {
		revert()
		s.begin()
	}
}

// GetList implements storage.Interface. It asks for a first page, as kubectl does: of these a cache
// that is not ready asks the store, and lists of everything it refuses with 429.
func (s *startingOver) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	if opts.Predicate.Limit == 0 {
		opts.Predicate.Limit = 500
	}
	return s.withPrefixTransformer.GetList(ctx, key, opts, list)
}

// paged is a watch cache for RunTestListInconsistentContinuation, which asks for a page of any
// state, and updates an object to one without a namespace.
//
// For any state, which is revision 0, the cache gives all of its own at once, whatever the limit
// is: it is asked for the newest. And it files objects by the names in them: it gets what the API
// server would have made of that object, whose namespace is in its key.
type paged struct{ storage.Interface }

// GetList implements storage.Interface.
func (p paged) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	if opts.ResourceVersion == "0" && opts.Predicate.Limit > 0 {
		opts.ResourceVersion = ""
	}
	return p.Interface.GetList(ctx, key, opts, list)
}

// GuaranteedUpdate implements storage.Interface.
func (p paged) GuaranteedUpdate(ctx context.Context, key string, out runtime.Object, ignoreNotFound bool, preconditions *storage.Preconditions, update storage.UpdateFunc, cached runtime.Object) error {
	return p.Interface.GuaranteedUpdate(ctx, key, out, ignoreNotFound, preconditions, func(input runtime.Object, res storage.ResponseMeta) (runtime.Object, *uint64, error) {
		obj, ttl, err := update(input, res)
		if pod, ok := obj.(*example.Pod); ok {
			pod.Namespace = path.Base(path.Dir(key))
		}
		return obj, ttl, err
	}, cached)
}

// progressing has a store tell its progress in bookmarks, as the watch cache has it, and asks for
// it after each new object.
type progressing struct{ storage.Interface }

// Watch implements storage.Interface.
func (p progressing) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	opts.ProgressNotify = opts.Predicate.AllowWatchBookmarks
	return p.Interface.Watch(ctx, key, opts)
}

// Create implements storage.Interface.
func (p progressing) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	return errors.Join(p.Interface.Create(ctx, key, obj, out, ttl), p.RequestWatchProgress(context.WithoutCancel(ctx)))
}
