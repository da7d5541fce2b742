package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/barque/barque/cluster-test/schedule"
	"github.com/barque/barque/cluster-test/store"
	"github.com/barque/barque/cluster-test/store/member"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/check"
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
	return context.WithTimeout(ctx, opTimeout) // brief: its outcome may stay unknown, and another one follows
}

// mark begins the values of writers, a token follows. Other values have no known writer.
const mark = "#"

// hashed keeps the token and a hash of a value, so that the record does not grow with values.
func hashed(value []byte) string {
	token := ""
	if rest, ok := bytes.CutPrefix(value, []byte(mark)); ok {
		begin, _, _ := bytes.Cut(rest, []byte{' '})
		token = string(begin)
	}
	return fmt.Sprintf("%s %016x", token, xxhash.Sum64(value))
}

// writer writes through one member, as an API server does through its store; while that one is down
// it does nothing.
type writer struct {
	*run
	name   string
	member *store.Member
	rnd    *rand.Rand
	made   int
	own    []raftstore.Item // keys that it has made and not deleted, oldest first
}

func (w *writer) work(ctx context.Context, t *turn) {
	for ctx.Err() == nil {
		if !w.member.Running() {
			schedule.Pause(ctx, 20*time.Millisecond)
			continue
		}
		w.write(ctx, t)
		schedule.Pause(ctx, time.Duration(w.rnd.IntN(int(8*time.Millisecond))))
	}
}

// transaction draws the next write. All its values have the token.
func (w *writer) transaction(token string) raftstore.Txn {
	value := func(c string, length int) []byte { return []byte(mark + token + " " + strings.Repeat(c, length)) }
	put := raftstore.Op{Kind: raftstore.Put, Key: "/log/" + token, Value: value("v", 1+w.rnd.IntN(200))}
	switch n := w.rnd.IntN(20); {
	case w.much.Load() || n < 3:
		if w.much.Load() {
			put.Value = value("M", muchValue)
		}
		k := w.rnd.IntN(pairs)
		return raftstore.Txn{Ops: []raftstore.Op{
			{Kind: raftstore.Put, Key: fmt.Sprintf("/pair/%d/a", k), Value: put.Value},
			{Kind: raftstore.Put, Key: fmt.Sprintf("/pair/%d/b", k), Value: put.Value},
		}}
	case n == 3:
		put.Key, put.TTL = "/ttl/"+token, time.Duration(1+w.rnd.IntN(3000))*time.Millisecond
	case n == 4:
		put.Value = value("V", w.rnd.IntN(bigValue))
	case len(w.own) > ownKeys || n < 8 && len(w.own) > 10:
		oldest := w.own[0]
		return raftstore.Txn{
			Require: []raftstore.Precondition{{Key: oldest.Key, ModRevision: oldest.ModRevision}},
			Ops:     []raftstore.Op{{Kind: raftstore.Delete, Key: oldest.Key}},
		}
	}
	return raftstore.Txn{Require: []raftstore.Precondition{{Key: put.Key}}, Ops: []raftstore.Op{put}}
}

func (w *writer) write(ctx context.Context, t *turn) {
	w.made++
	txn := w.transaction(fmt.Sprintf("%s-%d", w.name, w.made))
	call := check.Write{Server: w.member.Index, Txn: txn, Call: t.record.Now()}
	limited, cancel := operation(ctx)
	begin := time.Now()
	r, err := server{w.member, ""}.Commit(limited, txn)
	cancel()
	t.record.Write(call, r, err)
	w.Wrote(w.member.Name, begin, time.Now(), err == nil, false)
	op := txn.Ops[0]
	switch {
	case op.Kind == raftstore.Delete:
		w.own = w.own[1:] // whatever became of it: it is not tried again
	case err == nil && strings.HasPrefix(op.Key, "/log/"):
		w.own = append(w.own, raftstore.Item{Key: op.Key, ModRevision: r.Revision})
	}
	if err == nil {
		t.told(r.Revision)
	}
}

// certain reports whether the error means that the transaction was certainly not executed.
func certain(err error) bool {
	if errors.Is(err, raftstore.ErrUnknownOutcome) || errors.Is(err, store.ErrGone) {
		return false
	}
	return errors.Is(err, store.ErrDown) || errors.Is(err, raftstore.ErrUnavailable) ||
		errors.Is(err, raftstore.ErrFenced) ||
		errors.Is(err, raftstore.ErrTooLarge) || errors.Is(err, raftstore.ErrInvalid)
}

// reader reads in all ways through whatever member there is.
type reader struct {
	*turn
	rnd *rand.Rand
}

func (r *reader) work(ctx context.Context) {
	for ctx.Err() == nil {
		if m := r.pick(r.rnd); m != nil {
			limited, cancel := operation(ctx)
			r.list(limited, m)
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

func (r *reader) list(ctx context.Context, m *store.Member) {
	var opts raftstore.ViewOptions
	read := r.read(m, check.Linearizable)
	read.Keys = pairKeys
	switch r.rnd.IntN(4) {
	case 0:
		opts.Stale, read.Kind = true, check.Stale
	case 1:
		newest := r.newest.Load()
		opts.Revision = newest - min(newest-r.base, uint64(r.rnd.IntN(200)))
		read.Asked, read.Kind = opts.Revision, check.At
	}
	items, revision, err := m.List(ctx, member.ListArgs{Prefix: "/pair/", View: opts})
	if err != nil {
		return
	}
	r.record.Read(read, view{revision, items})
	r.told(revision)
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
