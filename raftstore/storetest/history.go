package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/barque/barque/raftstore"
)

// Server is what a History's clients need of one; *raftstore.Server is one. A View needs to know the keys
// of the History only.
type Server interface {
	View(ctx context.Context, opts raftstore.ViewOptions) (raftstore.View, error)
	Commit(ctx context.Context, txn raftstore.Txn) (raftstore.Result, error)
}

// History records what clients did to single keys and what they were told.
type History struct {
	// Prefix of its keys, which must not exist when it begins. Default: "/key".
	Prefix string

	mu     sync.Mutex
	start  time.Time
	nextID int
	ops    []porcupine.Operation
}

// NewHistory returns an empty history that begins now.
func NewHistory() *History { return &History{Prefix: "/key", start: time.Now()} }

type input struct {
	key     string
	write   bool
	require uint64 // of a write: the key's mod revision, 0 when it must be absent
	always  bool   // a write that requires nothing
}

type output struct {
	revision uint64 // of a write: its revision; of a read: the key's mod revision, 0 when absent
	unknown  bool
	conflict bool
}

// register is the model: a key is its mod revision, 0 when it is absent.
var register = porcupine.NondeterministicModel{
	Partition: func(ops []porcupine.Operation) [][]porcupine.Operation {
		byKey := make(map[string][]porcupine.Operation)
		for _, op := range ops {
			key := op.Input.(input).key
			byKey[key] = append(byKey[key], op)
		}
		var parts [][]porcupine.Operation
		for _, part := range byKey {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() []any { return []any{mark{}} },
	Step: func(state, in, out any) []any {
		s, i, o := state.(mark), in.(input), out.(output)
		switch {
		case !i.write:
			if !s.lost && o.revision == s.revision || s.lost && o.revision > s.revision {
				return []any{mark{revision: o.revision}}
			}
			return nil
		case i.always && o.unknown:
			return []any{s, mark{revision: s.revision, lost: true}}
		case i.always:
			if o.revision > s.revision {
				return []any{mark{revision: o.revision}}
			}
			return nil
		case o.conflict:
			if s.revision != i.require || s.lost {
				return []any{s}
			}
			return nil
		case o.unknown:
			if !s.lost && i.require == s.revision {
				// It took effect, at a revision that nobody was told, or it did not.
				return []any{s, mark{revision: s.revision, lost: true}}
			}
			return []any{s}
		case !s.lost && i.require == s.revision || s.lost && i.require > s.revision:
			if o.revision > i.require {
				return []any{mark{revision: o.revision}}
			}
		}
		return nil
	},
	Equal: func(a, b any) bool { return a == b },
}

// mark is a state of a key. lost: a write of unknown outcome took effect after revision, and nobody
// has read its revision yet.
type mark struct {
	revision uint64
	lost     bool
}

func (h *History) now() int64 { return int64(time.Since(h.start)) }

func (h *History) record(client int, in input, call int64, out output) {
	end := h.now()
	if out.unknown {
		end = 1 << 62 // it may take effect at any later time
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: in, Call: call, Output: out, Return: end})
}

// Client reads and writes random keys through the server that pick returns, until ctx ends.
func (h *History) Client(ctx context.Context, seed uint64, keys int, pick func() Server) {
	h.mu.Lock()
	id := h.nextID
	h.nextID++
	h.mu.Unlock()
	rnd := rand.New(rand.NewPCG(seed, uint64(id)))
	known := make(map[string]uint64)
	for ctx.Err() == nil {
		key := fmt.Sprintf("%s%d", h.Prefix, rnd.IntN(keys))
		limited, cancel := context.WithTimeout(ctx, 2*time.Second)
		if rnd.IntN(2) == 0 {
			h.read(limited, id, key, known, pick())
		} else {
			h.write(limited, id, key, known, pick())
		}
		cancel()
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(rnd.IntN(int(5 * time.Millisecond)))):
		}
	}
}

func (h *History) read(ctx context.Context, id int, key string, known map[string]uint64, s Server) {
	call := h.now()
	v, err := s.View(ctx, raftstore.ViewOptions{})
	if err != nil {
		return
	}
	item, _ := v.Get(key)
	known[key] = item.ModRevision
	h.record(id, input{key: key}, call, output{revision: item.ModRevision})
}

func (h *History) write(ctx context.Context, id int, key string, known map[string]uint64, s Server) {
	in := input{key: key, write: true, require: known[key]}
	call := h.now()
	r, err := s.Commit(ctx, raftstore.Txn{
		Require: []raftstore.Precondition{{Key: key, ModRevision: in.require}},
		Ops:     []raftstore.Op{{Kind: raftstore.Put, Key: key}},
	})
	var conflict *raftstore.ConflictError
	switch {
	case err == nil:
		known[key] = r.Revision
		h.record(id, in, call, output{revision: r.Revision})
	case errors.As(err, &conflict):
		known[key] = 0
		if conflict.Current != nil {
			known[key] = conflict.Current.ModRevision
		}
		h.record(id, in, call, output{conflict: true})
	case errors.Is(err, raftstore.ErrUnknownOutcome):
		h.record(id, in, call, output{unknown: true})
	}
}

// Check fails the test when no order of the operations explains what the clients were told.
func (h *History) Check(t testing.TB) {
	t.Helper()
	if err := h.Verify(time.Minute); err != nil {
		t.Error(err)
	}
}

// Verify returns an error when no order of the operations explains what the clients were told, or when
// that is not known after the time.
func (h *History) Verify(timeout time.Duration) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.ops) == 0 {
		return errors.New("the history is empty")
	}
	if result := porcupine.CheckOperationsTimeout(register.ToModel(), h.ops, timeout); result != porcupine.Ok {
		return fmt.Errorf("a history of %d operations is not linearizable: %s", len(h.ops), result)
	}
	return nil
}

// Len returns how many operations the history has.
func (h *History) Len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.ops)
}

// Restore restores the items, which have all of the keys with a value that none had before, and records it as a
// write of each of them. It reports whether it took effect.
func (h *History) Restore(ctx context.Context, s *raftstore.Server, items func(yield func(*raftstore.Item) error) error, keys []string) bool {
	h.mu.Lock()
	id := h.nextID
	h.nextID++
	h.mu.Unlock()
	call := h.now()
	r, err := s.Restore(ctx, items, raftstore.RestoreOptions{})
	if err != nil && !errors.Is(err, raftstore.ErrUnknownOutcome) {
		return false
	}
	for _, key := range keys {
		h.record(id, input{key: key, write: true, always: true}, call, output{revision: r.Revision, unknown: err != nil})
	}
	return err == nil
}
