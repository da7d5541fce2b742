package storage

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/barque/barque/apiserver/rawlist"
	"github.com/barque/barque/raftstore"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher/delegator"
	cachermetrics "k8s.io/apiserver/pkg/storage/cacher/metrics"
)

// rawList is a list that is answered with stored bytes.
type rawList struct {
	*rawlist.List
	store *Store
	// cache spares the decoding of an object that it has at the same revision; nil where there is
	// none.
	cache *resuming
}

// rawList returns the list to fill in place of one of objects. It is nil where stored bytes are not
// what is sent, or where objects have to be looked into to know whether they are wanted.
func (s *Store) rawList(ctx context.Context, opts storage.ListOptions) *rawList {
	raw := rawlist.From(ctx)
	if raw == nil || !raw.Takes(s.format) || !opts.Recursive || !opts.Predicate.Empty() {
		return nil
	}
	return &rawList{List: raw, store: s}
}

func (r *rawList) decode(ctx context.Context, key string, value []byte, revision uint64) (runtime.Object, error) {
	if r.cache != nil {
		if obj := r.cache.cached(ctx, key, revision); obj != nil {
			return obj, nil
		}
	}
	data, _, err := r.store.transformer.TransformFromStorage(ctx, value, keyContext(key))
	if err != nil {
		return nil, storage.NewInternalError(fmt.Errorf("unable to transform key %q: %w", key, err))
	}
	return r.store.decode(ctx, key, data, revision, r.store.newObject())
}

// begin prepares for the objects that a listing will visit. It is false where they are too many, as
// far as that can be told before they are encoded.
func (r *rawList) begin(l *listing) bool {
	objects := l.view.Count(l.prefix, l.from)
	if limit := l.opts.Predicate.Limit; limit > 0 {
		objects = min(objects, int(limit))
	}
	if !r.Begin(r.store.format, objects, r.decode) {
		return false
	}
	if !r.Copies() {
		return true
	}
	bytes := 0
	l.view.Ascend(l.prefix, l.from, func(item raftstore.Item) bool {
		bytes += len(item.Value)
		objects--
		return objects > 0 && r.Fits(bytes)
	})
	return r.Fits(bytes)
}

// collectRaw puts objects into raw as they are stored, and all else into the list. It fails with
// rawlist.ErrTooLarge where that would take too much memory. Then nothing has been written.
func (l *listing) collectRaw(raw *rawList) error {
	l.raw = raw
	if !raw.begin(l) {
		return rawlist.ErrTooLarge
	}
	if err := l.visitAll(); err != nil {
		return err
	}
	if err := l.complete(); err != nil {
		return err
	}
	raw.End(l.list, l.addObjects)
	return nil
}

// addObjects puts the objects of a raw list into one that has everything else.
func (l *listing) addObjects(list runtime.Object) error {
	items, err := newListItems(list)
	if err != nil {
		return err
	}
	again := *l
	again.items = items
	again.walk = walk{view: l.view, from: l.from, errs: listErrors{aggregate: l.errs.aggregate}}
	if err := again.visitAll(); err != nil {
		return err
	}
	items.finish()
	return nil
}

// listRaw answers a list with stored bytes where the watch cache would answer otherwise. It returns
// false where the cache has to, because it would wait or fail, and what it then says is its own.
// What the cache leaves to the store, the store answers so by itself.
func (r *resuming) listRaw(ctx context.Context, key string, opts storage.ListOptions, listObj runtime.Object) (bool, error) {
	raw := r.store.rawList(ctx, opts)
	if raw == nil || !r.cache.Ready() {
		return false, nil
	}
	answers, err := delegator.ShouldDelegateList(opts, r.cache)
	if err != nil || answers.ShouldDelegate {
		return false, nil
	}
	if opts.ResourceVersion == "0" {
		if opts.Predicate.Continue != "" {
			return false, nil
		}
		opts.Predicate.Limit = 0 // as the cache has it
	}
	prefix, err := r.store.prepareKey(key, opts.Recursive)
	if err != nil {
		return false, nil
	}
	pinned, continueKey, err := storage.ValidateListOptions(prefix, r.store.versioner, opts)
	if err != nil {
		return false, nil
	}
	l, err := r.store.newListing(ctx, prefix, opts, listObj)
	if err != nil {
		return false, nil
	}
	// Tokens of the cache begin with the slash after the registry's key. Both mean the same.
	l.strip = r.store.pathPrefix + strings.TrimPrefix(key, "/")
	// What this server has costs nothing, and tells whether it is worth asking for more.
	here, err := r.store.backend.View(ctx, raftstore.ViewOptions{Stale: true})
	if err != nil || here.Revision() == 0 {
		return false, nil
	}
	if l.begin(here, continueKey); !raw.begin(l) {
		return false, nil
	}
	view, err := r.cachedView(ctx, here, opts, uint64(pinned), answers.ConsistentRead)
	if err != nil {
		r.countConsistent(false)
		return true, err
	}
	if view == nil {
		return false, nil
	}
	l.begin(view, continueKey)
	raw.cache = r
	if err := l.collectRaw(raw); err != nil {
		raw.Abandon()
		return false, nil
	}
	if answers.ConsistentRead {
		r.countConsistent(true)
	}
	// Without selectors the cache has no use for an index.
	cachermetrics.RecordListCacheMetrics(r.store.groupResource, "", view.Count(prefix, l.from), l.len())
	return true, nil
}

// cachedView returns a snapshot that is as new as what the watch cache would show. It is nil where
// the cache would wait for a revision, or would not have it. It fails only where the cache would
// with the same error: for the newest state both ask the same question. Otherwise the cache asks
// nobody, so nothing is accounted. It is filled from the state that this server has here, and is
// never newer.
func (r *resuming) cachedView(ctx context.Context, here raftstore.View, opts storage.ListOptions, pinned uint64, consistent bool) (raftstore.View, error) {
	if consistent {
		return r.store.view(ctx, "getCurrentResourceVersion", raftstore.ViewOptions{})
	}
	wanted := pinned
	if wanted == 0 {
		var err error
		if wanted, err = r.store.versioner.ParseResourceVersion(opts.ResourceVersion); err != nil {
			return nil, nil
		}
	}
	if here.Revision() < wanted {
		return nil, nil
	}
	if pinned == 0 || pinned == here.Revision() {
		return here, nil
	}
	view, err := r.store.backend.View(ctx, raftstore.ViewOptions{Revision: pinned})
	if err != nil {
		return nil, nil
	}
	return view, nil
}

// countConsistent counts a read of the newest state as the cache does.
func (r *resuming) countConsistent(success bool) {
	of := r.store.groupResource
	cachermetrics.ConsistentReadTotal.WithLabelValues(of.Group, of.Resource, strconv.FormatBool(success), "false").Inc()
}

// cached returns a copy of an object as the watch cache has it, nil when it does not have it at
// that revision. The copy is shallow: nothing that it refers to may be changed.
func (r *resuming) cached(ctx context.Context, key string, revision uint64) runtime.Object {
	obj := r.store.newObject()
	key = "/" + strings.TrimPrefix(key, r.store.pathPrefix)
	if err := r.CacheDelegator.Get(ctx, key, storage.GetOptions{ResourceVersion: "0"}, obj); err != nil {
		return nil
	}
	if has, err := r.store.versioner.ObjectResourceVersion(obj); err != nil || has != revision {
		return nil
	}
	return obj
}
