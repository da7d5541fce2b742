package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/barque/barque/internal/linear"
	"github.com/barque/barque/raftstore"
)

// Server is a server for a History's clients; *raftstore.Server is one. A View needs to know the
// keys of the History only.
type Server interface {
	View(ctx context.Context, opts raftstore.ViewOptions) (raftstore.View, error)
	Commit(ctx context.Context, txn raftstore.Txn) (raftstore.Result, error)
}

// History records the operations of clients on single keys and their answers.
type History struct {
	// Prefix of its keys, which must not exist when it begins. Default: "/key".
	Prefix string

	mu     sync.Mutex
	start  time.Time
	nextID int
	ops    []linear.Operation
}

// NewHistory returns an empty history that begins now.
func NewHistory() *History { return &History{Prefix: "/key", start: time.Now()} }

func (h *History) now() int64 { return int64(time.Since(h.start)) }

// record adds a client's operation on a key, which has returned now. One of unknown outcome may
// take effect at any later time.
func (h *History) record(o linear.Operation) {
	if o.Return = h.now(); o.Read == nil && o.Outcome == linear.Unknown {
		o.Return = linear.Never
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, o)
}

// client returns the number of a new client.
func (h *History) client() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.nextID++
	return h.nextID
}

// client is one that reads and writes keys.
type client struct {
	history *History
	id      int
	known   map[string]linear.Item // the last answers
	values  int
}

// Client reads and writes random keys through the server that pick returns, until ctx ends.
func (h *History) Client(ctx context.Context, seed uint64, keys int, pick func() Server) {
	c := &client{history: h, id: h.client(), known: make(map[string]linear.Item)}
	rnd := rand.New(rand.NewPCG(seed, uint64(c.id)))
	for ctx.Err() == nil {
		key := fmt.Sprintf("%s%d", h.Prefix, rnd.IntN(keys))
		limited, cancel := context.WithTimeout(ctx, 2*time.Second) // brief: the outcome may stay unknown
		if rnd.IntN(2) == 0 {
			c.read(limited, key, pick())
		} else {
			c.write(limited, key, pick())
		}
		cancel()
		select {
		case <-ctx.Done():
		case <-time.After(
			time.Duration(rnd.IntN(int(5 * time.Millisecond)))): // brief: a client rests between its operations
		}
	}
}

// begins is an operation on a key that begins now.
func (c *client) begins(key string) linear.Operation {
	return linear.Operation{Client: c.id, Group: key, Call: c.history.now()}
}

// told is a client's answer about a key; nil: there is none.
func told(item *raftstore.Item) linear.Item {
	if item == nil {
		return linear.Item{}
	}
	return linear.Item{Exists: true, Value: string(item.Value), Revision: item.ModRevision}
}

func (c *client) read(ctx context.Context, key string, s Server) {
	o := c.begins(key)
	v, err := s.View(ctx, raftstore.ViewOptions{})
	if err != nil {
		return
	}
	o.Read, c.known[key] = make(map[string]linear.Item), linear.Item{}
	if item, ok := v.Get(key); ok {
		c.known[key] = told(&item)
		o.Read[key] = c.known[key]
	}
	c.history.record(o)
}

func (c *client) write(ctx context.Context, key string, s Server) {
	c.values++
	value := fmt.Sprintf("%d-%d", c.id, c.values)
	o := c.begins(key)
	o.Require, o.Put = map[string]linear.Item{key: c.known[key]}, map[string]string{key: value}
	r, err := s.Commit(ctx, raftstore.Txn{
		Require: []raftstore.Precondition{{Key: key, ModRevision: c.known[key].Revision}},
		Ops:     []raftstore.Op{{Kind: raftstore.Put, Key: key, Value: []byte(value)}},
	})
	var conflict *raftstore.ConflictError
	switch {
	case err == nil:
		o.Revision = r.Revision
		c.known[key] = linear.Item{Exists: true, Value: value, Revision: r.Revision}
	case errors.As(err, &conflict):
		c.known[key] = told(conflict.Current)
		o.Outcome, o.Found = linear.Conflict, map[string]linear.Item{key: c.known[key]}
	case errors.Is(err, raftstore.ErrUnknownOutcome):
		o.Outcome = linear.Unknown
	default:
		return
	}
	c.history.record(o)
}

// Check fails the test when no order of the operations explains the clients' answers.
func (h *History) Check(t testing.TB) {
	t.Helper()
	if err := h.Verify(time.Minute); err != nil {
		t.Error(err)
	}
}

// Verify returns an error when no order of the operations explains the clients' answers, or when
// that is not known after the time.
func (h *History) Verify(timeout time.Duration) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.ops) == 0 {
		return errors.New("the history is empty")
	}
	if err := linear.Check(h.ops, timeout); err != nil {
		return fmt.Errorf("single keys: %w", err)
	}
	return nil
}

// Len returns how many operations the history has.
func (h *History) Len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.ops)
}

// Restore restores the items, which have all of the keys with a value that none had before, and
// records it as a write of each of them. It reports whether it took effect.
func (h *History) Restore(
	ctx context.Context, s *raftstore.Server, items func(yield func(*raftstore.Item) error) error, keys []string,
) bool {
	values := make(map[string]string)
	if err := items(
		func(item *raftstore.Item) error { values[item.Key] = string(item.Value); return nil }); err != nil {
		return false
	}
	id, call := h.client(), h.now()
	r, err := s.Restore(ctx, items, raftstore.RestoreOptions{})
	if err != nil && !errors.Is(err, raftstore.ErrUnknownOutcome) {
		return false
	}
	for _, key := range keys {
		o := linear.Operation{Client: id, Group: key, Call: call, Put: map[string]string{key: values[key]},
			Revision: r.Revision}
		if err != nil {
			o.Outcome, o.Revision = linear.Unknown, 0
		}
		h.record(o)
	}
	return err == nil
}
