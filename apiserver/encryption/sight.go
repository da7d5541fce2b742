package encryption

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/barque/barque/apiserver/storage"
	"github.com/barque/barque/raftstore"
)

// tried is how many values of a provider are tried: one alone may be damaged.
const tried = 3

// Readable returns the reason why this server cannot read values that were encrypted from outside,
// or nil. It tries some of each provider and resource. Values that no server can read do not count.
func (o *Objects) Readable(ctx context.Context) error {
	view, err := o.Store.View(ctx, raftstore.ViewOptions{})
	if err != nil {
		return fmt.Errorf("look for values of providers: %w", err)
	}
	where, samples := o.Transformers.locator(), map[string][]raftstore.Item{}
	view.Ascend(everything, "", func(item raftstore.Item) bool {
		if Enciphered(item.Value) && KeyOf(item.Value) == "" {
			resource, _ := where.resource(item.Key)
			of := resource.String() + " " + Provider(item.Value)
			if len(samples[of]) < tried {
				samples[of] = append(samples[of], item)
			}
		}
		return ctx.Err() == nil
	})
	for _, items := range samples {
		if err := o.reads(ctx, items, where); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// reads returns nil if one of the items can be read, or none by any server.
func (o *Objects) reads(ctx context.Context, items []raftstore.Item, where locator) (cannot error) {
	for _, item := range items {
		resource, _ := where.resource(item.Key)
		_, _, _, err := o.Transformers.open(ctx, resource, item.Value, place(item.Key))
		if _, unavailable := errors.AsType[*storage.UnavailableError](err); !unavailable {
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
	// Needed reports whether there may be such values, besides when the last look has failed.
	Needed func() bool
	// Changed is called when Err may have changed.
	Changed func()

	is atomic.Pointer[error]
}

// lookEvery is the interval of looks, and lookWithin bounds one.
const (
	lookEvery  = 10 * time.Second
	lookWithin = 8 * time.Second
)

// Err returns the reason why this server cannot read all values, or nil.
func (s *Sight) Err() error {
	if err := s.is.Load(); err != nil {
		return *err
	}
	return nil
}

// Run looks again and again, until the context ends.
func (s *Sight) Run(ctx context.Context) error {
	ticks := time.NewTicker(lookEvery)
	defer ticks.Stop()
	for first := true; ; first = false {
		if first || s.Err() != nil || s.Needed() {
			s.Look(ctx)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticks.C:
		}
	}
}

// Look looks once.
func (s *Sight) Look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	err := s.Objects().Readable(ctx)
	if _, cannot := errors.AsType[*storage.UnavailableError](err); err != nil && !cannot {
		return // the store does not answer: that says nothing
	}
	if err != nil {
		err = fmt.Errorf("this server cannot read all objects: %w", err)
	}
	s.is.Store(&err)
	s.Changed()
}
