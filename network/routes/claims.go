package routes

import "net/netip"

// claims are disjoint shares, by their lengths. Shares of all nodes have one length in each family
// but for those that an administrator gave: so a claim looks at few lengths.
type claims map[int]map[netip.Prefix]struct{}

func newClaims(shares []netip.Prefix) claims {
	c := claims{}
	for _, share := range shares {
		c.claim(share)
	}
	return c
}

// claim takes a masked share, and reports whether it overlaps none of the others.
func (c claims) claim(share netip.Prefix) bool {
	for bits, others := range c {
		if around, err := share.Addr().Prefix(bits); err == nil && bits <= share.Bits() {
			if _, taken := others[around]; taken {
				return false
			}
			continue
		}
		for other := range others {
			if share.Overlaps(other) {
				return false
			}
		}
	}
	if c[share.Bits()] == nil {
		c[share.Bits()] = map[netip.Prefix]struct{}{}
	}
	c[share.Bits()][share] = struct{}{}
	return true
}
