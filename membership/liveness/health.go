package liveness

import (
	"context"
	"sync"
	"time"

	"github.com/barque/barque/membership/gossip"
)

// Health passes this node's state on to gossip: its kubelet's findings, a kubelet that reports
// nothing any more, and servers that refuse the node's certificates.
type Health struct {
	tell func(gossip.Health)
	now  func() time.Time

	mu     sync.Mutex // also while reporting, so that the last report is the current state
	found  time.Time  // when the kubelet last looked
	faults gossip.Health
	out    bool // the servers refuse this node's certificates
}

// kubeletPatience is the time without a check of the machine after which a kubelet counts as
// failing. It checks every 10 s, unless a server without a quorum delays it by up to a minute.
const kubeletPatience = 90 * time.Second

// NewHealth returns a Health that announces changes by tell.
func NewHealth(tell func(gossip.Health)) *Health {
	return &Health{tell: tell, now: time.Now, found: time.Now()}
}

// Found takes the kubelet's findings.
func (h *Health) Found(faults gossip.Health) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.found = h.now()
	h.set(faults, h.out)
}

// LockedOut takes whether the servers refuse this node's certificates. Its kubelet then reports
// nothing to them.
func (h *Health) LockedOut(out bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.set(h.faults, out)
}

// set announces a change. The caller holds mu.
func (h *Health) set(faults gossip.Health, out bool) {
	if h.faults == faults && h.out == out {
		return
	}
	h.faults, h.out = faults, out
	if out {
		faults |= gossip.LockedOut
	}
	h.tell(faults)
}

// Run watches the kubelet until the context ends.
func (h *Health) Run(ctx context.Context) error {
	h.mu.Lock()
	h.found = h.now() // the kubelet starts now
	h.mu.Unlock()
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
	if h.now().Sub(h.found) > kubeletPatience && h.faults&gossip.KubeletIll == 0 {
		h.set(h.faults|gossip.KubeletIll, h.out)
	}
}
