package worker

import (
	"github.com/barque/barque/kubelet"
	"github.com/barque/barque/membership/gossip"
)

// faultBits converts a kubelet's findings to the bits of gossip.
func faultBits(i kubelet.Faults) gossip.Health {
	var faults gossip.Health
	for bit, is := range map[gossip.Health]bool{
		gossip.RuntimeIll: i.Runtime, gossip.NetworkIll: i.Network, gossip.DiskLow: i.Disk, gossip.MemoryLow: i.Memory,
		gossip.PIDsLow: i.PIDs,
	} {
		if is {
			faults |= bit
		}
	}
	return faults
}
