package routes

import "net/netip"

// claims are disjoint shares, by their families and lengths. Shares of all nodes have one length in
// each family but for those that an administrator gave: so a claim looks at few lengths.
type claims map[length]map[netip.Prefix]struct{}

type length struct {
	is6  bool
	bits int
}

func newClaims(shares []netip.Prefix) claims {
	c := claims{}
	for _, share := range shares {
		c.claim(share)
	}
	return c
}

// claim takes a masked share, and reports whether it overlaps none of the others.
func (c claims) claim(share netip.Prefix) bool {
	own := length{share.Addr().Is6(), share.Bits()}
	for l, others := range c {
		if l.is6 != own.is6 {
			continue
		}
		if l.bits <= own.bits {
			if around, err := share.Addr().Prefix(l.bits); err == nil {
				if _, taken := others[around]; taken {
					return false
				}
			}
			continue
		}
		for other := range others {
			if share.Overlaps(other) {
				return false
			}
		}
	}
	if c[own] == nil {
		c[own] = map[netip.Prefix]struct{}{}
	}
	c[own][share] = struct{}{}
	return true
}
