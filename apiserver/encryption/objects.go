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

// Count returns how many values are under which key of the newest state, and how many values of the
// resources are in clear, which is under "". A value of another provider counts for its beginning.
func (o *Objects) Count(ctx context.Context, resources []string) (map[string]int, error) {
	view, err := o.Store.View(ctx, raftstore.ViewOptions{})
	if err != nil {
		return nil, fmt.Errorf("count the encrypted objects: %w", err)
	}
	n, covered := map[string]int{}, o.prefixes(resources)
	view.Ascend(everything, "", func(item raftstore.Item) bool {
		switch id := KeyOf(item.Value); {
		case id != "":
			n[id]++
		case bytes.HasPrefix(item.Value, []byte(storage.Enciphered)):
			n[provider(item.Value)]++
		case hasPrefix(item.Key, covered):
			n[""]++
		}
		return true
	})
	return n, nil
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
// encrypts, all others in clear. It writes in the term, and only while the Epoch is the newest one.
// An object that cannot be read is an error that names it, after all others are done.
func (o *Objects) Rewrite(ctx context.Context, term uint64, e *Epoch, report func(left int)) error {
	for {
		view, err := o.Store.View(ctx, raftstore.ViewOptions{})
		if err != nil {
			return fmt.Errorf("look for objects to rewrite: %w", err)
		}
		stale := o.stale(view, e)
		report(len(stale))
		if len(stale) == 0 {
			return nil
		}
		if err := o.rewriteAll(ctx, term, e, stale, report); err != nil {
			return err
		}
	}
}

// wanted returns the ID of the key under which the Epoch wants a value; empty: in clear. covered
// are the prefixes of the Epoch's resources.
func wanted(key string, e *Epoch, covered []string) string {
	if e.Writes != "" && hasPrefix(key, covered) {
		return e.Writes
	}
	return ""
}

// stale returns the items that are not in the form of the Epoch.
func (o *Objects) stale(view raftstore.View, e *Epoch) (items []raftstore.Item) {
	covered := o.prefixes(e.Resources)
	view.Ascend(everything, "", func(item raftstore.Item) bool {
		want := wanted(item.Key, e, covered)
		if KeyOf(item.Value) != want || want == "" && bytes.HasPrefix(item.Value, []byte(storage.Enciphered)) {
			items = append(items, item)
		}
		return true
	})
	return items
}

// maxNamed bounds how many unreadable objects an error names.
const maxNamed = 5

func (o *Objects) rewriteAll(ctx context.Context, term uint64, e *Epoch, items []raftstore.Item, report func(left int)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var working sync.WaitGroup
	var left atomic.Int64
	left.Store(int64(len(items)))
	todo := make(chan raftstore.Item)
	var mu sync.Mutex
	var failed error // ends it
	var unreadable []*unreadableError
	for range writers {
		working.Go(func() {
			for item := range todo {
				err := o.rewrite(ctx, term, e, item)
				if n := left.Add(-1); n%100 == 0 {
					report(int(n))
				}
				if err == nil {
					continue
				}
				mu.Lock()
				if cannot, is := errors.AsType[*unreadableError](err); is {
					unreadable = append(unreadable, cannot)
				} else if failed == nil {
					failed = err
					cancel()
				}
				mu.Unlock()
			}
		})
	}
	for _, item := range items {
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
	case len(unreadable) > 0:
		// In the order of keys, so that the same objects are the same error.
		slices.SortFunc(unreadable, func(a, b *unreadableError) int { return strings.Compare(a.key, b.key) })
		var named []error
		for _, cannot := range unreadable[:min(len(unreadable), maxNamed)] {
			named = append(named, cannot)
		}
		return fmt.Errorf("%d objects cannot be read, and are as they were: %w", len(unreadable), errors.Join(named...))
	}
	return nil
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
func (o *Objects) rewrite(ctx context.Context, term uint64, e *Epoch, item raftstore.Item) error {
	value, _, err := o.Transformers.Open(ctx, item.Value, place(item.Key))
	if err != nil {
		return &unreadableError{item.Key, err}
	}
	if id := wanted(item.Key, e, o.prefixes(e.Resources)); id != "" {
		if value, err = o.Transformers.Seal(ctx, id, value, place(item.Key)); err != nil {
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
