package gossip

// Health is the faults that a member finds in itself, a bit for each; 0 is a healthy member. It is
// independent of the member's life: a failing member still sends.
type Health uint16

const (
	KubeletIll Health = 1 << iota // its kubelet has not checked the machine for long
	RuntimeIll                    // its container runtime does not answer, or is not ready
	NetworkIll                    // its pods' network is not ready
	DiskLow                       // little disk space, or few inodes
	MemoryLow
	PIDsLow
	LockedOut // an agent: the servers refuse its certificates
)

// LockedOutName is the name of LockedOut among the faults.
const LockedOutName = "certificates"

var healthNames = [...]string{"kubelet", "runtime", "network", "disk", "memory", "pids", LockedOutName}

// Faults names the faults, in the order of the bits: kubelet, runtime, network, disk, memory, pids,
// certificates. A bit of a newer Barque is "other".
func (h Health) Faults() []string {
	var faults []string
	for i, name := range healthNames {
		if h&(1<<i) != 0 {
			faults = append(faults, name)
		}
	}
	if h>>len(healthNames) != 0 {
		faults = append(faults, "other")
	}
	return faults
}
