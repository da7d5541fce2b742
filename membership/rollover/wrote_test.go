package rollover

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"testing"
)

// number is a State.
type number struct {
	Envelope
	Generation uint64 `json:"generation"`
	Step       string `json:"step,omitempty"`
}

// At implements State.
func (n number) At() (uint64, string) { return n.Generation, n.Step }

// numbers are a Kind of two steps, on a server that uses the generation uses.
type numbers struct{ uses uint64 }

func (*numbers) Check(number) error      { return nil }
func (k *numbers) Uses() uint64          { return k.uses }
func (*numbers) Waiting(number) []string { return nil }
func (*numbers) Tidy() error             { return nil }

func (k *numbers) Rebuild(number) (number, error) {
	return number{Envelope{1, "c"}, k.uses, ""}, nil
}

func (*numbers) Next(n number) (number, error) {
	return number{n.Envelope, n.Generation + 1, ""}, nil
}

func (*numbers) Fetch(context.Context, number) (func() error, error) {
	return func() error { return nil }, nil
}

// memoryStore is a Store.
type memoryStore struct {
	value    []byte
	revision uint64
	fails    error
}

func (s *memoryStore) Get(context.Context) ([]byte, uint64, error) { return s.value, s.revision, nil }

func (s *memoryStore) Put(_ context.Context, value []byte, revision, _ uint64) error {
	if s.fails != nil {
		return s.fails
	}
	s.value, s.revision = value, revision+1
	return nil
}

func (s *memoryStore) Follow(context.Context, func([]byte, uint64)) error { return nil }

// TestWrote: each state that a server has written is reported with the one before, and no other.
func TestWrote(t *testing.T) {
	type seen struct {
		before, after number
		cause         Cause
	}
	var all []seen
	store, kind := &memoryStore{}, &numbers{uses: 1}
	m := New(Server{Cluster: "c", Store: store, Logger: slog.New(slog.DiscardHandler), Wrote: func(w Written) {
		all = append(all, seen{w.Before.(number), w.After.(number), w.Cause})
	}}, About{Format: 1, First: 1}, kind)
	state := func(generation uint64, step string) number { return number{Envelope{1, "c"}, generation, step} }
	stored := func() (n number) {
		if err := json.Unmarshal(store.value, &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	order := func(write bool) error {
		_, err := m.Change(t.Context(),
			func(now number) (number, bool, error) { return state(now.Generation+1, "spread"), write, nil })
		return err
	}
	if err := order(false); err != nil {
		t.Fatal(err)
	}
	if store.fails = errors.New("no quorum"); order(true) == nil {
		t.Fatal("the store has failed, and the change has not")
	}
	store.fails = nil
	if err := order(true); err != nil {
		t.Fatal(err)
	}
	if _, err := m.step(t.Context(), stored(), 5); err != nil {
		t.Fatal(err)
	}
	kind.uses = 9 // as the store had before a backup
	if _, err := m.step(t.Context(), stored(), 5); err != nil {
		t.Fatal(err)
	}
	want := []seen{
		{state(1, ""), state(2, "spread"), Ordered}, {state(2, "spread"), state(3, ""), Advanced},
		{state(3, ""), state(9, ""), Repaired},
	}
	if !slices.Equal(all, want) {
		t.Errorf("these are reported: %+v, want %+v", all, want)
	}
}
