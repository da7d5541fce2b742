package node

import (
	"context"
	"net/netip"

	"github.com/barque/barque/controllers/nodelifecycle"
	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/membership/join"
)

// liveness shows the gossip pool to the node controller.
type liveness struct{ pool *gossip.Pool }

func (l liveness) Life(node string) (nodelifecycle.Life, bool) {
	m, ok := l.pool.Member(node)
	if !ok {
		return nodelifecycle.Life{}, false
	}
	state := map[gossip.State]nodelifecycle.State{gossip.Alive: nodelifecycle.Alive, gossip.Dead: nodelifecycle.Dead, gossip.Left: nodelifecycle.Left}[m.State]
	return nodelifecycle.Life{State: state, Since: m.Since}, true
}

func (l liveness) Changed() <-chan struct{} { return l.pool.Changed() }

func (l liveness) Confirm(ctx context.Context, node string) bool {
	m, ok := l.pool.Member(node)
	return ok && gossip.Reachable(ctx, m)
}

// apiServers shows the living servers to the controller of the kubernetes Service's endpoints.
type apiServers struct{ pool *gossip.Pool }

func (a apiServers) Servers() []netip.AddrPort {
	var out []netip.AddrPort
	for _, m := range a.pool.Members() {
		if m.Role == roleServer && m.State == gossip.Alive {
			out = append(out, netip.AddrPortFrom(m.Addr.Addr(), m.Facts.APIPort))
		}
	}
	return out
}

func (a apiServers) Changed() <-chan struct{} { return a.pool.Changed() }

// roles tells who is a server, by the role that each member has proven.
type roles struct{ pool *gossip.Pool }

func (r roles) IsServer(node string) (server, known bool) {
	m, known := r.pool.Member(node)
	return m.Role == roleServer, known
}

// knownServers returns all servers that gossip has heard of and that have not left.
func knownServers(pool *gossip.Pool) []join.Server {
	var out []join.Server
	for _, m := range pool.Members() {
		if m.Role == roleServer && m.State != gossip.Left {
			out = append(out, join.Server{
				Name:   m.Name,
				API:    netip.AddrPortFrom(m.Addr.Addr(), m.Facts.APIPort),
				Peer:   netip.AddrPortFrom(m.Addr.Addr(), m.Facts.PeerPort),
				Gossip: m.Addr,
			})
		}
	}
	return out
}
