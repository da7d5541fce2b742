package hold

import (
	"encoding/binary"
	"hash/fnv"
	"net/netip"
)

// choose returns the node for an address among the candidates, by rendezvous hashing: addresses
// spread over the nodes, and a node that comes or goes moves its own addresses only. It returns ""
// without a candidate. The order of the candidates does not matter.
func choose(addr netip.Addr, candidates []string) string {
	best, most := "", uint64(0)
	for _, name := range candidates {
		if w := weight(addr, name); best == "" || w > most || w == most && name < best {
			best, most = name, w
		}
	}
	return best
}

func weight(addr netip.Addr, node string) uint64 {
	h := fnv.New64a()
	b := addr.As16()
	h.Write(b[:])
	h.Write([]byte(node))
	return mix(binary.BigEndian.Uint64(h.Sum(nil)))
}

// mix spreads similar values (the finalizer of MurmurHash3): FNV's last byte hardly moves the high
// bits.
func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
