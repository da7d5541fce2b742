package storage

import (
	"context"

	"github.com/barque/barque/apiserver/objectcache"
	"github.com/barque/barque/apiserver/rawlist"
	"github.com/barque/barque/raftstore"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// rawList is a list that is answered with stored bytes.
type rawList struct {
	*rawlist.List
	store *Store
}

// rawList returns the list to fill in place of one of objects. It is nil where stored bytes are not
// the sent ones, or where a selector needs decoded objects.
func (s *Store) rawList(ctx context.Context, opts storage.ListOptions) *rawList {
	raw := rawlist.From(ctx)
	if raw == nil || !raw.Takes(s.format) || !opts.Recursive || !opts.Predicate.Empty() {
		return nil
	}
	return &rawList{List: raw, store: s}
}

func (r *rawList) decode(ctx context.Context, key string, value []byte, revision uint64) (runtime.Object, error) {
	obj := r.store.newObject()
	of := objectcache.Stored{Key: key, Value: value, Revision: revision}
	if o := r.store.peek(of); o != nil && o.CopyTo(obj) {
		return obj, nil
	}
	data, err := r.store.transform(ctx, key, value)
	if err != nil {
		return nil, listError(key, err)
	}
	return r.store.decode(ctx, key, data, revision, obj)
}

// begin prepares for the objects that a listing will visit. It is false where they are too many, as
// far as that is known before they are encoded.
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

// addObjects puts the objects of a raw list into one that is complete otherwise.
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
