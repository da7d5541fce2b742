package liveness

import (
	"net/netip"
	"slices"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/pki"
)

// APIServers shows the living servers to the controller of the kubernetes Service's endpoints.
type APIServers struct{ Pool *gossip.Pool }

func (a APIServers) Servers() []netip.AddrPort {
	var out []netip.AddrPort
	for _, m := range a.Pool.Members() {
		if m.Role == pki.RoleServer && m.State == gossip.Alive {
			out = append(out, netip.AddrPortFrom(m.Addr.Addr(), m.Facts.APIPort))
		}
	}
	return out
}

func (a APIServers) Changed() <-chan struct{} { return a.Pool.Changed() }

// KnownServers returns all servers known to gossip that have not left.
func KnownServers(pool *gossip.Pool) []join.Server {
	var out []join.Server
	for _, m := range pool.Members() {
		if m.Role == pki.RoleServer && m.State != gossip.Left {
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

// Lost reports whether the pool misses the server that serves the API at an address: its other
// members have had no answer from it either, or it has left. An unknown server is not lost.
func Lost(pool *gossip.Pool, api netip.AddrPort) bool { return lost(pool.Members(), api) }

func lost(members []gossip.Member, api netip.AddrPort) bool {
	missed := false
	for _, m := range members {
		if m.Role == pki.RoleServer && netip.AddrPortFrom(m.Addr.Addr(), m.Facts.APIPort) == api {
			if m.State == gossip.Alive {
				return false // another member may have had the address
			}
			missed = true
		}
	}
	return missed
}

// HasOtherServer reports whether a server other than this one is alive.
func HasOtherServer(pool *gossip.Pool, self string) bool {
	return slices.ContainsFunc(pool.Members(), func(m gossip.Member) bool {
		return m.Role == pki.RoleServer && m.State == gossip.Alive && m.Name != self
	})
}

// SeesServer reports whether a server of the pool, and so of the node's own cluster, is alive.
func SeesServer(pool *gossip.Pool) bool { return HasOtherServer(pool, "") }

// Others returns all nodes that have not left, dead ones included: gossip may be slow to learn of a
// return.
func Others(pool *gossip.Pool, self string) []string {
	var names []string
	for _, m := range pool.Members() {
		if m.Name != self && m.State != gossip.Left {
			names = append(names, m.Name)
		}
	}
	return names
}

// PulsePatience is how long one probe of the pulse waits for its answer: a round trip, and the
// delay of a busy process.
const PulsePatience = 200 * time.Millisecond

// Tune gives gossip's probes the pulse's patience: memberlist has one timeout for both. The rest of
// its own second is for indirect probes.
func Tune(fast bool) func(*memberlist.Config) {
	if !fast {
		return nil
	}
	return func(c *memberlist.Config) { c.ProbeTimeout = PulsePatience }
}
