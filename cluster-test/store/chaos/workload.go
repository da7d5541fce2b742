package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/barque/barque/cluster-test/schedule"
	"github.com/barque/barque/cluster-test/store"
	"github.com/barque/barque/cluster-test/store/member"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/storetest/audit"
)

const (
	// opTimeout bounds one operation. The store hides an election from its callers, so most take
	// less.
	opTimeout = 2 * time.Second
	// answerGrace is how long a client waits beyond that for a process that may be paused.
	answerGrace = time.Second
	pairs       = 8   // pairs of keys that are always written together
	ownKeys     = 500 // keys that a writer keeps before it deletes its oldest
	bigValue    = 24 << 10
	muchValue   = 32 << 10 // of all writes while there should be many bytes
)

// operation bounds one operation of a client.
func operation(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, opTimeout) // brief: what became of it may stay unknown, and another one follows
}

// writer writes through one member, as an API server does through its store; while that one is down
// it does nothing.
type writer struct {
	name string
	log  *audit.Log
	rnd  *rand.Rand
	acks *acks
	all  *samples
	much *atomic.Bool // write much, to what there is already
	made int
	own  []raftstore.Item // keys that it has made and not deleted, oldest first
}

func (w *writer) run(ctx context.Context, m *store.Member) {
	for ctx.Err() == nil {
		if !m.Running() {
			schedule.Pause(ctx, 20*time.Millisecond)
			continue
		}
		w.write(ctx, m)
		schedule.Pause(ctx, time.Duration(w.rnd.IntN(int(8*time.Millisecond))))
	}
}

// transaction draws what is written next. All its values have the token.
func (w *writer) transaction(token string) raftstore.Txn {
	value := audit.Value(token, strings.Repeat("v", 1+w.rnd.IntN(200)))
	put := raftstore.Op{Kind: raftstore.Put, Key: "/log/" + token, Value: value}
	switch n := w.rnd.IntN(20); {
	case w.much.Load() || n < 3:
		if w.much.Load() {
			value = audit.Value(token, strings.Repeat("M", muchValue))
		}
		k := w.rnd.IntN(pairs)
		return raftstore.Txn{Ops: []raftstore.Op{
			{Kind: raftstore.Put, Key: fmt.Sprintf("/pair/%d/a", k), Value: value},
			{Kind: raftstore.Put, Key: fmt.Sprintf("/pair/%d/b", k), Value: value},
		}}
	case n == 3:
		put.Key, put.TTL = "/ttl/"+token, time.Duration(1+w.rnd.IntN(3000))*time.Millisecond
	case n == 4:
		put.Value = audit.Value(token, strings.Repeat("V", w.rnd.IntN(bigValue)))
	case len(w.own) > ownKeys || n < 8 && len(w.own) > 10:
		oldest := w.own[0]
		return raftstore.Txn{
			Require: []raftstore.Precondition{{Key: oldest.Key, ModRevision: oldest.ModRevision}},
			Ops:     []raftstore.Op{{Kind: raftstore.Delete, Key: oldest.Key}},
		}
	}
	return raftstore.Txn{Require: []raftstore.Precondition{{Key: put.Key}}, Ops: []raftstore.Op{put}}
}

func (w *writer) write(ctx context.Context, m *store.Member) {
	w.made++
	token := fmt.Sprintf("%s-%d", w.name, w.made)
	txn := w.transaction(token)
	call := w.log.BeginWrite(fmt.Sprintf("write %s of %s by %s", token, txn.Ops[0].Key, m.Name), token, txn.Ops)
	limited, cancel := operation(ctx)
	begin := time.Since(w.acks.start)
	r, err := m.Commit(limited, txn)
	cancel()
	w.all.add(m, begin, time.Since(w.acks.start), err == nil)
	op := txn.Ops[0]
	switch {
	case op.Kind == raftstore.Delete:
		w.own = w.own[1:] // whatever became of it: it is not tried again
	case err == nil && strings.HasPrefix(op.Key, "/log/"):
		w.own = append(w.own, raftstore.Item{Key: op.Key, ModRevision: r.Revision})
	}
	if err == nil {
		w.acks.add()
	}
	report(call, r, err)
}

// report tells the audit how a commit ended.
func report(call *audit.Call, r raftstore.Result, err error) {
	var conflict *raftstore.ConflictError
	switch {
	case err == nil:
		call.Committed(r.Revision)
	case errors.As(err, &conflict):
		call.Conflict(conflict)
	case certain(err):
		call.Refused(err)
	default:
		call.Unknown()
	}
}

// certain says whether the error means that the transaction was certainly not executed.
func certain(err error) bool {
	if errors.Is(err, raftstore.ErrUnknownOutcome) || errors.Is(err, store.ErrGone) {
		return false
	}
	return errors.Is(err, store.ErrDown) || errors.Is(err, raftstore.ErrUnavailable) || errors.Is(err, raftstore.ErrFenced) ||
		errors.Is(err, raftstore.ErrTooLarge) || errors.Is(err, raftstore.ErrInvalid)
}

// reader reads in all ways through whatever member there is.
type reader struct {
	log  *audit.Log
	rnd  *rand.Rand
	pick func(*rand.Rand) *store.Member
}

func (r *reader) run(ctx context.Context) {
	for ctx.Err() == nil {
		if m := r.pick(r.rnd); m != nil {
			limited, cancel := operation(ctx)
			r.read(limited, m)
			cancel()
		}
		schedule.Pause(ctx, time.Duration(r.rnd.IntN(int(10*time.Millisecond))))
	}
}

var pairKeys = func() (keys []string) {
	for k := range pairs {
		keys = append(keys, fmt.Sprintf("/pair/%d/a", k), fmt.Sprintf("/pair/%d/b", k))
	}
	return keys
}()

func (r *reader) read(ctx context.Context, m *store.Member) {
	opts, kind := raftstore.ViewOptions{}, "read"
	switch head := r.log.Head(); r.rnd.IntN(4) {
	case 0:
		opts, kind = raftstore.ViewOptions{Stale: true}, "stale read"
	case 1:
		opts, kind = raftstore.ViewOptions{Revision: head - min(head, uint64(r.rnd.IntN(200)))}, "read of the past"
	}
	call := r.log.Begin(kind + " by " + m.Name)
	items, revision, err := m.List(ctx, member.ListArgs{Prefix: "/pair/", View: opts})
	if err != nil {
		return
	}
	call.Read(revision, pairKeys, items, opts == raftstore.ViewOptions{})
}

// server is a member as storetest.Server: a view has the keys under the prefix only.
type server struct {
	*store.Member
	prefix string
}

// View implements storetest.Server.
func (s server) View(ctx context.Context, opts raftstore.ViewOptions) (raftstore.View, error) {
	items, revision, err := s.List(ctx, member.ListArgs{Prefix: s.prefix, View: opts})
	if err != nil {
		return nil, err
	}
	return view{revision, items}, nil
}

// Commit implements storetest.Server.
func (s server) Commit(ctx context.Context, txn raftstore.Txn) (raftstore.Result, error) {
	r, err := s.Member.Commit(ctx, txn)
	var conflict *raftstore.ConflictError
	if err != nil && !errors.As(err, &conflict) && !certain(err) {
		err = fmt.Errorf("%w: %w", raftstore.ErrUnknownOutcome, err)
	}
	return r, err
}

// view is a raftstore.View of a few items.
type view struct {
	revision uint64
	items    []raftstore.Item
}

func (v view) Revision() uint64 { return v.revision }

func (v view) Get(key string) (raftstore.Item, bool) {
	for _, i := range v.items {
		if i.Key == key {
			return i, true
		}
	}
	return raftstore.Item{}, false
}

func (v view) Ascend(prefix, from string, fn func(raftstore.Item) bool) {
	for _, i := range v.items {
		if strings.HasPrefix(i.Key, prefix) && i.Key >= from && !fn(i) {
			return
		}
	}
}

func (v view) Count(prefix, from string) (n int) {
	v.Ascend(prefix, from, func(raftstore.Item) bool { n++; return true })
	return n
}

// acks are the acknowledged writes.
type acks struct {
	start time.Time
	mu    sync.Mutex
	at    []time.Duration // in order
}

func (a *acks) add() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.at = append(a.at, time.Since(a.start))
}

// gap returns the longest time without an acknowledged write that has a part between the two times.
func (a *acks) gap(from, to time.Duration) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	var longest, before time.Duration
	for _, at := range append(a.at[:len(a.at):len(a.at)], to) {
		if at > from && before < to {
			longest = max(longest, at-before)
		}
		before = at
	}
	return longest
}

// counts returns how many writes were acknowledged in each part of a length.
func (a *acks) counts(part time.Duration) (counts []int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, at := range a.at {
		for len(counts) <= int(at/part) {
			counts = append(counts, 0)
		}
		counts[at/part]++
	}
	return counts
}
