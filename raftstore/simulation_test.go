package raftstore_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/storetest"
)

var (
	seed  = flag.Uint64("seed", 0, "seed of the simulation; 0 draws one")
	seeds = flag.Uint64("seeds", 2, "how many seeds the simulation of comparisons takes")
)

// TestSimulation cuts leaders off and makes others lead, while clients read and write through all
// servers and a watcher follows on each. In the end the history must be linearizable, every watcher
// must have seen every revision once and in order, and the states must be equal.
func TestSimulation(t *testing.T) {
	seed := *seed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("repeat with -seed %d", seed)
	history := new(storetest.History)
	synctest.Test(t, func(t *testing.T) {
		history = storetest.NewHistory()
		c := storetest.NewCluster(t, 3, func(_ int, cfg *raftstore.Config) { cfg.RetryFor = time.Second })
		rnd := rand.New(rand.NewPCG(seed, 1))
		ctx, stop := context.WithCancel(context.Background())
		var clients, watchers sync.WaitGroup
		for i := range 5 {
			clients.Go(func() { history.Client(ctx, seed, 3, func() storetest.Server { return c.Servers[i%3] }) })
		}
		seen := make([]*follower, 3)
		for i, s := range c.Servers {
			seen[i] = follow(t, s)
			watchers.Go(seen[i].run)
		}
		terms := map[uint64]bool{}
		for range 20 {
			leader, term := c.Leader()
			terms[term] = true
			<-time.After(time.Duration(rnd.IntN(int(300 * time.Millisecond))))
			if rnd.IntN(3) == 0 {
				c.Servers[leader].TransferLeadership(context.Background(), "")
				continue
			}
			c.Net.Isolate(storetest.Addr(leader))
			<-time.After(time.Duration(rnd.IntN(int(time.Second))))
			c.Net.Heal()
		}
		stop()
		clients.Wait()
		final, err := c.Servers[0].Commit(limited(t), put("/end", ""))
		if err != nil {
			t.Fatal(err)
		}
		watchers.Wait()
		c.Await("equal states", func() bool { return sameState(c) })
		for i, f := range seen {
			if f.err != nil || f.last != final.Revision {
				t.Errorf("watcher on server %d came to revision %d of %d: %v", i, f.last, final.Revision, f.err)
			}
		}
		for i, s := range c.Servers {
			if why := s.Status().Quarantined; why != "" {
				t.Errorf("server %d is in quarantine: %s", i, why)
			}
		}
		if len(terms) < 5 {
			t.Errorf("only %d terms: the faults had no effect", len(terms))
		}
	})
	t.Logf("%d operations", history.Len())
	history.Check(t)
}

// follower watches everything on one server and checks that no revision is missing or comes twice.
type follower struct {
	w    raftstore.Watcher
	last uint64
	err  error
}

func follow(t *testing.T, s *raftstore.Server) *follower {
	v, err := s.View(limited(t), raftstore.ViewOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := s.Watch(raftstore.WatchOptions{Prefix: "/", After: v.Revision()})
	if err != nil {
		t.Fatal(err)
	}
	return &follower{w: w, last: v.Revision()}
}

// run ends with the key /end.
func (f *follower) run() {
	defer f.w.Close()
	for f.err == nil {
		b, err := f.w.Next(context.Background())
		switch {
		case err != nil:
			f.err = err
		case b.Revision != f.last+1:
			f.err = fmt.Errorf("revision %d follows revision %d", b.Revision, f.last)
		default:
			f.last = b.Revision
			if b.Events[0].Item.Key == "/end" {
				return
			}
		}
	}
}
