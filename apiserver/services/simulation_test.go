package services

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/barque/barque/apiserver/storage"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/storetest"
)

// faulty is a server's way to the store. It loses writes on their way there, and answers on their
// way back, as a crash of either end does.
type faulty struct {
	storage.Backend
	mu  sync.Mutex
	rng *rand.Rand
}

func (f *faulty) Commit(ctx context.Context, txn raftstore.Txn) (raftstore.Result, error) {
	f.mu.Lock()
	fault := f.rng.IntN(10)
	f.mu.Unlock()
	switch fault {
	case 0:
		return raftstore.Result{}, raftstore.ErrUnavailable
	case 1:
		return raftstore.Result{}, raftstore.ErrUnknownOutcome
	}
	result, err := f.Backend.Commit(ctx, txn)
	if fault == 2 && err == nil {
		return raftstore.Result{}, raftstore.ErrUnknownOutcome
	}
	return result, err
}

// TestSimulation has writers on three servers create, change and delete Services in ranges that are
// too small for them, while writes and answers get lost, leaders are cut off, ServiceCIDRs come and
// go, and the leader repairs. Views of all servers are looked at all the time: what belongs to
// Services is right at every single revision, not only in the end.
func TestSimulation(t *testing.T) {
	seeds := 30
	if testing.Short() {
		seeds = 3
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { simulate(t, uint64(seed)) })
		})
	}
}

func simulate(t *testing.T, seed uint64) {
	const writers, steps = 9, 40
	cluster := storetest.NewCluster(t, 3, nil)
	servers := make([]*server, 3)
	for i := range servers {
		servers[i] = newServer(t, &faulty{Backend: cluster.Servers[i], rng: rand.New(rand.NewPCG(seed, uint64(i)))})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	var work sync.WaitGroup
	for w := range writers {
		rng := rand.New(rand.NewPCG(seed, uint64(100+w)))
		work.Go(func() {
			for range steps {
				act(ctx, rng, servers[w%3], w)
				pause(rng, 50*time.Millisecond)
			}
		})
	}
	done := make(chan struct{})
	var others sync.WaitGroup
	every := func(n uint64, f func(rng *rand.Rand)) {
		rng := rand.New(rand.NewPCG(seed, n))
		others.Go(func() {
			for {
				select {
				case <-done:
					return
				case <-time.After(time.Duration(1+rng.IntN(100)) * time.Millisecond):
					f(rng)
				}
			}
		})
	}
	every(200, func(rng *rand.Rand) { // looks
		s := servers[rng.IntN(3)]
		view, err := s.backend.View(ctx, raftstore.ViewOptions{Stale: true})
		if err == nil {
			err = s.check(ctx, view)
		}
		if err != nil && ctx.Err() == nil {
			t.Error(err)
		}
	})
	every(201, func(rng *rand.Rand) { // cuts servers off
		cluster.Net.Isolate(storetest.Addr(rng.IntN(3)))
		pause(rng, time.Second)
		cluster.Net.Heal()
		pause(rng, 2*time.Second)
	})
	repairs := &repair{a: servers[0].Allocator, now: time.Now, recorder: silent{}, logger: quiet}
	every(202, func(*rand.Rand) { _ = repairs.once(ctx) })
	every(203, func(rng *rand.Rand) { toggleCIDR(ctx, servers[rng.IntN(3)], rng) })
	work.Wait()
	close(done)
	others.Wait()
	cluster.Net.Heal()

	last := newServer(t, cluster.Servers[0])
	seen := last.wantConsistent(t)
	for _, s := range seen.services {
		if err := last.delete(ctx, s.Name); err != nil {
			t.Error(err)
		}
	}
	if seen := last.wantConsistent(t); len(seen.services)+len(seen.addresses) != 0 {
		t.Errorf("%d Services and %d IPAddresses are left", len(seen.services), len(seen.addresses))
	}
}

func pause(rng *rand.Rand, limit time.Duration) {
	<-time.After(time.Duration(rng.Int64N(int64(limit))))
}

// act does something to a Service of a writer, or of its neighbour. Much of it fails.
func act(ctx context.Context, rng *rand.Rand, s *server, writer int) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	name := fmt.Sprintf("s%d-%d", (writer+rng.IntN(2))%9, rng.IntN(3))
	types := []corev1.ServiceType{corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort,
		corev1.ServiceTypeLoadBalancer,
		corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeExternalName}
	typ := types[rng.IntN(len(types))]
	change := func(o *corev1.Service) {
		o.Spec.Type, o.Spec.ExternalName = typ, ""
		o.Spec.Ports = []corev1.ServicePort{port("a", 80, "", 0), port("b", 81, "", 0)}[:1+rng.IntN(2)]
		switch {
		case typ == corev1.ServiceTypeExternalName:
			o.Spec.ExternalName = "example.com"
		case typ == corev1.ServiceTypeNodePort && rng.IntN(4) == 0:
			o.Spec.Ports[0].NodePort = 30000 + rng.Int32N(12)
		}
	}
	switch rng.IntN(8) {
	case 5, 6, 7:
		_, _ = s.balance(ctx, name, func(o *corev1.Service) { randomStatus(rng, o) })
	case 0, 1:
		o := service(name, change)
		if typ != corev1.ServiceTypeExternalName && rng.IntN(3) == 0 {
			at(fmt.Sprintf("10.%d.0.%d", 43+rng.IntN(2), rng.IntN(16)))(o)
		}
		_, _ = s.create(ctx, o)
	case 2, 3:
		_, _ = s.update(ctx, name, change)
	case 4:
		_ = s.delete(ctx, name)
	}
}

// toggleCIDR makes a ServiceCIDR and takes it away again, as its controller does: first it is
// unready, and it goes only if no address is in it.
func toggleCIDR(ctx context.Context, s *server, rng *rand.Rand) {
	view, err := s.backend.View(ctx, raftstore.ViewOptions{})
	if err != nil {
		return
	}
	key := s.cfg.ServiceCIDRs.Key("more")
	item, exists := view.Get(key)
	txn := raftstore.Txn{Require: []raftstore.Precondition{{Key: key, ModRevision: item.ModRevision}}}
	object := newCIDR("more", "10.44.0.0/28")
	switch {
	case exists && item.ModRevision != item.CreateRevision: // it is being deleted
		seen, err := s.inspect(ctx, view)
		if err != nil {
			return
		}
		for a := range seen.addresses {
			if a.As4()[1] == 44 {
				return
			}
		}
		txn.Ops = []raftstore.Op{{Kind: raftstore.Delete, Key: key}}
	case exists && rng.IntN(2) == 0:
		return
	case exists:
		deleting(object)
		fallthrough
	default:
		put, err := s.cfg.ServiceCIDRs.Put(ctx, object.Name, object)
		if err != nil {
			return
		}
		txn.Ops = []raftstore.Op{put}
	}
	_, _ = s.backend.Commit(ctx, txn)
}
