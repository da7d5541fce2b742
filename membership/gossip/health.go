package gossip

// Health is what a member finds wrong with itself, a bit for each; 0 is a member that is well. It
// says nothing of whether the member lives: one that is ill speaks.
type Health uint16

const (
	KubeletIll Health = 1 << iota // its kubelet has not looked at the machine for long
	RuntimeIll                    // its container runtime does not answer, or says that it is not ready
	NetworkIll                    // its pods' network is not ready
	DiskLow                       // little disk space, or few inodes
	MemoryLow
	PIDsLow
)

var healthNames = [...]string{"kubelet", "runtime", "network", "disk", "memory", "pids"}

// Ills names what is wrong, in the order of the bits: kubelet, runtime, network, disk, memory,
// pids. A bit that only a newer Barque knows is "other".
func (h Health) Ills() []string {
	var ills []string
	for i, name := range healthNames {
		if h&(1<<i) != 0 {
			ills = append(ills, name)
		}
	}
	if h>>len(healthNames) != 0 {
		ills = append(ills, "other")
	}
	return ills
}
