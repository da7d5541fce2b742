package exchange

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestReady: a server that was away while an exchange of the accounts' key was forced is not ready
// before it has the key that signs. In the first step no server is waited for: the key before
// signs.
func TestReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 0)
		synctest.Wait()
		ready := func(when string, want ...bool) {
			t.Helper()
			for i, n := range c.nodes {
				if err := n.exchange.Ready(); n.alive && (err == nil) != want[i] {
					t.Errorf("%s: %s: %v", when, n.name, err)
				}
			}
		}
		away := c.nodes[2]
		c.kill(away)
		c.apply(c.nodes[0], BeginAccounts)
		c.hangs = true // the key that signs nothing yet does not reach it
		c.start(away)
		synctest.Wait()
		ready("before the new key signs", true, true, true)
		c.kill(away)
		c.hangs = false

		c.apply(c.nodes[1], Force)
		c.lead(c.nodes[0], time.Minute)
		ready("without it", true, true, false)
		c.kill(c.nodes[0])
		c.kill(c.nodes[1])
		c.start(away)
		synctest.Wait()
		ready("with nobody who has the key", true, true, false)
		c.start(c.nodes[0])
		<-time.After(time.Minute)
		synctest.Wait()
		ready("with the key", true, true, true)
	})
}

// TestReadyWhileTheNextExchangeBegins: those that have the key cannot take the next generation over
// yet. The server without the key is not ready for that.
func TestReadyWhileTheNextExchangeBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 0)
		synctest.Wait()
		away := c.nodes[2]
		c.kill(away)
		c.apply(c.nodes[0], BeginAccounts)
		c.apply(c.nodes[1], Force)
		c.lead(c.nodes[0], time.Minute)
		c.hangs = true // the key does not reach it
		c.start(away)
		synctest.Wait()
		for _, n := range c.nodes[:2] {
			n.home.mu.Lock()
			n.home.stuck = true
			n.home.mu.Unlock()
		}
		c.apply(c.nodes[0], BeginAccounts)
		synctest.Wait()
		if seen, _, _ := away.exchange.Seen(); seen.Bundle.Generation <= c.nodes[0].home.trust.Bundle().Generation {
			t.Fatalf("the others have taken generation %d over", seen.Bundle.Generation)
		}
		for i, n := range c.nodes {
			if err := n.exchange.Ready(); (err == nil) != (n != away) {
				t.Errorf("s%d: %v", i+1, err)
			}
		}
	})
}

// TestReadyWithALostKey: all servers that had the key are removed. The last one is not kept from
// serving for ever.
func TestReadyWithALostKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 0)
		synctest.Wait()
		last := c.nodes[2]
		c.kill(last)
		c.apply(c.nodes[0], BeginAccounts)
		c.apply(c.nodes[1], Force)
		c.lead(c.nodes[0], time.Minute)
		c.kill(c.nodes[0])
		c.kill(c.nodes[1])
		c.start(last)
		synctest.Wait()
		if last.exchange.Ready() == nil {
			t.Error("it is ready, though a server that shows no life may have the key")
		}
		for _, n := range c.nodes[:2] {
			c.tell(n, func() { n.removed = true })
		}
		if err := last.exchange.Ready(); err != nil {
			t.Errorf("it waits for a key that nobody has: %v", err)
		}
	})
}
