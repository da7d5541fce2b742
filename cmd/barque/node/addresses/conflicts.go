package addresses

import (
	"cmp"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/network"
)

// Conflicts are addresses that this node holds and for which another machine answers. Its zero
// value has none.
type Conflicts struct {
	// packets makes the events of the node, once it has one.
	packets atomic.Pointer[network.Network]

	mu   sync.Mutex
	seen map[string]clusterstatus.Conflict // by address and MAC
}

// conflictsKept is how long a conflict is remembered.
const conflictsKept = time.Hour

// TellBy makes the node's network tell of conflicts, in events of the node.
func (c *Conflicts) TellBy(packets *network.Network) { c.packets.Store(packets) }

// note takes a conflict from the announcer.
func (c *Conflicts) note(addr netip.Addr, mac net.HardwareAddr, link string) {
	now := time.Now()
	c.mu.Lock()
	if c.seen == nil {
		c.seen = map[string]clusterstatus.Conflict{}
	}
	maps.DeleteFunc(c.seen, func(_ string, of clusterstatus.Conflict) bool { return now.Sub(of.Last) > conflictsKept })
	c.seen[addr.String()+" "+mac.String()] = clusterstatus.Conflict{Address: addr.String(), MAC: mac.String(),
		Link: link, Last: now}
	c.mu.Unlock()
	if packets := c.packets.Load(); packets != nil {
		packets.Conflict(addr, mac, link)
	}
}

// All returns them, in order.
func (c *Conflicts) All() []clusterstatus.Conflict {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.SortedFunc(maps.Values(c.seen), func(a, b clusterstatus.Conflict) int {
		return cmp.Or(cmp.Compare(a.Address, b.Address), cmp.Compare(a.MAC, b.MAC))
	})
}
