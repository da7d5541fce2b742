package node

import (
	"context"
	"sync"
	"time"

	"github.com/barque/barque/kubelet"
	"github.com/barque/barque/membership/gossip"
)

// health passes on to gossip how this node is: what its kubelet finds, and that the kubelet finds
// nothing any more.
type health struct {
	tell func(gossip.Health)
	now  func() time.Time

	mu    sync.Mutex // also while telling, so that what is told last is what is so
	found time.Time  // when the kubelet last looked
	ills  gossip.Health
}

// kubeletPatience is after how long a kubelet that has not looked at the machine counts as ill. It
// looks every 10 s, unless a server without quorum lets it wait, for up to a minute, for the answer
// to what it reported.
const kubeletPatience = 90 * time.Second

func newHealth(tell func(gossip.Health)) *health {
	return &health{tell: tell, now: time.Now, found: time.Now()}
}

// observe takes what the kubelet found.
func (h *health) observe(i kubelet.Ills) {
	var ills gossip.Health
	for bit, is := range map[gossip.Health]bool{
		gossip.RuntimeIll: i.Runtime, gossip.NetworkIll: i.Network, gossip.DiskLow: i.Disk, gossip.MemoryLow: i.Memory, gossip.PIDsLow: i.PIDs,
	} {
		if is {
			ills |= bit
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.found = h.now()
	if h.ills != ills {
		h.ills = ills
		h.tell(ills)
	}
}

// run looks after the kubelet until the context ends.
func (h *health) run(ctx context.Context) error {
	ticker := time.NewTicker(kubeletPatience / 18)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		h.miss()
	}
}

// miss finds out whether the kubelet has not looked for too long.
func (h *health) miss() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.now().Sub(h.found) > kubeletPatience && h.ills&gossip.KubeletIll == 0 {
		h.ills |= gossip.KubeletIll
		h.tell(h.ills)
	}
}
