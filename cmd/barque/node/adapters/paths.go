package adapters

import (
	"context"
	"net/netip"
	"time"

	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/network/path"
)

// pathLimit bounds the examination of the paths to other nodes.
const pathLimit = 10 * time.Second

// Paths returns which living members, but for self, packets as large as the link allows reach.
func Paths(ctx context.Context, pool *gossip.Pool, self string, from netip.Addr) []path.Finding {
	ctx, cancel := context.WithTimeout(ctx, pathLimit)
	defer cancel()
	nodes := map[string]netip.Addr{}
	for _, m := range pool.Members() {
		if m.Name != self && m.State == gossip.Alive {
			nodes[m.Name] = m.Addr.Addr()
		}
	}
	return path.ProbeAll(ctx, nodes, from)
}
