package devcluster

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

// Clusters that are made at the same time have addresses of their own. The machine forwards packets
// until the last cluster is gone, and then has its original setting.
func TestClustersAtTheSameTime(t *testing.T) {
	if !apart.Run(t, apart.Network, 5*time.Minute, "dev clusters at the same time") {
		return
	}
	forwards := func(s forwardSwitch, want string) {
		t.Helper()
		data, err := os.ReadFile(s.file)
		if got := strings.TrimSpace(string(data)); err != nil || got != want {
			t.Errorf("%s is %s, %v; want %s", s.name, got, err, want)
		}
	}
	for _, s := range []forwardSwitch{forward4, forward6} {
		if err := os.WriteFile(s.file, []byte("0"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	plans := make([]*Plan, 6)
	families := [][]Family{nil, {IPv4, IPv6}, {IPv6}}
	var making sync.WaitGroup
	for i := range plans {
		making.Go(func() {
			var err error
			o := Options{Name: fmt.Sprintf("c%d", i), Dir: t.TempDir(), Servers: 1, Families: families[i%len(families)]}
			if plans[i], err = takeNetwork(t.Context(), nil, o); err != nil {
				t.Error(err)
			}
		})
	}
	making.Wait()
	if t.Failed() {
		return
	}
	subnets := map[netip.Prefix]bool{}
	for i, p := range plans {
		subnets[p.Subnet] = true
		if want := families[i%len(families)] != nil; p.Forwarding != "0" || (p.Forwarding6 == "0") != want {
			t.Errorf("%s is to restore %s=%q, %s=%q", p.Name, forward4.name, p.Forwarding, forward6.name, p.Forwarding6)
		}
	}
	if len(subnets) != len(plans) {
		t.Errorf("%d clusters have the subnets %v", len(plans), subnets)
	}
	plans[len(plans)-1] = &Plan{Name: plans[len(plans)-1].Name} // one with IPv6 that was lost
	for _, p := range plans {
		forwards(forward4, "1")
		forwards(forward6, "1")
		if err := p.giveNetworkBack(t.Context()); err != nil {
			t.Error(err)
		}
	}
	forwards(forward4, "0")
	forwards(forward6, "0")
	if left, err := devBridges(); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
