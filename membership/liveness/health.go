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

	mu    sync.Mutex // also while reporting, so that the last report is the current state
	found time.Time  // when the kubelet last looked
	ills  gossip.Health
	out   bool // the servers refuse this node's certificates
}

// kubeletPatience is the time without a check of the machine after which a kubelet counts as
// failing. It checks every 10 s, unless a server without a quorum delays it by up to a minute.
const kubeletPatience = 90 * time.Second

// NewHealth returns a Health that announces changes by tell.
func NewHealth(tell func(gossip.Health)) *Health {
	return &Health{tell: tell, now: time.Now, found: time.Now()}
}

// Found takes the kubelet's findings.
func (h *Health) Found(ills gossip.Health) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.found = h.now()
	h.set(ills, h.out)
}

// LockedOut takes whether the servers refuse this node's certificates. Its kubelet then reports
// nothing to them.
func (h *Health) LockedOut(out bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.set(h.ills, out)
}

// set announces a change. The caller holds mu.
func (h *Health) set(ills gossip.Health, out bool) {
	if h.ills == ills && h.out == out {
		return
	}
	h.ills, h.out = ills, out
	if out {
		ills |= gossip.LockedOut
	}
	h.tell(ills)
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
	if h.now().Sub(h.found) > kubeletPatience && h.ills&gossip.KubeletIll == 0 {
		h.set(h.ills|gossip.KubeletIll, h.out)
	}
}
