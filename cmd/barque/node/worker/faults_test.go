package worker

import (
	"testing"

	"github.com/barque/barque/kubelet"
	"github.com/barque/barque/membership/gossip"
)

// TestGossipTellsWhatTheKubeletFinds: each finding has its word, and nothing else is reported.
func TestGossipTellsWhatTheKubeletFinds(t *testing.T) {
	for faults, want := range map[kubelet.Faults]gossip.Health{
		{}:                            0,
		{Runtime: true, Disk: true}:   gossip.RuntimeIll | gossip.DiskLow,
		{Network: true, Memory: true}: gossip.NetworkIll | gossip.MemoryLow,
		{PIDs: true}:                  gossip.PIDsLow,
	} {
		if got := faultBits(faults); got != want {
			t.Errorf("%+v: %v, want %v", faults, got.Faults(), want.Faults())
		}
	}
}
