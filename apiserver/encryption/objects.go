package encryption

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/barque/barque/apiserver/storage"
	"github.com/barque/barque/raftstore"
)

// Store is the part of raftstore.Store that Objects need.
type Store interface {
	View(ctx context.Context, opts raftstore.ViewOptions) (raftstore.View, error)
	Commit(ctx context.Context, txn raftstore.Txn) (raftstore.Result, error)
	Compact(ctx context.Context, revision uint64) error
}

// Objects are the stored objects of all resources.
type Objects struct {
	Store        Store
	Transformers *Transformers
	Now          func() time.Time
}

// writers is how many objects are rewritten at a time: what waits for the disks at the same time
// goes out as one log entry.
const writers = 16

// everything is where all objects are.
const everything = storage.DefaultPrefix + "/"

func (o *Objects) prefixes(resources []string) (all []string) {
	for _, r := range resources {
		all = append(all, o.Transformers.prefix(schema.ParseGroupResource(r)))
	}
	return all
}

func hasPrefix(key string, prefixes []string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(key, p) {
			return true
		}
	}
	return false
}

// forms knows the form in which each object is to be.
type forms struct {
	all     *Transformers
	epoch   *Epoch
	covered []string
	where   locator
}

func (o *Objects) forms(e *Epoch) *forms {
	f := &forms{all: o.Transformers, epoch: e, covered: o.prefixes(e.Resources)}
	if f.all.outside != nil {
		f.where = f.all.locator()
	}
	return f
}

// form is that of one object: under a data key, as a transformer from outside writes it, or else in
// clear.
type form struct {
	resource schema.GroupResource // known if there may be a transformer from outside
	outside  value.Transformer
	id       string
}

func (f *forms) of(key string) (is form) {
	if f.where != nil {
		if resource, ok := f.where.resource(key); ok {
			is.resource = resource
			if is.outside = f.all.outsideWrites(resource, f.epoch); is.outside != nil {
				return is
			}
			if f.all.outsideOf(resource) != nil {
				is.id = f.epoch.Writes
				return is
			}
		}
	}
	if hasPrefix(key, f.covered) {
		is.id = f.epoch.Writes
	}
	return is
}

// has reports whether an object is in its form. Only a transformer from outside has to decrypt a
// value for that, which may fail.
func (f *forms) has(ctx context.Context, item *raftstore.Item) (bool, error) {
	want := f.of(item.Key)
	if want.outside == nil {
		return KeyOf(item.Value) == want.id && (want.id != "" || !Enciphered(item.Value)), nil
	}
	if bytes.HasPrefix(item.Value, []byte(Prefix)) {
		return false, nil
	}
	_, stale, err := want.outside.TransformFromStorage(ctx, item.Value, place(item.Key))
	return !stale, err
}

// Count returns how many values are under which key of the newest state, and how many values are in
// clear that are to be encrypted, which is under "". A value of another provider counts for its
// beginning.
func (o *Objects) Count(ctx context.Context, e *Epoch) (map[string]int, error) {
	view, err := o.Store.View(ctx, raftstore.ViewOptions{})
	if err != nil {
		return nil, fmt.Errorf("count the encrypted objects: %w", err)
	}
	n, forms := map[string]int{}, o.forms(e)
	view.Ascend(everything, "", func(item raftstore.Item) bool {
		switch id := KeyOf(item.Value); {
		case id != "":
			n[id]++
		case Enciphered(item.Value):
			n[Provider(item.Value)]++
		case !forms.clear(ctx, &item):
			n[""]++
		}
		return ctx.Err() == nil
	})
	return n, context.Cause(ctx)
}

// clear reports whether a value in clear is to be so. Without keys it is to be encrypted if they
// cover it: somebody may ask how much is not.
func (f *forms) clear(ctx context.Context, item *raftstore.Item) bool {
	want := f.of(item.Key)
	if want.outside != nil {
		has, _ := f.has(ctx, item) // reading a value in clear does not fail
		return has
	}
	return want.id == "" && !hasPrefix(item.Key, f.covered)
}

// Left returns how many objects are not in the form of the Epoch. An object of which that is not
// known is an error.
func (o *Objects) Left(ctx context.Context, e *Epoch) (n int, err error) {
	view, err := o.Store.View(ctx, raftstore.ViewOptions{})
	if err != nil {
		return 0, fmt.Errorf("look for objects that are not rewritten: %w", err)
	}
	found, err := o.look(ctx, view, o.forms(e))
	if err != nil {
		return 0, err
	}
	return len(found.stale), unreadable(found.unreadable)
}

// InUse reports whether a value of the newest state is under the key of the ID.
func (o *Objects) InUse(ctx context.Context, id string) (used bool, err error) {
	view, err := o.Store.View(ctx, raftstore.ViewOptions{})
	if err != nil {
		return false, fmt.Errorf("look for values under data key %s: %w", id, err)
	}
	view.Ascend(everything, "", func(item raftstore.Item) bool {
		used = KeyOf(item.Value) == id
		return !used
	})
	return used, nil
}

// DropHistory drops the history of the store up to now.
func (o *Objects) DropHistory(ctx context.Context) (floor uint64, err error) {
	view, err := o.Store.View(ctx, raftstore.ViewOptions{})
	if err != nil {
		return 0, err
	}
	return view.Revision(), o.Store.Compact(ctx, view.Revision())
}

// Rewrite brings all objects into the form of the Epoch: those of its resources under the key that
// encrypts, all others in clear, and those of resources from outside as their transformer writes.
// It writes in the term, and only while the Epoch is the newest one. An object that cannot be read
// is an error that names it, after all others are done.
func (o *Objects) Rewrite(ctx context.Context, term uint64, e *Epoch, report func(left int)) error {
	for {
		view, err := o.Store.View(ctx, raftstore.ViewOptions{})
		if err != nil {
			return fmt.Errorf("look for objects to rewrite: %w", err)
		}
		forms := o.forms(e)
		found, err := o.look(ctx, view, forms)
		if err != nil {
			return err
		}
		report(len(found.stale) + len(found.unreadable))
		if len(found.stale)+len(found.unreadable) == 0 {
			return nil
		}
		if err := o.rewriteAll(ctx, term, forms, found, report); err != nil {
			return err
		}
	}
}

// look has the objects that are not in their form, and those of which that is not known.
type look struct {
	stale      []raftstore.Item
	unreadable []*unreadableError
}

// maxFailing bounds the time for which a look tries values that cannot be decrypted: each may wait
// for a plugin that does not answer.
const maxFailing = 10 * time.Second

func (o *Objects) look(ctx context.Context, view raftstore.View, forms *forms) (found look, err error) {
	var failing time.Duration
	view.Ascend(everything, "", func(item raftstore.Item) bool {
		began := o.Now()
		has, err := forms.has(ctx, &item)
		switch {
		case err != nil:
			failing += o.Now().Sub(began)
			found.unreadable = append(found.unreadable, &unreadableError{item.Key, err})
		case !has:
			found.stale = append(found.stale, item)
		}
		return ctx.Err() == nil && failing < maxFailing
	})
	return found, context.Cause(ctx)
}

// maxNamed bounds how many unreadable objects an error names.
const maxNamed = 5

func (o *Objects) rewriteAll(ctx context.Context, term uint64, forms *forms, found look, report func(left int)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var working sync.WaitGroup
	var left atomic.Int64
	left.Store(int64(len(found.stale)))
	todo := make(chan raftstore.Item)
	var mu sync.Mutex
	var failed error // ends it
	cannotRead := found.unreadable
	for range writers {
		working.Go(func() {
			for item := range todo {
				err := o.rewrite(ctx, term, forms, item)
				if n := left.Add(-1); n%100 == 0 {
					report(int(n))
				}
				if err == nil {
					continue
				}
				mu.Lock()
				if cannot, is := errors.AsType[*unreadableError](err); is {
					cannotRead = append(cannotRead, cannot)
				} else if failed == nil {
					failed = err
					cancel()
				}
				mu.Unlock()
			}
		})
	}
	for _, item := range found.stale {
		if ctx.Err() != nil {
			break
		}
		todo <- item
	}
	close(todo)
	working.Wait()
	switch {
	case failed != nil:
		return failed
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return unreadable(cannotRead)
}

// unreadable returns one error for all objects that cannot be read, or nil without any.
func unreadable(all []*unreadableError) error {
	if len(all) == 0 {
		return nil
	}
	// In the order of keys, so that the same objects are the same error.
	slices.SortFunc(all, func(a, b *unreadableError) int { return strings.Compare(a.key, b.key) })
	var named []error
	for _, cannot := range all[:min(len(all), maxNamed)] {
		named = append(named, cannot)
	}
	return fmt.Errorf("%d objects cannot be read, and are as they were: %w", len(all), errors.Join(named...))
}

// unreadableError is returned for an object that cannot be decrypted.
type unreadableError struct {
	key string
	err error
}

func (e *unreadableError) Error() string { return e.err.Error() }
func (e *unreadableError) Unwrap() error { return e.err }

// place authenticates a value by its key in the store, as package storage does.
type place string

// AuthenticatedData implements value.Context.
func (p place) AuthenticatedData() []byte { return []byte(p) }

// rewrite writes one object anew. One that has changed meanwhile is left for the next look.
func (o *Objects) rewrite(ctx context.Context, term uint64, forms *forms, item raftstore.Item) error {
	e, want := forms.epoch, forms.of(item.Key)
	value, _, _, err := o.Transformers.open(ctx, want.resource, item.Value, place(item.Key))
	if err != nil {
		return &unreadableError{item.Key, err}
	}
	switch {
	case want.outside != nil:
		value, err = want.outside.TransformToStorage(ctx, value, place(item.Key))
	case want.id != "":
		value, err = o.Transformers.Seal(ctx, want.id, value, place(item.Key))
	}
	if err != nil {
		return err
	}
	op := raftstore.Op{Kind: raftstore.Put, Key: item.Key, Value: value}
	if item.Expires > 0 {
		op.TTL = time.Duration(max(1, item.Expires-o.Now().UnixMilli())) * time.Millisecond
	}
	_, err = o.Store.Commit(ctx, raftstore.Txn{
		Require: []raftstore.Precondition{{Key: item.Key, ModRevision: item.ModRevision}, {Key: o.Transformers.guard, ModRevision: e.Revision}},
		Ops:     []raftstore.Op{op},
		Term:    term,
	})
	var conflict *raftstore.ConflictError
	if errors.As(err, &conflict) && conflict.Key == item.Key {
		return nil
	}
	if err != nil {
		return fmt.Errorf("rewrite %s: %w", item.Key, err)
	}
	return nil
}
