package dev

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/barque/barque/internal/apart"
)

// Clusters that are made at the same time have addresses of their own; the machine forwards packets until the
// last one is gone, and then does what it did before.
func TestClustersAtTheSameTime(t *testing.T) {
	if !apart.Run(t, apart.Network, 5*time.Minute, "dev clusters at the same time") {
		return
	}
	forwards := func(want string) {
		t.Helper()
		data, err := os.ReadFile(forwardingFile)
		if got := strings.TrimSpace(string(data)); err != nil || got != want {
			t.Errorf("net.ipv4.ip_forward is %s, %v; want %s", got, err, want)
		}
	}
	if err := os.WriteFile(forwardingFile, []byte("0"), 0o644); err != nil {
		t.Fatal(err)
	}
	plans := make([]*Plan, 6)
	var making sync.WaitGroup
	for i := range plans {
		making.Go(func() {
			var err error
			name := fmt.Sprintf("c%d", i)
			if plans[i], err = takeNetwork(t.Context(), nil, Options{Name: name, Dir: t.TempDir(), Servers: 1}); err != nil {
				t.Error(err)
			}
		})
	}
	making.Wait()
	if t.Failed() {
		return
	}
	subnets := map[netip.Prefix]bool{}
	for _, p := range plans {
		subnets[p.Subnet] = true
		if p.Forwarding != "0" {
			t.Errorf("%s is to restore net.ipv4.ip_forward=%q", p.Name, p.Forwarding)
		}
	}
	if len(subnets) != len(plans) {
		t.Errorf("%d clusters have the subnets %v", len(plans), subnets)
	}
	plans[len(plans)-1] = &Plan{Name: plans[len(plans)-1].Name} // one that was lost
	for _, p := range plans {
		forwards("1")
		if err := p.giveNetworkBack(t.Context()); err != nil {
			t.Error(err)
		}
	}
	forwards("0")
	if left, err := devBridges(); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
