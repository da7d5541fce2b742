package liveness

import (
	"context"
	"sync"
	"time"

	"github.com/barque/barque/membership/gossip"
)

// Health passes on to gossip how this node is: what its kubelet finds, and that the kubelet finds
// nothing any more.
type Health struct {
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

// NewHealth returns a Health that tells gossip by the function given.
func NewHealth(tell func(gossip.Health)) *Health {
	return &Health{tell: tell, now: time.Now, found: time.Now()}
}

// Found takes what the kubelet finds wrong.
func (h *Health) Found(ills gossip.Health) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.found = h.now()
	if h.ills != ills {
		h.ills = ills
		h.tell(ills)
	}
}

// Run looks after the kubelet until the context ends.
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

// miss finds out whether the kubelet has not looked for too long.
func (h *Health) miss() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.now().Sub(h.found) > kubeletPatience && h.ills&gossip.KubeletIll == 0 {
		h.ills |= gossip.KubeletIll
		h.tell(h.ills)
	}
}
