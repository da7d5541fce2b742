package register

import (
	"errors"
	"sync"
	"testing"

	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/raftstore"
)

func TestRegister(t *testing.T) {
	store := raftstore.NewInMemory(raftstore.Options{})
	t.Cleanup(func() { store.Close() })
	if _, err := store.Put(t.Context(), "/other", []byte("/other")); err != nil {
		t.Fatal(err)
	}
	register := New(store, "/barque/ca")
	type seen struct {
		state    string
		revision uint64
	}
	got := make(chan seen, 10)
	go register.Follow(t.Context(), func(state []byte, revision uint64) { got <- seen{string(state), revision} })
	if first := <-got; first != (seen{}) {
		t.Errorf("nothing is there: %+v", first)
	}
	if err := register.Put(t.Context(), []byte("a"), 0, 0); err != nil {
		t.Fatal(err)
	}
	a := <-got
	state, revision, err := register.Get(t.Context())
	if err != nil || string(state) != "a" || a != (seen{"a", revision}) {
		t.Errorf("%q at %d, %v; followed %+v", state, revision, err, a)
	}
	var conflict *raftstore.ConflictError
	if err := register.Put(t.Context(), []byte("b"), revision+7, 0); !errors.As(err, &conflict) {
		t.Errorf("over what it does not know: %v", err)
	}
	if err := register.Put(t.Context(), []byte("b"), revision, 99); !errors.Is(err, raftstore.ErrFenced) {
		t.Errorf("in a term that is over: %v", err)
	}
	if err := register.Put(t.Context(), []byte("b"), revision, 0); err != nil {
		t.Fatal(err)
	}
	if b := <-got; b.state != "b" {
		t.Errorf("followed %+v", b)
	}
}

// late is a store in which something is written just before the first watch and the first view.
type late struct {
	*raftstore.Store
	t    *testing.T
	once sync.Once
}

func (l *late) write() {
	l.once.Do(func() {
		if _, err := l.Put(l.t.Context(), "/barque/ca", []byte("a")); err != nil {
			l.t.Error(err)
		}
	})
}

func (l *late) Watch(o raftstore.WatchOptions) (raftstore.Watcher, error) {
	l.write()
	return l.Store.Watch(o)
}

// TestFollowFromTheFirstRevision: a server that has just started may be at revision 0 yet, after
// which a watch begins with what comes later.
func TestFollowFromTheFirstRevision(t *testing.T) {
	store := raftstore.NewInMemory(raftstore.Options{})
	t.Cleanup(func() { store.Close() })
	got := make(chan string, 10)
	go New(&late{Store: store, t: t}, "/barque/ca").Follow(t.Context(),
		func(state []byte, _ uint64) { got <- string(state) })
	for {
		if await.Value(t, "the value that was written meanwhile", got) == "a" {
			return
		}
	}
}
