package allocator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/barque/barque/apiserver/storage"
	"github.com/barque/barque/raftstore"
)

// DefaultLeakAge is how long a reservation must have been seen without its Service before it is
// freed: longer than any request that writes a Service may take.
const DefaultLeakAge = 3 * time.Minute

// Owners says, for each value that Services have, which Services those are. More than one is an
// error that Repair reports.
type Owners[T comparable] map[T][]string

// Report is what a round of repair found.
type Report[T comparable] struct {
	// Freed values were reserved for Services that do not exist.
	Freed []T
	// Reserved values belonged to Services and were not reserved.
	Reserved []T
	// Conflicts name values that belong to a Service and are reserved for, or belong to, another
	// one. Somebody has to choose which Service is to be made again.
	Conflicts map[T][]string
	// OutOfRange values belong to Services and are not the pool's to give: the range has changed.
	OutOfRange map[T][]string
}

// Repair brings the reservations of a pool in line with the Services that exist. It is for one
// goroutine, on the leader; what it has seen is forgotten with it, so a new leader begins anew.
type Repair[T comparable] struct {
	pool    *Pool[T]
	leakAge time.Duration
	now     func() time.Time
	// leaks are reservations without a Service, by key.
	leaks map[string]leak
}

type leak struct {
	modRevision uint64
	since       time.Time
}

// NewRepair makes a Repair. A leakAge of 0 means DefaultLeakAge, a nil clock time.Now.
func NewRepair[T comparable](pool *Pool[T], leakAge time.Duration, now func() time.Time) *Repair[T] {
	if leakAge == 0 {
		leakAge = DefaultLeakAge
	}
	if now == nil {
		now = time.Now
	}
	return &Repair[T]{pool: pool, leakAge: leakAge, now: now, leaks: make(map[string]leak)}
}

// Once does one round. owners reads the Services, newest state; it is called after the
// reservations have been read, so that a Service written in between is not missed. A reservation
// is freed when it was seen without its Service in an earlier round, at least the leak age ago,
// and has not changed since.
// Writes carry the leader term of the context.
func (r *Repair[T]) Once(ctx context.Context, owners func(context.Context) (Owners[T], error)) (Report[T], error) {
	report := Report[T]{Conflicts: make(map[T][]string), OutOfRange: make(map[T][]string)}
	view, err := r.pool.backend.View(ctx, raftstore.ViewOptions{})
	if err != nil {
		return report, storage.ReadError(err)
	}
	owned, err := owners(ctx)
	if err != nil {
		return report, fmt.Errorf("read the Services: %w", err)
	}
	if err := r.free(ctx, view, owned, &report); err != nil {
		return report, err
	}
	return report, r.reserve(ctx, view, owned, &report)
}

// free releases what nobody has had for long enough, and hands what a Service has over to it when
// the reservation has named another owner for as long.
func (r *Repair[T]) free(ctx context.Context, view raftstore.View, owned Owners[T], report *Report[T]) error {
	var found []raftstore.Item
	view.Ascend(r.pool.prefix, "", func(item raftstore.Item) bool {
		found = append(found, item)
		return true
	})
	leaks := make(map[string]leak)
	for _, item := range found {
		value, ok := r.pool.values.parse(strings.TrimPrefix(item.Key, r.pool.prefix))
		if !ok || slices.Contains(owned[value], string(item.Value)) {
			continue
		}
		if seen, old := r.aged(item); !old {
			leaks[item.Key] = seen
			continue
		}
		op := raftstore.Op{Kind: raftstore.Delete, Key: item.Key}
		if services := owned[value]; len(services) > 0 {
			op = r.pool.put(value, services[0])
		} else {
			report.Freed = append(report.Freed, value)
		}
		if err := r.pool.change(ctx, item, op, storage.LeaderTerm(ctx)); err != nil {
			return fmt.Errorf("free %s: %w", item.Key, err)
		}
	}
	r.leaks = leaks
	return nil
}

// aged tells whether a reservation has been seen as a leak for the leak age, and since when.
func (r *Repair[T]) aged(item raftstore.Item) (leak, bool) {
	now := r.now()
	seen, again := r.leaks[item.Key]
	if !again || seen.modRevision != item.ModRevision {
		return leak{item.ModRevision, now}, false
	}
	return seen, now.Sub(seen.since) >= r.leakAge
}

// reserve makes the reservations that Services lack.
func (r *Repair[T]) reserve(ctx context.Context, view raftstore.View, owned Owners[T], report *Report[T]) error {
	for value, services := range owned {
		if len(services) > 1 {
			report.Conflicts[value] = services
			continue
		}
		if len(services) == 0 {
			continue
		}
		owner := services[0]
		if item, held := view.Get(r.pool.key(value)); held && string(item.Value) == owner {
			continue
		}
		switch err := r.pool.Reserve(ctx, value, owner); {
		case err == nil:
			report.Reserved = append(report.Reserved, value)
		case errors.Is(err, ErrNotInRange):
			report.OutOfRange[value] = services
		case errors.Is(err, ErrAllocated):
			report.Conflicts[value] = services
		default:
			return fmt.Errorf("reserve %v for %s: %w", value, owner, err)
		}
	}
	return nil
}
