package credentials

import (
	"context"

	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/membership/keyring"
	"github.com/barque/barque/pki"
)

// RingRecord is what a node has written down of gossip keys.
type RingRecord interface {
	GossipRing() keyring.Ring
	SetGossipRing(ring keyring.Ring) error
}

// NewRing is this node's ring, on its disk and in its pool.
func NewRing(r RingRecord, pool *gossip.Pool) *keyring.Own {
	return keyring.NewOwn(r.GossipRing(), r.SetGossipRing,
		func(ring keyring.Ring) error { return pool.SetKeys(ring.Keys, ring.Generation) })
}

// NewRefresher gets gossip keys from other servers when this node may not have the newest ones.
func NewRefresher(
	self string, pool *gossip.Pool, own *keyring.Own, fetch func(context.Context, uint64) (keyring.Ring, error),
	config keyring.RefresherConfig,
) *keyring.Refresher {
	config.Own, config.Changed, config.Fetch = own, pool.Changed, fetch
	config.Seen = func() (generation uint64, anyServer bool) {
		return newest(pool, self, func(f gossip.Facts) uint64 { return f.KeyGeneration })
	}
	return keyring.NewRefresher(config)
}

// newest is the newest generation that a living server other than this node shows, and whether
// there is such a server.
func newest(pool *gossip.Pool, self string, generation func(gossip.Facts) uint64) (newest uint64, anyServer bool) {
	for _, m := range pool.Members() {
		if m.Role == pki.RoleServer && m.State == gossip.Alive && m.Name != self {
			newest, anyServer = max(newest, generation(m.Facts)), true
		}
	}
	return newest, anyServer
}
