package raftstore_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/storetest"
)

// TestClosingOneAfterTheOther closes all servers of a group with the time-outs of real ones, in any
// order. Each hands over if it leads and another server can take over; the last ones find none,
// which takes no time.
func TestClosingOneAfterTheOther(t *testing.T) {
	for first := range 3 {
		for _, step := range []int{1, 2} {
			t.Run(fmt.Sprint(first, step), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := storetest.NewCluster(t, 3,
						func(
							_ int, cfg *raftstore.Config,
						) {
							cfg.Timeouts = raftstore.Timeouts{PromoteAfter: time.Millisecond}
						})
					leader, _ := c.Leader()
					if _, err := c.Servers[(leader+1)%3].Commit(limited(t), put("/a", "1")); err != nil {
						t.Fatal(err)
					}
					<-time.After(time.Second)
					for i := range 3 {
						began := time.Now()
						c.Stop((leader + first + i*step) % 3)
						// The last one may have just been elected by those that are gone. It cannot
						// lead, which Raft finds out after Timeouts.Lease, 833 ms.
						if took := time.Since(began); took > 200*time.Millisecond && i < 2 ||
							took > 900*time.Millisecond {
							t.Errorf("server %d of those that are closed took %v", i, took)
						}
					}
				})
			})
		}
	}
}

// TestClosingALeaderWhosePeersAreMute: it waits for no answer for longer than a leader waits
// anyway.
func TestClosingALeaderWhosePeersAreMute(t *testing.T) {
	for name, before := range map[string]time.Duration{"since just now": 0, "for a while": 700 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := storetest.NewCluster(t, 3,
					func(
						_ int, cfg *raftstore.Config,
					) {
						cfg.Timeouts = raftstore.Timeouts{PromoteAfter: time.Millisecond}
					})
				leader, _ := c.Leader()
				<-time.After(time.Second)
				for i := 1; i < 3; i++ {
					c.Net.Mute(storetest.Addr((leader + i) % 3))
				}
				<-time.After(before)
				began := time.Now()
				c.Stop(leader)
				if took := time.Since(began); took > time.Second {
					t.Errorf("it took %v", took)
				}
				c.Net.Heal()
			})
		})
	}
}
