package raftstore_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/internal/syncbuf"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/storetest"
)

// TestServerSaysThatThereIsNoQuorum stops two of three servers. The third must log the servers that
// are missing, and must not fill the disk with that.
func TestServerSaysThatThereIsNoQuorum(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log syncbuf.Buffer
		c := storetest.NewCluster(t, 3, func(i int, cfg *raftstore.Config) {
			if i == 2 {
				cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
			}
		})
		c.Stop(0)
		c.Stop(1)
		<-time.After(10 * time.Minute)
		text := log.String()
		if !strings.Contains(text, `answer=1 voters=3 mend="2 servers are needed`) ||
			!strings.Contains(text, "s1 (s1:6444)") {
			t.Errorf("it does not say what is missing:\n%s", text)
		}
		if n := strings.Count(text, "\n"); n > 600 {
			t.Errorf("%d lines in 10 minutes", n)
		}
	})
}

// requests are those that need a leader. Each returns its error, and how long that took.
func requests(t *testing.T, s *raftstore.Server) map[string]func() (time.Duration, error) {
	timed := func(f func(context.Context) error) func() (time.Duration, error) {
		return func() (time.Duration, error) {
			began := time.Now()
			err := f(limited(t))
			return time.Since(began), err
		}
	}
	return map[string]func() (time.Duration, error){
		"a read":     timed(func(ctx context.Context) error { return second(s.View(ctx, raftstore.ViewOptions{})) }),
		"a write":    timed(func(ctx context.Context) error { return second(s.Commit(ctx, put("/k", "v"))) }),
		"a transfer": timed(func(ctx context.Context) error { return s.TransferLeadership(ctx, "") }),
	}
}

// checkLeaderless wants each kind of request to fail, soon, because there is no leader for long.
func checkLeaderless(t *testing.T, s *raftstore.Server, since time.Duration) {
	t.Helper()
	for what, ask := range requests(t, s) {
		took, err := ask()
		leaderless, ok := errors.AsType[*raftstore.LeaderlessError](err)
		if !ok || !errors.Is(err, raftstore.ErrLeaderless) || !errors.Is(err, raftstore.ErrUnavailable) ||
			errors.Is(err, raftstore.ErrUnknownOutcome) {
			t.Errorf("%s: %v; want that there is no leader for long", what, err)
			continue
		}
		if leaderless.For < since || leaderless.For > since+15*time.Second {
			t.Errorf("%s: it says that there has been none for %s; want %s, and a few seconds", what, leaderless.For,
				since)
		}
		if took < time.Second || took > 3*time.Second {
			t.Errorf("%s: it took %s to say so; want no more than an election takes, and no less", what, took)
		}
	}
}

// TestNoLeaderForLong cuts off a follower, and then a leader. While that may be an election,
// requests wait for one; later they wait for an election that may just be under way, and no longer.
// A cut that is healed has changed nothing.
func TestNoLeaderForLong(t *testing.T) {
	for name, off := range map[string]int{"a follower": 1, "the leader": 0} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := storetest.NewCluster(t, 3, nil)
				leader, _ := c.Leader()
				alone := (leader + off) % 3
				s := c.Servers[alone]
				c.Net.Isolate(storetest.Addr(alone))
				<-time.After(time.Second)
				if err := s.Ready(limited(t)); !errors.Is(err, raftstore.ErrUnavailable) ||
					errors.Is(err, raftstore.ErrLeaderless) {
					t.Errorf("after a second: %v", err)
				}
				took, err := requests(t, s)["a write"]()
				if !errors.Is(err, raftstore.ErrLeaderless) || took < 8*time.Second || took > 10*time.Second {
					t.Errorf(
						"a write that began soon after: %v after %s; want that there is no leader after nearly 10s",
						err, took)
				}
				<-time.After(30 * time.Second)
				checkLeaderless(t, s, 40*time.Second)
				c.Net.Heal()
				c.Await("a leader", func() bool { return s.Ready(limited(t)) == nil })
				if _, err := s.Commit(limited(t), put("/k", "v")); err != nil {
					t.Errorf("healed: %v", err)
				}
			})
		})
	}
}

// TestNoLeaderSinceTheStart starts a server without the others: it counts from its start, whatever
// there was before.
func TestNoLeaderSinceTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := storetest.NewCluster(t, 3, onDisk(t))
		for i := range 3 {
			c.Stop(i)
		}
		<-time.After(time.Hour)
		c.Start(2)
		s := c.Servers[2]
		<-time.After(5 * time.Second)
		if err := s.Ready(limited(t)); !errors.Is(err, raftstore.ErrUnavailable) ||
			errors.Is(err, raftstore.ErrLeaderless) {
			t.Errorf("five seconds after the start: %v", err)
		}
		<-time.After(15 * time.Second)
		checkLeaderless(t, s, 20*time.Second)
	})
}

// TestAnElectionAfterLong: a request at the moment in which servers come back is served.
func TestAnElectionAfterLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := storetest.NewCluster(t, 3, onDisk(t))
		c.Stop(0)
		c.Stop(1)
		<-time.After(time.Minute)
		c.Start(0)
		for what, ask := range requests(t, c.Servers[2]) {
			if took, err := ask(); err != nil && what != "a transfer" {
				t.Errorf("%s: %v, after %s", what, err, took)
			}
		}
	})
}

// TestRetryForIsLongerThanAnElection: a caller that wants to wait for longer, counted from when the
// leader was lost, does.
func TestRetryForIsLongerThanAnElection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := storetest.NewCluster(t, 3, func(_ int, cfg *raftstore.Config) { cfg.RetryFor = 25 * time.Second })
		c.Net.Isolate(storetest.Addr(1))
		<-time.After(15 * time.Second)
		if took, err := requests(t, c.Servers[1])["a read"](); !errors.Is(err, raftstore.ErrLeaderless) ||
			took < 9*time.Second || took > 11*time.Second {
			t.Errorf("%v after %s; want that there is no leader, 25s after it was lost", err, took)
		}
		checkLeaderless(t, c.Servers[1], 25*time.Second)
	})
}
