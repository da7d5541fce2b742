package encryption

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/barque/barque/raftstore"
)

// tried is how many values of a key are tried: one alone may be damaged.
const tried = 3

// class are values of one resource under one key.
type class struct {
	resource schema.GroupResource
	label    string
}

// Readable returns the reason why this server cannot read values that providers of a file have
// written: cannot is nil if it can. It tries some of each key and resource. Also values that no
// server can read count: the same wrong file on all servers is one.
func (o *Objects) Readable(ctx context.Context) (cannot, err error) {
	view, err := o.Store.View(ctx, raftstore.ViewOptions{})
	if err != nil {
		return nil, fmt.Errorf("look for values of providers: %w", err)
	}
	where, file, samples := o.Transformers.locator(), o.Transformers.providers(), map[class][]raftstore.Item{}
	view.Ascend(everything, "", func(item raftstore.Item) bool {
		if Enciphered(item.Value) && KeyOf(item.Value) == "" {
			resource, ok := where.resource(item.Key)
			of := class{resource, Label(item.Value)}
			if ok && len(samples[of]) < tried { // a resource that is not served has no sample
				samples[of] = append(samples[of], item)
			}
		}
		return ctx.Err() == nil
	})
	for of, items := range samples {
		if cannot = cmp.Or(cannot, o.reads(ctx, items, file, of.resource)); cannot != nil {
			break
		}
	}
	return cannot, context.Cause(ctx)
}

// reads returns nil if one of the items can be read.
func (o *Objects) reads(
	ctx context.Context, items []raftstore.Item, file Providers, resource schema.GroupResource,
) (cannot error) {
	for _, item := range items {
		_, _, _, err := o.Transformers.open(ctx, file, resource, item.Value, place(item.Key))
		if err == nil {
			return nil
		}
		cannot = err
	}
	return cannot
}

// Sight knows whether this server reads the values of providers. A file may be wrong, and a plugin
// away.
type Sight struct {
	Objects func() *Objects
	// Ready is closed once the API is made: its resources are not known before.
	Ready <-chan struct{}
	// Changed is called when Err may have changed.
	Changed func()

	again chan struct{}
	is    atomic.Pointer[error] // nil before the first look
}

// NewSight returns a Sight; Run has to be called.
func NewSight(objects func() *Objects, ready <-chan struct{}, changed func()) *Sight {
	return &Sight{Objects: objects, Ready: ready, Changed: changed, again: make(chan struct{}, 1)}
}

// The values that this server can read change with its file, its plugins and the state of
// the keys: each of them requests a check. A check of 100,000 values of a file takes some
// 0.1 s (BenchmarkReadable).
const (
	lookEvery  = time.Minute
	blindEvery = 10 * time.Second // while it cannot read
	lookWithin = 8 * time.Second
	blindText  = "this server cannot read all objects"
)

var errNotLooked = errors.New("this server has not looked yet whether it can read all objects")

// Err returns the reason why this server cannot read all values, or nil.
func (s *Sight) Err() error {
	if err := s.is.Load(); err != nil {
		return *err
	}
	return errNotLooked
}

// Blind is Err after the first look, and nil before it.
func (s *Sight) Blind() error {
	if err := s.is.Load(); err != nil {
		return *err
	}
	return nil
}

// Again requests a check. It does not wait.
func (s *Sight) Again() {
	select {
	case s.again <- struct{}{}:
	default:
	}
}

// Run looks once the API is made, and then again and again, until the context ends.
func (s *Sight) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.Ready:
	}
	for {
		s.Look(ctx)
		next := lookEvery
		if s.Err() != nil {
			next = blindEvery
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.again:
		case <-time.After(next):
		}
	}
}

// Look looks once.
func (s *Sight) Look(ctx context.Context) {
	within, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	cannot, err := s.Objects().Readable(within)
	if err != nil && (cannot == nil || ctx.Err() != nil) {
		return // the store does not answer: the check has no result
	}
	if cannot != nil {
		cannot = fmt.Errorf("%s: %w", blindText, cannot)
	}
	s.is.Store(&cannot)
	s.Changed()
}
