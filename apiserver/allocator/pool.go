package allocator

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/barque/barque/apiserver/storage"
	"github.com/barque/barque/raftstore"
)

// Backend is what a Pool needs of the datastore.
type Backend interface {
	View(ctx context.Context, opts raftstore.ViewOptions) (raftstore.View, error)
	Commit(ctx context.Context, txn raftstore.Txn) (raftstore.Result, error)
}

var (
	// ErrAllocated is returned by Reserve for a value that somebody else holds.
	ErrAllocated = errors.New("is already allocated")
	// ErrNotInRange is returned by Reserve for a value that is not the pool's to give.
	ErrNotInRange = errors.New("is not in the valid range")
	// ErrFull is returned by Allocate when every value is held.
	ErrFull = errors.New("range is full")
)

// values is a range of values, numbered from 0.
type values[T any] interface {
	// size is how many there are.
	size() int
	at(i int) T
	// index is the number of a value, false when it is not in the range.
	index(v T) (int, bool)
	// text of a value: the last part of its key.
	text(v T) string
	parse(text string) (T, bool)
	// describe says what a value is called and what the range is, for people.
	describe() (noun, valid string)
}

// Pool is a range of values of which each has at most one owner. An owner is the
// namespace/name/uid of a Service.
type Pool[T comparable] struct {
	backend Backend
	prefix  string
	values  values[T]
	// low is how many values at the beginning of the range are chosen only when all others are
	// held: people who ask for a certain value find theirs there.
	low int
	// reserved is the value that only one Service may have, as namespace/name.
	reservedIndex int // -1 for none
	reservedFor   string
}

// tries is how many values are drawn before the range is searched.
const tries = 16

// Allocate reserves any value that nobody holds. It fails with ErrFull, or with an API error of
// package storage.
func (p *Pool[T]) Allocate(ctx context.Context, owner string) (T, error) {
	var none T
	view, err := p.backend.View(ctx, raftstore.ViewOptions{Stale: true})
	for newest := false; ; newest = true {
		if err != nil {
			return none, storage.ReadError(err)
		}
		for i := range p.candidates() {
			value := p.values.at(i)
			if _, held := view.Get(p.key(value)); held {
				continue
			}
			err := p.create(ctx, value, owner)
			if err == nil {
				return value, nil
			}
			if !errors.Is(err, ErrAllocated) {
				return none, err
			}
		}
		if newest {
			_, valid := p.values.describe()
			return none, fmt.Errorf("%w: every one of %s is allocated", ErrFull, valid)
		}
		// What this server has may be old: values may have been released since.
		view, err = p.backend.View(ctx, raftstore.ViewOptions{})
	}
}

// candidates yields the numbers of values to try: a few drawn from the upper part of the range,
// then all of that part, then the lower one.
func (p *Pool[T]) candidates() func(yield func(int) bool) {
	return func(yield func(int) bool) {
		offer := func(i int) bool { return i == p.reservedIndex || yield(i) }
		high := p.values.size() - p.low
		if high > 0 {
			for range tries {
				if !offer(p.low + rand.IntN(high)) {
					return
				}
			}
		}
		for _, part := range [][2]int{{p.low, high}, {0, p.low}} {
			first, count := part[0], part[1]
			if count <= 0 {
				continue
			}
			start := rand.IntN(count)
			for i := range count {
				if !offer(first + (start+i)%count) {
					return
				}
			}
		}
	}
}

// Reserve reserves the value. That the owner holds it already is fine, so that a Reserve whose
// outcome was lost can be repeated. It fails with ErrAllocated, ErrNotInRange, or an API error of
// package storage.
func (p *Pool[T]) Reserve(ctx context.Context, value T, owner string) error {
	noun, valid := p.values.describe()
	i, ok := p.values.index(value)
	if !ok {
		return fmt.Errorf("provided %s %v %w. The range of valid %ss is %s", noun, value, ErrNotInRange, noun, valid)
	}
	if i != p.reservedIndex {
		return p.create(ctx, value, owner)
	}
	if service(owner) != p.reservedFor {
		return fmt.Errorf("provided %s %v %w to the Service %s", noun, value, ErrAllocated, p.reservedFor)
	}
	// Its Service may have been deleted and made again, with another uid: it takes over.
	_, err := p.backend.Commit(ctx, raftstore.Txn{Ops: []raftstore.Op{p.put(value, owner)}, Term: storage.LeaderTerm(ctx)})
	if err != nil {
		return storage.WriteError(err)
	}
	return nil
}

// Release frees the value if the owner holds it. Nothing to free is not an error. It is not fenced
// by a leader's term: whoever reserved may also give back.
func (p *Pool[T]) Release(ctx context.Context, value T, owner string) error {
	view, err := p.backend.View(ctx, raftstore.ViewOptions{})
	if err != nil {
		return storage.ReadError(err)
	}
	item, held := view.Get(p.key(value))
	if !held || string(item.Value) != owner {
		return nil
	}
	return p.change(ctx, item, raftstore.Op{Kind: raftstore.Delete, Key: item.Key}, 0)
}

// create makes a reservation where none is.
func (p *Pool[T]) create(ctx context.Context, value T, owner string) error {
	put := p.put(value, owner)
	_, err := p.backend.Commit(ctx, raftstore.Txn{
		Require: []raftstore.Precondition{{Key: put.Key}},
		Ops:     []raftstore.Op{put},
		Term:    storage.LeaderTerm(ctx),
	})
	var held *raftstore.ConflictError
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &held):
		return storage.WriteError(err)
	case held.Current != nil && string(held.Current.Value) == owner:
		return nil
	}
	noun, _ := p.values.describe()
	return fmt.Errorf("provided %s %v %w", noun, value, ErrAllocated)
}

// change does an operation on a reservation as it was read. That it has changed since is not an
// error: then it is no longer what the operation was for.
func (p *Pool[T]) change(ctx context.Context, item raftstore.Item, op raftstore.Op, term uint64) error {
	_, err := p.backend.Commit(ctx, raftstore.Txn{
		Require: []raftstore.Precondition{{Key: item.Key, ModRevision: item.ModRevision}},
		Ops:     []raftstore.Op{op},
		Term:    term,
	})
	var changed *raftstore.ConflictError
	if err != nil && !errors.As(err, &changed) {
		return storage.WriteError(err)
	}
	return nil
}

func (p *Pool[T]) key(value T) string { return p.prefix + p.values.text(value) }

func (p *Pool[T]) put(value T, owner string) raftstore.Op {
	return raftstore.Op{Kind: raftstore.Put, Key: p.key(value), Value: []byte(owner)}
}

// service is the namespace/name of an owner.
func service(owner string) string {
	if i := strings.LastIndexByte(owner, '/'); i >= 0 {
		return owner[:i]
	}
	return owner
}
