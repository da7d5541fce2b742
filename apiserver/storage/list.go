package storage

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

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

// GetList implements storage.Interface. The whole list comes from one picture, so it needs no
// paging of its own: the limit of a page counts matching objects.
func (s *Store) GetList(ctx context.Context, key string, opts storage.ListOptions, listObj runtime.Object) error {
	prefix, err := s.prepareKey(key, opts.Recursive)
	if err != nil {
		return err
	}
	items, err := newListItems(listObj)
	if err != nil {
		return err
	}
	pinned, continueKey, err := storage.ValidateListOptions(prefix, s.versioner, opts)
	if err != nil {
		return err
	}

	l := &listing{store: s, ctx: ctx, pred: opts.Predicate, items: items, errs: listErrors{aggregate: s.nameCorrupt}}
	start := time.Now()
	// What a list costs is recorded when it fails, too.
	defer func() {
		metrics.RecordStorageListMetrics(s.groupResource, "", l.fetched, l.evaluated, items.len())
		metrics.RecordListLatency(s.groupResource, false, start)
	}()

	view, err := s.listView(ctx, opts, uint64(pinned), continueKey, prefix)
	if err != nil {
		return err
	}
	from := prefix
	if continueKey != "" {
		from = continueKey
	}
	if opts.Recursive {
		items.grow(l.capacity(view, prefix, from))
		view.Ascend(prefix, from, l.visit)
	} else if item, ok := view.Get(prefix); ok {
		l.visit(item)
	}
	if l.failed != nil {
		return l.failed
	}
	if err := l.errs.asAPIError(s.groupResource); err != nil {
		return err
	}

	var remaining int64
	if l.hasMore && opts.Predicate.Empty() {
		remaining = int64(view.Count(prefix, from))
	}
	revision := view.Revision()
	token, remainingItems, err := storage.PrepareContinueToken(l.lastKey, prefix, int64(revision), remaining, l.hasMore, opts)
	if err != nil {
		return err
	}
	items.finish()
	if err := s.versioner.UpdateList(listObj, revision, token, remainingItems); err != nil {
		return err
	}
	if utilfeature.DefaultFeatureGate.Enabled(features.ShardedListAndWatch) {
		opts.Predicate.SetShardInfoOnList(listObj)
	}
	return nil
}

// listView returns the picture that a list asks for.
func (s *Store) listView(ctx context.Context, opts storage.ListOptions, pinned uint64, continueKey, prefix string) (raftstore.View, error) {
	verb := "list"
	if !opts.Recursive {
		verb = "get"
	}
	switch {
	case pinned > 0:
		view, err := s.viewAt(ctx, verb, pinned)
		if errors.Is(err, raftstore.ErrCompacted) {
			return nil, expiredList(continueKey, prefix)
		}
		return view, err
	case continueKey != "":
		// A continuation whose own revision is gone goes on at the newest one.
		return s.view(ctx, verb, raftstore.ViewOptions{})
	}
	return s.viewNotOlder(ctx, verb, opts.ResourceVersion)
}

// listing is one walk through a picture.
type listing struct {
	store *Store
	ctx   context.Context
	pred  storage.SelectionPredicate
	items *listItems
	errs  listErrors

	lastKey            string
	hasMore            bool
	failed             error
	fetched, evaluated int
}

// capacity guesses how many items the list will hold.
func (l *listing) capacity(view raftstore.View, prefix, from string) int {
	if limit := l.pred.Limit; limit > 0 && limit <= filteredCapacity {
		return int(limit)
	}
	count := view.Count(prefix, from)
	if limit := l.pred.Limit; limit > 0 {
		count = min(count, int(limit))
	}
	if !l.pred.Empty() {
		count = min(count, filteredCapacity)
	}
	return count
}

// visit takes one stored item and says whether the walk goes on.
func (l *listing) visit(item raftstore.Item) bool {
	if limit := l.pred.Limit; limit > 0 && int64(l.items.len()) >= limit {
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
	goOn := l.errs.add(item.Key, err)
	if !goOn {
		l.failed = l.errs.asAPIError(l.store.groupResource)
	}
	return goOn
}

// add decodes an item in its place in the list and takes it out again when it does not match.
func (l *listing) add(item raftstore.Item) error {
	s := l.store
	data, _, err := s.transformer.TransformFromStorage(l.ctx, item.Value, keyContext(item.Key))
	if err != nil {
		return storage.NewInternalError(fmt.Errorf("unable to transform key %q: %w", item.Key, err))
	}
	slot := l.items.push()
	obj, err := s.decode(l.ctx, item.Key, data, item.ModRevision, slot)
	if err != nil {
		l.items.pop()
		return err
	}
	if matched, err := l.pred.Matches(obj); err != nil || !matched {
		l.items.pop()
		return nil
	}
	if obj != slot {
		l.items.replaceLast(obj)
	}
	return nil
}

// listItems appends to the Items of a list, decoding in place: an object of the list costs no
// allocation and no copy of its own.
type listItems struct {
	slice reflect.Value
	n     int
	// apiVersion that the items of an unstructured list are to have, if it is one that says so.
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
