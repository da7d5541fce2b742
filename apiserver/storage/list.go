package storage

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	goruntime "runtime"
	"time"

	"github.com/barque/barque/apiserver/objectcache"
	"github.com/barque/barque/apiserver/rawlist"
	"github.com/barque/barque/apiserver/storeerror"
	"github.com/barque/barque/raftstore"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3/metrics"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// filteredCapacity bounds how many items a list with a selector makes room for before it knows how
// many match.
const filteredCapacity = 256

// GetList implements storage.Interface. The whole list comes from one snapshot, so it needs no
// paging of its own: the limit of a page counts matching objects.
func (s *Store) GetList(ctx context.Context, key string, opts storage.ListOptions, listObj runtime.Object) error {
	prefix, err := s.prepareKey(key, opts.Recursive)
	if err != nil {
		return err
	}
	if s.objects != nil && opts.ResourceVersion == "0" && opts.Predicate.Continue == "" {
		opts.Predicate.Limit = 0 // Kubernetes lists all that it has in memory at once
	}
	l, err := s.newListing(ctx, prefix, opts, listObj)
	if err != nil {
		return err
	}
	pinned, continueKey, err := storage.ValidateListOptions(prefix, s.versioner, opts)
	if err != nil {
		return err
	}
	start := time.Now()
	// The cost of a list is recorded when it fails, too.
	defer func() {
		metrics.RecordStorageListMetrics(s.groupResource, l.indexName(), l.fetched, l.evaluated, l.len())
		metrics.RecordListLatency(s.groupResource, false, start)
	}()

	view, err := s.listView(ctx, opts, uint64(pinned), continueKey, prefix)
	if err != nil {
		return err
	}
	if pinned <= 0 && continueKey == "" {
		if keys, as, ok := s.indexed(ctx, prefix, opts.Recursive, &opts.Predicate, view); ok {
			view, l.keys = as, keys
		}
	}
	l.begin(view, continueKey)
	if raw := s.rawList(ctx, opts); raw != nil {
		err := l.collectRaw(raw)
		if !errors.Is(err, rawlist.ErrTooLarge) {
			return err
		}
		raw.Abandon()
		l.begin(view, continueKey)
	}
	return l.collect()
}

// listView returns the snapshot that a list requests.
func (s *Store) listView(
	ctx context.Context, opts storage.ListOptions, pinned uint64, continueKey, prefix string,
) (raftstore.View, error) {
	verb := "list"
	if !opts.Recursive {
		verb = "get"
	}
	switch {
	case pinned > 0:
		view, err := s.viewAt(ctx, verb, pinned)
		if errors.Is(err, raftstore.ErrCompacted) {
			return nil, storeerror.ExpiredList(err, continueKey, prefix)
		}
		return view, err
	case continueKey != "":
		// A continuation whose own revision is gone goes on at the newest one.
		return s.view(ctx, verb, raftstore.ViewOptions{})
	}
	return s.viewNotOlder(ctx, verb, opts.ResourceVersion)
}

// indexed returns the keys of the objects that can match a predicate, with a snapshot in which they
// can, which is no older than the one given. It is false where all objects are to be visited.
func (s *Store) indexed(
	ctx context.Context, prefix string, recursive bool, pred *storage.SelectionPredicate, view raftstore.View,
) (keys []string, as raftstore.View, ok bool) {
	value, ok := s.index.Wanted(pred)
	if !ok || !recursive {
		return nil, nil, false
	}
	keys, revision, ok := s.index.List(ctx, prefix, value, view.Revision())
	if !ok || revision == view.Revision() {
		return keys, view, ok
	}
	as, err := s.backend.View(ctx, raftstore.ViewOptions{Revision: revision})
	return keys, as, err == nil
}

// listing makes one list.
type listing struct {
	store  *Store
	ctx    context.Context
	prefix string // of the keys, or the key itself
	opts   storage.ListOptions
	list   runtime.Object
	items  *listItems
	keys   []string // of the objects to visit; nil for all below the prefix
	// byLabels is set when the labels of an object can be read without decoding it, and matter.
	byLabels bool
	walk
}

// walk is one walk through a snapshot.
type walk struct {
	view raftstore.View
	from string   // the first key
	raw  *rawList // gets the objects instead of the list's items, unless it is nil
	errs listErrors

	lastKey            string
	hasMore            bool
	failed             error
	fetched, evaluated int
	kept               int // bytes of the stored objects that were decoded for all
}

func (s *Store) newListing(
	ctx context.Context, prefix string, opts storage.ListOptions, list runtime.Object,
) (*listing, error) {
	items, err := newListItems(list)
	if err != nil {
		return nil, err
	}
	byLabels := (s.plain || s.sealer != nil) && opts.Predicate.Label != nil && !opts.Predicate.Label.Empty()
	return &listing{store: s, ctx: ctx, prefix: prefix, opts: opts, list: list, items: items, byLabels: byLabels}, nil
}

// begin begins with a snapshot, at the key after which a page is continued, or else with the first.
func (l *listing) begin(view raftstore.View, continueKey string) {
	from := l.prefix
	if continueKey != "" {
		from = continueKey
	}
	l.walk = walk{view: view, from: from, errs: listErrors{aggregate: l.store.nameCorrupt}}
}

// collect puts objects into the list.
func (l *listing) collect() error {
	if err := l.visitAll(); err != nil {
		return err
	}
	return l.complete()
}

// visitAll visits all objects that may be in the list.
func (l *listing) visitAll() error {
	switch {
	case l.keys != nil:
		for _, key := range l.keys {
			if item, ok := l.view.Get(key); ok && !l.visit(item) {
				break
			}
		}
	case l.opts.Recursive:
		if l.raw == nil {
			l.items.grow(l.capacity())
		}
		l.view.Ascend(l.prefix, l.from, l.visit)
	default:
		if item, ok := l.view.Get(l.prefix); ok {
			l.visit(item)
		}
	}
	if l.failed != nil {
		return l.failed
	}
	return l.errs.asAPIError(l.store.groupResource)
}

// complete gives the list its metadata.
func (l *listing) complete() error {
	var remaining int64
	if l.hasMore && l.opts.Predicate.Empty() {
		remaining = int64(l.view.Count(l.prefix, l.from))
	}
	revision := l.view.Revision()
	token, remainingItems, err := storage.PrepareContinueToken(l.lastKey, l.prefix, int64(revision), remaining,
		l.hasMore, l.opts)
	if err != nil {
		return err
	}
	l.items.finish()
	if err := l.store.versioner.UpdateList(l.list, revision, token, remainingItems); err != nil {
		return err
	}
	if utilfeature.DefaultFeatureGate.Enabled(features.ShardedListAndWatch) {
		l.opts.Predicate.SetShardInfoOnList(l.list)
	}
	return nil
}

// capacity guesses how many items the list will hold.
func (l *listing) capacity() int {
	limit := l.opts.Predicate.Limit
	if limit > 0 && limit <= filteredCapacity {
		return int(limit)
	}
	count := l.view.Count(l.prefix, l.from)
	if limit > 0 {
		count = min(count, int(limit))
	}
	if !l.opts.Predicate.Empty() {
		count = min(count, filteredCapacity)
	}
	return count
}

// indexName is the name of the index that selected the objects, "" without one.
func (l *listing) indexName() string {
	if l.keys == nil {
		return ""
	}
	return storage.FieldIndex(l.store.index.Field())
}

// len is how many objects the list has by now.
func (l *listing) len() int {
	if l.raw != nil {
		return l.raw.Len()
	}
	return l.items.len()
}

// visit takes one stored item and reports whether the walk goes on.
func (l *listing) visit(item raftstore.Item) bool {
	if limit := l.opts.Predicate.Limit; limit > 0 && int64(l.len()) >= limit {
		l.hasMore = true
		return false
	}
	l.fetched++
	l.lastKey = item.Key
	if l.ctx.Err() != nil {
		l.failed = storage.NewTimeoutError(item.Key, "the list was not complete when the request's time was over")
		return false
	}
	err := l.add(item)
	if err == nil {
		l.evaluated++
		return true
	}
	if errors.Is(err, rawlist.ErrTooLarge) {
		l.failed = err
		return false
	}
	goOn := l.errs.add(item.Key, err)
	if !goOn {
		l.failed = l.errs.asAPIError(l.store.groupResource)
	}
	return goOn
}

// add decodes an item in its place in the list and takes it out again when it does not match.
func (l *listing) add(item raftstore.Item) error {
	s := l.store
	if l.raw != nil {
		return l.raw.Add(l.ctx, item.Key, item.Value, item.ModRevision)
	}
	if l.byLabels && s.readable(item.Value) && !l.labelled(item.Value) {
		return nil
	}
	if s.objects != nil {
		if o, err := l.shared(storedItem(&item)); o != nil || err != nil {
			return l.addShared(o, err)
		}
	}
	data, err := s.transform(l.ctx, item.Key, item.Value)
	if err != nil {
		return listError(item.Key, err)
	}
	slot := l.items.push()
	obj, err := s.decode(l.ctx, item.Key, data, item.ModRevision, slot)
	goruntime.Gosched() // a long list takes a core for seconds, and others want to answer
	if err != nil {
		l.items.pop()
		return err
	}
	if matched, err := l.opts.Predicate.Matches(obj); err != nil || !matched {
		l.items.pop()
		return nil
	}
	if obj != slot {
		l.items.replaceLast(obj)
	}
	return nil
}

// labelled reports from the stored labels whether an object can match. Every kind that is stored as
// protobuf is selected by the labels in its metadata, and every custom resource by those that
// decoding leaves.
func (l *listing) labelled(value []byte) bool {
	stored, ok := rawlist.StoredLabels(value)
	if !ok && l.store.format.Marked(value) {
		stored, ok = l.store.format.Labels(value)
	}
	return !ok || l.opts.Predicate.Label.Matches(stored)
}

// shared returns the decoded object of an item. It is nil for one that is not decoded yet when the
// list is too long to be kept.
func (l *listing) shared(of objectcache.Stored) (*objectcache.Object, error) {
	if o := l.store.objects.Peek(of); o != nil {
		return o, nil
	}
	if l.kept += len(of.Value); !l.store.objects.Fits(l.kept) {
		return nil, nil
	}
	o, err := l.store.shared(l.ctx, of)
	goruntime.Gosched() // as add does
	if err != nil {
		return nil, listError(of.Key, err)
	}
	return o, nil
}

// addShared adds a decoded object if it matches.
func (l *listing) addShared(o *objectcache.Object, err error) error {
	if err != nil {
		return err
	}
	if matched, err := l.opts.Predicate.Matches(o.Shared()); err != nil || !matched {
		return nil
	}
	if slot := l.items.push(); !o.CopyTo(slot) {
		l.items.pop()
		return fmt.Errorf("a %T is stored where a list has a %T", o.Shared(), slot)
	}
	return nil
}

// listError makes an answer of why an object of a list could not be read.
func listError(key string, err error) error {
	var transform *transformError
	if errors.As(err, &transform) {
		return storage.NewInternalError(fmt.Errorf("unable to transform key %q: %w", key, transform.err))
	}
	return err
}

// listItems appends to the Items of a list, decoding in place: an object of the list costs no
// allocation and no copy of its own.
type listItems struct {
	slice reflect.Value
	n     int
	// apiVersion that the items of an unstructured list are to have, if the list has one.
	apiVersion string
}

func newListItems(listObj runtime.Object) (*listItems, error) {
	ptr, err := meta.GetItemsPtr(listObj)
	if err != nil {
		return nil, err
	}
	slice, err := conversion.EnforcePtr(ptr)
	if err != nil || slice.Kind() != reflect.Slice {
		return nil, fmt.Errorf("need a pointer to a slice for the items of %T: %v", listObj, err)
	}
	slice.SetZero()
	items := &listItems{slice: slice}
	if list, ok := listObj.(*unstructured.UnstructuredList); ok {
		items.apiVersion = list.GetAPIVersion()
	}
	return items, nil
}

func (l *listItems) len() int { return l.n }

func (l *listItems) grow(n int) { l.slice.Grow(n) }

// push makes room for one more item and returns it, empty.
func (l *listItems) push() runtime.Object {
	if l.slice.Cap() == l.n {
		l.slice.Grow(1)
	}
	l.n++
	l.slice.SetLen(l.n)
	obj := l.slice.Index(l.n - 1).Addr().Interface().(runtime.Object)
	if l.apiVersion != "" {
		if u, ok := obj.(*unstructured.Unstructured); ok {
			u.Object = map[string]any{"apiVersion": l.apiVersion}
		}
	}
	return obj
}

// pop takes the last item out and leaves its place empty for the next one.
func (l *listItems) pop() {
	l.n--
	l.slice.Index(l.n).SetZero()
	l.slice.SetLen(l.n)
}

func (l *listItems) replaceLast(obj runtime.Object) {
	l.slice.Index(l.n - 1).Set(reflect.ValueOf(obj).Elem())
}

// finish makes an empty list one with no items rather than one with null.
func (l *listItems) finish() {
	if l.slice.IsNil() {
		l.slice.Set(reflect.MakeSlice(l.slice.Type(), 0, 0))
	}
}
