package amounts

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/internal/needs"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/storetest"
)

// historyAge is the default, and historyAtMost how old a revision gets that others have followed:
// the leader looks at its clock twice a minute.
const (
	historyAge    = 5 * time.Minute
	historyAtMost = historyAge + 40*time.Second
)

// has reports whether a server can show a revision and watch from it. It must be able to do both,
// or neither.
func has(t *testing.T, s *raftstore.Server, revision uint64) bool {
	t.Helper()
	_, viewed := s.View(await.Context(t), raftstore.ViewOptions{Revision: revision})
	w, watched := s.Watch(raftstore.WatchOptions{Prefix: "/", After: revision})
	if watched == nil {
		w.Close()
	}
	for _, err := range []error{viewed, watched} {
		if err != nil && !errors.Is(err, raftstore.ErrCompacted) {
			t.Fatal(err)
		}
	}
	if (viewed == nil) != (watched == nil) {
		t.Fatalf("a view of revision %d: %v; a watch from there: %v", revision, viewed, watched)
	}
	return viewed == nil
}

// wantHistory demands that all servers have a revision, or that none has.
func wantHistory(t *testing.T, c *storetest.Cluster, what string, revision uint64, want bool) {
	t.Helper()
	for i, s := range c.Servers {
		if s != nil && has(t, s, revision) != want {
			t.Errorf("%s: server %d has revision %d: %v", what, i, revision, !want)
		}
	}
}

// TestHistoryOfAnIdleCluster: time passes when nothing is written. Even the newest revision leaves
// history, and after that nothing comes into the log any more.
func TestHistoryOfAnIdleCluster(t *testing.T) {
	needs.AllTests(t)
	synctest.Test(t, func(t *testing.T) {
		c := storetest.NewCluster(t, 3, nil)
		commit := func(value string) uint64 {
			r, err := c.Servers[1].Commit(await.Context(t), put("/k", value))
			if err != nil {
				t.Fatal(err)
			}
			return r.Revision
		}
		first := commit("1")
		newest := commit("2")
		<-time.After(historyAge - time.Second)
		wantHistory(t, c, "before its time", first, true)
		<-time.After(historyAtMost - historyAge + time.Second)
		wantHistory(t, c, "an older revision, after its time", first, false)
		wantHistory(t, c, "the newest revision that a client wrote, which is younger than what follows it", newest,
			true)
		<-time.After(2 * time.Minute)
		wantHistory(t, c, "the newest revision that a client wrote", newest, false)
		if v, err := c.Servers[2].View(await.Context(t), raftstore.ViewOptions{}); err != nil || v.Count("/", "") != 1 {
			t.Errorf("the newest view: %v", err)
		}

		before := c.Servers[0].Status()
		<-time.After(30 * time.Minute)
		for i, s := range c.Servers {
			if now := s.Status(); now.LastIndex != before.LastIndex || now.Revision != before.Revision ||
				now.Compacted != before.Compacted {
				t.Errorf("server %d: in half an idle hour the log went from %d to %d, the revision from %d to %d",
					i, before.LastIndex, now.LastIndex, before.Revision, now.Revision)
			}
		}
	})
}

// TestHistoryWithClocksThatJump writes every 5 s, and changes the wall clocks meanwhile. History
// holds the writes of the last five minutes, and nothing that is much older.
func TestHistoryWithClocksThatJump(t *testing.T) {
	needs.AllTests(t)
	const every = 5 * time.Second
	for what, jump := range map[string]time.Duration{
		"right": 0, "ahead": 40 * time.Minute, "a year": 365 * 24 * time.Hour, "behind": -40 * time.Minute,
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var off atomic.Int64
				c := storetest.NewCluster(t, 3, func(_ int, cfg *raftstore.Config) {
					cfg.Now = func() time.Time { return time.Now().Add(time.Duration(off.Load())) }
				})
				type written struct {
					revision uint64
					at       time.Time
				}
				var all []written
				for i := range int(15 * time.Minute / every) {
					if i%80 == 79 {
						off.Add(int64(jump))
					}
					r, err := c.Servers[i%3].Commit(await.Context(t), put("/k", what))
					if err != nil {
						t.Fatal(err)
					}
					all = append(all, written{r.Revision, time.Now()})
					<-time.After(every)
					if i%10 != 9 {
						continue
					}
					for _, w := range all {
						switch age := time.Since(w.at); {
						case age < historyAge:
							wantHistory(t, c, "young", w.revision, true)
						case age > historyAtMost+2*time.Second:
							wantHistory(t, c, "old", w.revision, false)
						}
						if t.Failed() {
							t.Fatalf("after %d writes", i)
						}
					}
				}
			})
		})
	}
}

// TestHistoryOutlivesItsLeader: a new leader does not know how old history is, and drops nothing
// before its time.
func TestHistoryOutlivesItsLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := storetest.NewCluster(t, 3, unhurried)
		r, err := c.Servers[1].Commit(await.Context(t), put("/k", "1"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err = c.Servers[1].Commit(await.Context(t), put("/k", "2")); err != nil {
			t.Fatal(err)
		}
		<-time.After(historyAge - 10*time.Second)
		leader, _ := c.Leader()
		c.Stop(leader)
		if next, _ := c.Leader(); next == leader {
			t.Fatal("a server that is stopped leads")
		}
		<-time.After(historyAge - 10*time.Second)
		wantHistory(t, c, "under the next leader", r.Revision, true)
		<-time.After(time.Minute)
		wantHistory(t, c, "after its time under the next leader", r.Revision, false)
	})
}
