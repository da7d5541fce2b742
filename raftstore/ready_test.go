package raftstore_test

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/internal/syncbuf"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/storetest"
	"github.com/barque/barque/raftstore/transport/memnet"
)

// checkNotReady checks the reason, and that it is known without waiting.
func checkNotReady(t *testing.T, s *raftstore.Server, want error, texts ...string) {
	t.Helper()
	began := time.Now()
	err := s.Ready(limited(t))
	if !errors.Is(err, want) {
		t.Fatalf("Ready: %v, want %v", err, want)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%q does not say %q", err, text)
		}
	}
	if took := time.Since(began); took > 0 { // in virtual time
		t.Errorf("it took %v to say %q", took, err)
	}
}

func checkReady(t *testing.T, s *raftstore.Server) {
	t.Helper()
	if err := s.Ready(limited(t)); err != nil {
		t.Fatalf("it is not ready: %v", err)
	}
}

func second[A any](_ A, err error) error { return err }

func TestReadyWithoutQuorum(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := storetest.NewCluster(t, 3, nil)
		for _, s := range c.Servers {
			checkReady(t, s)
		}
		c.Net.Isolate(storetest.Addr(2))
		<-time.After(42 * time.Second)
		checkNotReady(t, c.Servers[2], raftstore.ErrUnavailable, "no leader has been known for 42s, since 2000-01-01T",
			"2 of the 3 servers with a vote")
		checkReady(t, c.Servers[0])
		for what, err := range map[string]error{
			"a write": second(
				c.Servers[2].Commit(limited(t),
					raftstore.Txn{Ops: []raftstore.Op{{Kind: raftstore.Put, Key: "/k", Value: []byte("v")}}})),
			"a read":      second(c.Servers[2].View(limited(t), raftstore.ViewOptions{})),
			"a transfer":  c.Servers[2].TransferLeadership(limited(t), ""),
			"a departure": c.Servers[2].Remove(limited(t), c.Servers[0].ID(), "the test wants it"),
		} {
			if !errors.Is(err, raftstore.ErrUnavailable) ||
				!strings.Contains(err.Error(), "no leader has been known for") ||
				!strings.Contains(err.Error(), "2 of the 3 servers with a vote") {
				t.Errorf("%s: %v", what, err)
			}
		}
		c.Net.Heal()
		c.Await("ready again", func() bool { return c.Servers[2].Ready(limited(t)) == nil })
	})
}

// TestReadyWaitsForAnElection asks in the moment in which a leader was lost: a server that has
// another one within the time it is given was ready all along.
func TestReadyWaitsForAnElection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := storetest.NewCluster(t, 3, nil)
		old, _ := c.Leader()
		c.Crash(old)
		checkReady(t, c.Servers[(old+1)%3])
	})
}

func TestReadyInQuarantine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := storetest.NewCluster(t, 3, nil)
		leader, _ := c.Leader()
		if _, err := c.Servers[leader].Commit(limited(t), put("/a", "1")); err != nil {
			t.Fatal(err)
		}
		steady(c)
		bad := (leader + 1) % 3
		corrupt(t, c.Servers[bad], "ready")
		<-time.After(onePeriod)
		synctest.Wait()
		checkNotReady(t, c.Servers[bad], raftstore.ErrQuarantined, c.Servers[bad].Status().Quarantined)
		checkReady(t, c.Servers[leader])
	})
}

func TestReadyOfOneThatIsNoMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := raftstore.Open(
			raftstore.Config{InMemory: true, ClusterID: "test", Stream: new(memnet.Network).Host("alone")})
		if err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Minute)
		checkNotReady(t, s, raftstore.ErrUnavailable, "no member of the cluster", "for 1m0s")
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		checkNotReady(t, s, raftstore.ErrClosed)
	})
}

func TestReadyOfOneThatWasRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := storetest.NewCluster(t, 4, nil)
		leader, _ := c.Leader()
		gone := c.Servers[(leader+1)%4]
		if err := c.Servers[leader].Remove(limited(t), gone.ID(), "its rack burns"); err != nil {
			t.Fatal(err)
		}
		<-gone.Removed()
		checkNotReady(t, gone, raftstore.ErrUnavailable, "its rack burns")
		if _, ok := errors.AsType[*raftstore.RemovedError](gone.Ready(limited(t))); !ok {
			t.Error("it is no RemovedError")
		}
	})
}

// TestLogTellsOfLeadersAndMembers reads what the servers log about a leader that is cut off and
// comes back.
func TestLogTellsOfLeadersAndMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logs := make([]syncbuf.Buffer, 3)
		c := storetest.NewCluster(t, 3, func(i int, cfg *raftstore.Config) {
			cfg.Logger = slog.New(slog.NewTextHandler(&logs[i], nil))
			cfg.Timeouts = raftstore.Timeouts{Heartbeat: time.Second, Lease: 800 * time.Millisecond,
				PromoteAfter: time.Millisecond}
		})
		old, _ := c.Leader()
		c.Net.Isolate(storetest.Addr(old))
		c.Await("another leader", func() bool {
			m, ok := c.Servers[(old+1)%3].Leader()
			return ok && m.ID != c.Servers[old].ID()
		})
		<-time.After(10 * time.Minute)
		c.Net.Heal()
		<-time.After(time.Minute)
		if err := c.Servers[old].Snapshot(); err != nil {
			t.Fatal(err)
		}
		next, _ := c.Leader()
		other := 3 - old - next
		for what, want := range map[string][]string{
			logs[old].String(): {"this server leads", "too few servers have answered it for 800ms",
				"this server follows another one", "a snapshot was written"},
			logs[next].String(): {"this server campaigns", "this server leads", "a member does not answer",
				"a member answers again", "the members have changed"},
			logs[other].String(): {"this server follows another one", "the members have changed"},
		} {
			for _, text := range want {
				if !strings.Contains(what, text) {
					t.Errorf("it does not say %q:\n%s", text, what)
				}
			}
			// one of them has no leader for ten minutes, and asks for votes every second or two
			if n := strings.Count(what, "\n"); n > 100 {
				t.Errorf("%d lines:\n%s", n, what)
			}
			if strings.Contains(what, "failed to get previous log") {
				t.Error("it complains of what is usual")
			}
		}
	})
}
