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

// forms knows the form in which each object is to be. That is decided once: objects that were
// rewritten by two decisions would be in two forms.
type forms struct {
	all     *Transformers
	epoch   *Epoch
	covered []string
	where   locator
	now     func() time.Time

	writes  bool     // of Outside, when it was decided
	digest  uint32   // of Outside then
	failing sync.Map // *atomic.Int64, a time.Duration for which the transformer failed, by schema.GroupResource
}

func (o *Objects) forms(e *Epoch) *forms {
	f := &forms{all: o.Transformers, epoch: e, covered: o.prefixes(e.Resources), now: o.Now}
	if f.all.outside != nil {
		f.where, f.writes, f.digest = f.all.locator(), f.all.outside.Writes(), f.all.outside.Digest()
	}
	return f
}

// errDecidedAnew is returned if objects would be written in another way by now.
var errDecidedAnew = errors.New("the file of providers, or whether all servers have it, has changed meanwhile")

// hold returns an error if the decision does not hold any more.
func (f *forms) hold() error {
	if out := f.all.outside; out != nil && (out.Writes() != f.writes || out.Digest() != f.digest) {
		return errDecidedAnew
	}
	return nil
}

// maxFailing bounds the time for which the transformer of a resource is tried that fails: each
// attempt may wait for a plugin that does not answer. Other resources go on.
const maxFailing = 10 * time.Second

var errNotTried = errors.New("it was not tried, because others of its resource have failed for long")

// try calls the transformer of a resource from outside, unless it has failed for long.
func (f *forms) try(of schema.GroupResource, key string, call func() error) error {
	known, _ := f.failing.LoadOrStore(of, new(atomic.Int64))
	failing := known.(*atomic.Int64)
	if time.Duration(failing.Load()) >= maxFailing {
		return fmt.Errorf("%s: %w", key, errNotTried)
	}
	began := f.now()
	err := call()
	if err != nil {
		failing.Add(int64(f.now().Sub(began)))
	}
	return err
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
			if is.outside = f.all.writer(resource, f.epoch, func() bool { return f.writes }); is.outside != nil {
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
	var stale bool
	err := f.try(want.resource, item.Key, func() (err error) {
		_, stale, err = want.outside.TransformFromStorage(ctx, item.Value, place(item.Key))
		return err
	})
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
	forms := o.forms(e)
	found, err := o.look(ctx, view, forms)
	if err == nil {
		err = forms.hold()
	}
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
	forms := o.forms(e)
	for {
		view, err := o.Store.View(ctx, raftstore.ViewOptions{})
		if err != nil {
			return fmt.Errorf("look for objects to rewrite: %w", err)
		}
		found, err := o.look(ctx, view, forms)
		if err == nil {
			err = forms.hold()
		}
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

// look returns the objects that do not need a transformer from outside first: that may wait long.
func (o *Objects) look(ctx context.Context, view raftstore.View, forms *forms) (found look, err error) {
	var last []raftstore.Item
	view.Ascend(everything, "", func(item raftstore.Item) bool {
		has, err := forms.has(ctx, &item)
		switch {
		case err != nil:
			found.unreadable = append(found.unreadable, &unreadableError{item.Key, err})
		case !has && forms.outside(&item):
			last = append(last, item)
		case !has:
			found.stale = append(found.stale, item)
		}
		return ctx.Err() == nil
	})
	found.stale = append(found.stale, last...)
	return found, context.Cause(ctx)
}

// outside reports whether a rewrite of an object needs a transformer from outside.
func (f *forms) outside(item *raftstore.Item) bool {
	return f.of(item.Key).outside != nil || Enciphered(item.Value) && KeyOf(item.Value) == ""
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

// unreadable returns one error for all objects that cannot be rewritten, or nil without any.
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
	return fmt.Errorf("%d objects cannot be read or encrypted, and are as they were: %w", len(all), errors.Join(named...))
}

// unreadableError is returned for an object that cannot be decrypted, or encrypted from outside.
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
	var value []byte
	open := func() (err error) {
		value, _, _, err = o.Transformers.open(ctx, want.resource, item.Value, place(item.Key))
		return err
	}
	var err error
	if Enciphered(item.Value) && KeyOf(item.Value) == "" {
		err = forms.try(want.resource, item.Key, open)
	} else {
		err = open()
	}
	if err == nil && want.outside != nil {
		err = forms.try(want.resource, item.Key, func() (err error) {
			value, err = want.outside.TransformToStorage(ctx, value, place(item.Key))
			return err
		})
	}
	if err != nil { // of this object alone
		return &unreadableError{item.Key, err}
	}
	if want.outside == nil && want.id != "" {
		if value, err = o.Transformers.Seal(ctx, want.id, value, place(item.Key)); err != nil {
			return err
		}
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
