package register

import (
	"errors"
	"testing"

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
