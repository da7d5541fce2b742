package encryption

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/barque/barque/apiserver/restoptions"
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

// writers is how many objects are rewritten at a time: writes that wait for the disks at the same
// time become one log entry.
const writers = 16

// everything is the prefix of all objects.
const everything = restoptions.DefaultPrefix + "/"

// forms knows the form in which each object is to be, by one Epoch and one content of the file:
// objects that were rewritten by two of them would be in two forms.
type forms struct {
	all     *Transformers
	epoch   *Epoch
	file    Providers
	where   locator
	now     func() time.Time
	known   sync.Map // form by schema.GroupResource
	failing sync.Map // *atomic.Int64, a time.Duration for which the provider failed, by schema.GroupResource
}

func (o *Objects) forms(e *Epoch) *forms {
	return &forms{all: o.Transformers, epoch: e, file: o.Transformers.providers(), where: o.Transformers.locator(),
		now: o.Now}
}

// errOtherFile is returned by a server whose file is not the one in use: it cannot write as that.
var errOtherFile = errors.New("the file of providers of this server is not, or not any more, the one that is in use")

// hold returns an error if this server cannot bring objects into their forms.
func (f *forms) hold() error {
	if is := f.all.providers().File(); f.epoch.File != "" && (is != f.epoch.File || is != f.file.File()) {
		return errOtherFile
	}
	return nil
}

// maxFailing bounds the time for which the provider of a resource is tried that fails: each attempt
// may wait for a plugin that does not answer. Other resources go on.
const maxFailing = 10 * time.Second

var errNotTried = errors.New("it was not tried, because others of its resource have failed for long")

// try calls a provider of a resource, unless it has failed for long.
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

// of returns the form in which an object is to be. One of a resource that this server does not know
// stays as it is, but for a data key that may be dropped.
func (f *forms) of(item *raftstore.Item) (is form, resource schema.GroupResource) {
	resource, ok := f.where.resource(item.Key)
	if !ok {
		if KeyOf(item.Value) != "" {
			is.id = f.epoch.Writes
		} else if Enciphered(item.Value) {
			is.stays = true
		}
		return is, resource
	}
	known, ok := f.known.Load(resource)
	if !ok {
		known, _ = f.known.LoadOrStore(resource, f.epoch.form(f.file, resource))
	}
	return known.(form), resource
}

// looks reports whether an object has its form as far as that can be seen without its key.
func (f *forms) looks(item *raftstore.Item, want form) bool {
	switch {
	case want.stays:
		return true
	case want.with != nil:
		return slices.Contains(f.epoch.Labels, Label(item.Value))
	}
	return KeyOf(item.Value) == want.id && (want.id != "" || !Enciphered(item.Value))
}

// has reports whether an object is in its form. For that, a provider of the file decrypts its
// value, which may fail: only that provider can recognize a value of its key.
func (f *forms) has(ctx context.Context, item *raftstore.Item) (bool, error) {
	want, resource := f.of(item)
	if !f.looks(item, want) || want.with == nil {
		return f.looks(item, want), nil
	}
	var stale bool
	err := f.try(resource, item.Key, func() (err error) {
		_, stale, err = want.with.TransformFromStorage(ctx, item.Value, place(item.Key))
		return err
	})
	return !stale, err
}

// Counts are numbers of stored values.
type Counts struct {
	// Under has how many there are by the IDs of data keys, and by the Labels of other ones.
	Under map[string]int
	Clear int // are in clear, and of resources that are encrypted or may be soon
	Other int // would be written in another way now, those of Clear without a data key left out
}

// Count counts the values of the newest state, without decrypting one.
func (o *Objects) Count(ctx context.Context, e *Epoch) (Counts, error) {
	n := Counts{Under: map[string]int{}}
	view, err := o.Store.View(ctx, raftstore.ViewOptions{})
	if err != nil {
		return n, fmt.Errorf("count the encrypted objects: %w", err)
	}
	forms := o.forms(e)
	view.Ascend(everything, "", func(item raftstore.Item) bool {
		want, resource := forms.of(&item)
		if !forms.looks(&item, want) {
			n.Other++
		}
		switch id := KeyOf(item.Value); {
		case id != "":
			n.Under[id]++
		case Enciphered(item.Value):
			n.Under[Label(item.Value)]++
		case want.id != "" ||
			e.Writes == "" && resource.Resource != "" && !Never(resource) && e.covers(resource.String()):
			n.Clear++
		}
		return ctx.Err() == nil
	})
	return n, context.Cause(ctx)
}

// Left returns how many objects are not in the form of the Epoch. An object of which that is not
// known is an error.
func (o *Objects) Left(ctx context.Context, e *Epoch) (n int, err error) {
	view, err := o.Store.View(ctx, raftstore.ViewOptions{})
	if err != nil {
		return 0, fmt.Errorf("look for objects that are not rewritten: %w", err)
	}
	forms := o.forms(e)
	if err := forms.hold(); err != nil {
		return 0, err
	}
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

// Rewrite brings all objects into the form of the Epoch: those that a file of providers writes
// under its keys, the others of its resources under the data key, and all others in clear. It
// writes in the term, and only while the Epoch is the newest one. An object that cannot be read is
// an error that names it, after all others are done.
func (o *Objects) Rewrite(ctx context.Context, term uint64, e *Epoch, report func(left int)) error {
	forms := o.forms(e)
	for {
		if err := forms.hold(); err != nil {
			return err
		}
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

// look has the objects that are not in their form, and the unreadable ones.
type look struct {
	stale      []raftstore.Item
	unreadable []*unreadableError
}

// look returns the objects that do not need a provider of the file first: that may wait long.
func (o *Objects) look(ctx context.Context, view raftstore.View, forms *forms) (found look, err error) {
	var last []raftstore.Item
	view.Ascend(everything, "", func(item raftstore.Item) bool {
		has, err := forms.has(ctx, &item)
		switch {
		case err != nil:
			found.unreadable = append(found.unreadable, &unreadableError{item.Key, err})
		case !has && forms.slow(&item):
			last = append(last, item)
		case !has:
			found.stale = append(found.stale, item)
		}
		return ctx.Err() == nil
	})
	found.stale = append(found.stale, last...)
	return found, context.Cause(ctx)
}

// slow reports whether a rewrite of an object needs a provider of the file.
func (f *forms) slow(item *raftstore.Item) bool {
	want, _ := f.of(item)
	return want.with != nil || Enciphered(item.Value) && KeyOf(item.Value) == ""
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
	return fmt.Errorf("%d objects cannot be read or encrypted, and are as they were: %w", len(all),
		errors.Join(named...))
}

// unreadableError is returned for an object that cannot be decrypted, or encrypted by a file.
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

// errOtherKey is returned when a provider writes under a key that the Epoch does not list.
var errOtherKey = errors.New("the provider of the file has another key by now than the state of the data keys lists")

// rewrite writes one object anew. One that has changed meanwhile is left for the next look.
func (o *Objects) rewrite(ctx context.Context, term uint64, forms *forms, item raftstore.Item) error {
	e := forms.epoch
	want, resource := forms.of(&item)
	var value []byte
	open := func() (err error) {
		value, _, _, err = o.Transformers.open(ctx, forms.file, resource, item.Value, place(item.Key))
		return err
	}
	var err error
	if Enciphered(item.Value) && KeyOf(item.Value) == "" {
		err = forms.try(resource, item.Key, open)
	} else {
		err = open()
	}
	if err == nil && want.with != nil {
		err = forms.try(resource, item.Key, func() (err error) {
			value, err = want.with.TransformToStorage(ctx, value, place(item.Key))
			return err
		})
	}
	switch {
	case err != nil: // of this object alone
		return &unreadableError{item.Key, err}
	case want.with != nil && !slices.Contains(e.Labels, Label(value)):
		return fmt.Errorf("rewrite %s: %w", item.Key, errOtherKey)
	case want.with == nil && want.id != "":
		if value, err = o.Transformers.Seal(ctx, want.id, value, place(item.Key)); err != nil {
			return err
		}
	}
	op := raftstore.Op{Kind: raftstore.Put, Key: item.Key, Value: value}
	if item.Expires > 0 {
		op.TTL = time.Duration(max(1, item.Expires-o.Now().UnixMilli())) * time.Millisecond
	}
	_, err = o.Store.Commit(ctx, raftstore.Txn{
		Require: []raftstore.Precondition{{Key: item.Key, ModRevision: item.ModRevision},
			{Key: o.Transformers.guard, ModRevision: e.Revision}},
		Ops:  []raftstore.Op{op},
		Term: term,
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
