package storage

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/barque/barque/raftstore"
)

// seats lets each pod have the seat that its hostname names, to itself. A pod that finds it taken
// gets the next one, unless it is stubborn.
type seats struct{}

var errSeatTaken = errors.New("the seat is taken")

func seatOf(obj runtime.Object) string {
	if pod, ok := obj.(*example.Pod); ok && pod.Spec.Hostname != "" {
		return "/seats/" + pod.Spec.Hostname
	}
	return ""
}

func (seats) Of(_ context.Context, old, obj runtime.Object) (Companion, error) {
	var with Companion
	had, has := seatOf(old), seatOf(obj)
	if had == has {
		return with, nil
	}
	if had != "" {
		with.Ops = append(with.Ops, raftstore.Op{Kind: raftstore.Delete, Key: had})
	}
	if has != "" {
		with.Require = append(with.Require, raftstore.Precondition{Key: has})
		with.Ops = append(with.Ops, raftstore.Op{Kind: raftstore.Put, Key: has, Value: []byte(obj.(*example.Pod).Name)})
	}
	return with, nil
}

func (seats) Refused(_ context.Context, _, obj runtime.Object, conflict *raftstore.ConflictError) error {
	pod := obj.(*example.Pod)
	if conflict.Key != seatOf(pod) {
		return fmt.Errorf("refused because of %q", conflict.Key)
	}
	if pod.Labels["stubborn"] != "" {
		return errSeatTaken
	}
	pod.Spec.Hostname += "x"
	return nil
}

// occupied are the seats in the store, with their owners.
func occupied(t *testing.T, e *env) map[string]string {
	t.Helper()
	view, err := e.backend.View(t.Context(), raftstore.ViewOptions{})
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	view.Ascend("/seats/", "", func(item raftstore.Item) bool {
		out[item.Key[len("/seats/"):]] = string(item.Value)
		return true
	})
	return out
}

func newSeats(t *testing.T) *env {
	e := newEnv(t, envOptions{})
	e.raw.companions = seats{}
	return e
}

func seat(name, seat string) *example.Pod {
	return &example.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns"},
		Spec: example.PodSpec{Hostname: seat}}
}

func podKey(name string) string { return "/pods/ns/" + name }

// moveTo is an update to another seat.
func moveTo(e *env, name, to string, stubborn bool) (*example.Pod, error) {
	out := &example.Pod{}
	err := e.store.GuaranteedUpdate(e.ctx, podKey(name), out, false, nil,
		func(in runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
			pod := in.(*example.Pod) // changed in place, as callers may
			pod.Spec.Hostname = to
			if stubborn {
				pod.Labels = map[string]string{"stubborn": "yes"}
			}
			return pod, nil, nil
		}, nil)
	return out, err
}

func TestCompanions(t *testing.T) {
	e := newSeats(t)
	create := func(name, at string) *example.Pod {
		t.Helper()
		out := &example.Pod{}
		if err := e.store.Create(e.ctx, podKey(name), seat(name, at), out, 0); err != nil {
			t.Fatal(err)
		}
		return out
	}
	wants := func(want map[string]string) {
		t.Helper()
		if got := occupied(t, e); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("seats: %v, want %v", got, want)
		}
	}
	create("a", "1")
	if got := create("b", "1"); got.Spec.Hostname != "1x" {
		t.Errorf("the answer has the seat %q, want 1x", got.Spec.Hostname)
	}
	wants(map[string]string{"1": "a", "1x": "b"})
	if err := e.store.Create(e.ctx, podKey("a"), seat("a", "5"), nil, 0); !storage.IsExist(err) {
		t.Errorf("creating what exists: %v", err)
	}
	wants(map[string]string{"1": "a", "1x": "b"})

	if got, err := moveTo(e, "a", "1x", false); err != nil || got.Spec.Hostname != "1xx" {
		t.Errorf("moved to %q, %v, want 1xx", got.Spec.Hostname, err)
	}
	wants(map[string]string{"1xx": "a", "1x": "b"})
	if _, err := moveTo(e, "a", "1x", true); !errors.Is(err, errSeatTaken) {
		t.Errorf("a stubborn pod: %v", err)
	}
	wants(map[string]string{"1xx": "a", "1x": "b"})

	for _, name := range []string{"a", "b"} {
		if err := e.store.Delete(e.ctx, podKey(name), &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil,
			storage.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	wants(nil)
}

// An answer that is lost, or a server that dies, leaves an object with its companion or neither.
func TestCompanionsOfLostWrites(t *testing.T) {
	e := newSeats(t)
	e.increase(t.Context(), t) // the store has its first revision
	for i := range 20 {
		executed := i%2 == 0
		e.raw.backend = losing{e.backend, executed}
		if err := e.store.Create(e.ctx, podKey(fmt.Sprint(i)), seat(fmt.Sprint(i), fmt.Sprint(i)), nil, 0); err == nil {
			t.Fatal("the answer was not lost")
		}
		e.raw.backend = e.backend
		err := e.store.Get(e.ctx, podKey(fmt.Sprint(i)), storage.GetOptions{}, &example.Pod{})
		if _, seated := occupied(t, e)[fmt.Sprint(i)]; seated != executed || (err == nil) != executed {
			t.Errorf("executed %v: seat taken %v, object %v", executed, seated, err)
		}
	}
}

// losing is a backend whose answers to writes are lost.
type losing struct {
	Backend
	execute bool
}

func (l losing) Commit(ctx context.Context, txn raftstore.Txn) (raftstore.Result, error) {
	if l.execute {
		if _, err := l.Backend.Commit(ctx, txn); err != nil {
			return raftstore.Result{}, err
		}
	}
	return raftstore.Result{}, raftstore.ErrUnknownOutcome
}

// Writers that all want the first seat get one each, and none is left over when they go.
func TestCompanionsUnderContention(t *testing.T) {
	e := newSeats(t)
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			name := fmt.Sprint("p", i)
			if err := e.store.Create(e.ctx, podKey(name), seat(name, "1"), nil, 0); err != nil {
				t.Error(err)
			}
			if _, err := moveTo(e, name, "2", false); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	holders := map[string]bool{}
	for at, name := range occupied(t, e) {
		if at[0] != '2' || holders[name] {
			t.Errorf("%s has the seat %s", name, at)
		}
		holders[name] = true
	}
	if len(holders) != 12 {
		t.Errorf("%d pods have seats, want 12", len(holders))
	}
}
