package liveness

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/membership/gossip"
)

func TestHealthFollowsTheKubelet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var told []gossip.Health
		h := NewHealth(func(g gossip.Health) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, g)
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- h.Run(ctx) }()
		expect := func(what string, want ...gossip.Health) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(told, want) {
				t.Fatalf("%s: told %v, want %v", what, told, want)
			}
			told = nil
		}
		look := func(times int, faults gossip.Health) {
			for range times {
				<-time.After(10 * time.Second)
				h.Found(faults)
			}
		}
		look(30, 0)
		expect("a node that is well")
		look(5, gossip.RuntimeIll|gossip.DiskLow)
		expect("runtime and disk", gossip.RuntimeIll|gossip.DiskLow)
		look(1, gossip.NetworkIll|gossip.MemoryLow|gossip.PIDsLow)
		expect("network, memory and processes", gossip.NetworkIll|gossip.MemoryLow|gossip.PIDsLow)
		look(1, 0)
		expect("well again", 0)
		<-time.After(kubeletPatience - time.Second)
		expect("a kubelet that waits")
		<-time.After(time.Minute)
		expect("a kubelet that is stuck", gossip.KubeletIll)
		look(1, 0)
		expect("a kubelet that goes on", 0)
		for range 2 {
			h.LockedOut(true)
		}
		expect("locked out", gossip.LockedOut)
		look(2, gossip.DiskLow)
		expect("locked out, and a kubelet that looks", gossip.LockedOut|gossip.DiskLow)
		h.LockedOut(false)
		expect("let in again", gossip.DiskLow)
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
}
