package liveness

import (
	"context"
	"sync"
	"time"

	"github.com/barque/barque/membership/gossip"
)

// Health passes this node's state on to gossip: its kubelet's findings, and a kubelet that reports
// nothing any more.
type Health struct {
	tell func(gossip.Health)
	now  func() time.Time

	mu    sync.Mutex // also while reporting, so that the last report is the current state
	found time.Time  // when the kubelet last looked
	ills  gossip.Health
}

// kubeletPatience is the time without a check of the machine after which a kubelet counts as
// failing. It checks every 10 s, unless a server without a quorum delays it by up to a minute.
const kubeletPatience = 90 * time.Second

// NewHealth returns a Health that tells gossip by the function given.
func NewHealth(tell func(gossip.Health)) *Health {
	return &Health{tell: tell, now: time.Now, found: time.Now()}
}

// Found takes the kubelet's findings.
func (h *Health) Found(ills gossip.Health) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.found = h.now()
	if h.ills != ills {
		h.ills = ills
		h.tell(ills)
	}
}

// Run watches the kubelet until the context ends.
func (h *Health) Run(ctx context.Context) error {
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

// miss checks whether the kubelet has been inactive for too long.
func (h *Health) miss() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.now().Sub(h.found) > kubeletPatience && h.ills&gossip.KubeletIll == 0 {
		h.ills |= gossip.KubeletIll
		h.tell(h.ills)
	}
}
