package storage

import (
	"context"
	"errors"
	"testing"

	"github.com/barque/barque/raftstore"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
)

// transformable lets a test change how the store reads, in both ways of the suite.
type transformable interface {
	storagetesting.InterfaceWithPrefixTransformer
	storagetesting.InterfaceWithTransformerOverride
}

// startingOver makes the store anew whenever a test changes which values can be read, as a
// restarted server does. A server that has decoded its objects goes on with these, and would
// not notice.
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

// paged is for tests that list a page of any state, which is revision 0. With decoded objects
// the store then returns all objects, with any limit, as Kubernetes does: so paged lists the
// newest state.
type paged struct{ storage.Interface }

// GetList implements storage.Interface.
func (p paged) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	if opts.ResourceVersion == "0" && opts.Predicate.Limit > 0 {
		opts.ResourceVersion = ""
	}
	return p.Interface.GetList(ctx, key, opts, list)
}

// settled is for a test that takes any state for the newest: a server that follows has all that was
// written before a list.
type settled struct {
	storage.Interface
	env *env
}

// GetList implements storage.Interface.
func (s settled) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	if _, err := s.env.backend.View(ctx, raftstore.ViewOptions{}); err != nil {
		return err
	}
	return s.Interface.GetList(ctx, key, opts, list)
}

// progressing has a store report its progress in bookmarks, and requests them after each
// new object.
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
