package storage

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"

	"github.com/barque/barque/apiserver/leaderterm"
	"github.com/barque/barque/raftstore"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
)

// termBackend notes the term of each transaction.
type termBackend struct {
	Backend
	terms []uint64
}

func (b *termBackend) Commit(ctx context.Context, txn raftstore.Txn) (raftstore.Result, error) {
	b.terms = append(b.terms, txn.Term)
	txn.Term = 0
	return b.Backend.Commit(ctx, txn)
}

func TestEveryWriteCarriesTheTerm(t *testing.T) {
	e := newEnv(t, envOptions{})
	terms := &termBackend{Backend: e.backend}
	e.raw.backend = terms
	ctx := leaderterm.With(e.ctx, 7)
	pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}}
	if err := e.store.Create(ctx, "/pods/ns/p", pod, nil, 0); err != nil {
		t.Fatal(err)
	}
	if err := e.store.GuaranteedUpdate(ctx, "/pods/ns/p", &example.Pod{}, false, nil, label("a"), nil); err != nil {
		t.Fatal(err)
	}
	if err := e.store.Delete(ctx, "/pods/ns/p", &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil,
		storage.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	// The one before these three gives the store its first revision.
	if want := []uint64{7, 7, 7, 7}; !slices.Equal(terms.terms, want) {
		t.Errorf("the transactions carried the terms %v, want %v", terms.terms, want)
	}
}

// The store in memory is always in term 1.
func TestOldTermIsRefused(t *testing.T) {
	e := newEnv(t, envOptions{})
	pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}}
	err := e.store.Create(leaderterm.With(e.ctx, 9), "/pods/ns/p", pod, nil, 0)
	if response, _ := answer(t, err); response.StatusCode != http.StatusConflict {
		t.Fatalf("answered %d, want 409: %v", response.StatusCode, err)
	}
	pod = &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}}
	if err := e.store.Create(leaderterm.With(e.ctx, 1), "/pods/ns/p", pod, nil, 0); err != nil {
		t.Fatal(err)
	}
}

// A deposed leader's work changes nothing any more, through whichever server it comes.
func TestDeposedLeaderIsFenced(t *testing.T) {
	c := newThree(t)
	was, term := c.Leader()
	var stores []*env
	for _, server := range c.Servers {
		stores = append(stores, newEnv(t, envOptions{backend: server.Store}))
	}
	write := func(through int, term uint64, name string) error {
		pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
		return stores[through].store.Create(leaderterm.With(t.Context(), term), "/pods/ns/"+name, pod, nil, 0)
	}
	// A busy machine may hold elections of its own: a write that must be retried is, in the new
	// term.
	steady := func(do func() error) (err error) {
		t.Helper()
		c.Await("the store answers", func() bool {
			err = do()
			return !errors.Is(err, raftstore.ErrUnavailable) && !errors.Is(err, raftstore.ErrUnknownOutcome)
		})
		return err
	}
	inTerm := func(through int, name string) {
		t.Helper()
		for {
			_, term := c.Leader()
			err := steady(func() error { return write(through, term, name) })
			if err == nil || storage.IsExist(err) { // by the write before, whose outcome was not known
				return
			}
			if _, now := c.Leader(); now == term {
				t.Fatalf("in the term of the leader, through server %d: %v", through, err)
			}
		}
	}
	for i := range stores {
		inTerm(i, fmt.Sprintf("old%d", i))
	}
	var is int
	var next uint64
	c.Await("another leads", func() bool {
		if is, next = c.Leader(); is != was {
			return true
		}
		if err := c.Servers[is].TransferLeadership(t.Context(), ""); err != nil {
			t.Logf("leadership is not handed over, trying again: %v", err)
		}
		return false
	})
	if next <= term {
		t.Fatalf("term %d follows term %d", next, term)
	}
	for i := range stores {
		err := steady(func() error { return write(i, term, fmt.Sprintf("late%d", i)) })
		if response, _ := answer(t, err); response.StatusCode != http.StatusConflict {
			t.Errorf("in an old term, through server %d: %v", i, err)
		}
		inTerm(i, fmt.Sprintf("new%d", i))
	}
	list := &example.PodList{}
	if err := steady(func() error {
		return stores[was].store.GetList(t.Context(), "/pods/",
			storage.ListOptions{Predicate: storage.Everything, Recursive: true}, list)
	}); err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 2*len(stores) {
		t.Errorf("%d objects were created, want %d", len(list.Items), 2*len(stores))
	}
}
