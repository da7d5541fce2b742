package pool

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// ARP and BGP are the ways of announcing in a pool's spec. ARP is neighbour discovery for IPv6.
const (
	ARP = "ARP"
	BGP = "BGP"
)

// BGPSpec is described in the definition.
type BGPSpec struct {
	Communities     []string `json:"communities,omitempty"`
	LocalPreference *uint32  `json:"localPreference,omitempty"`
}

// Announcing is how nodes announce the addresses of a pool.
type Announcing struct {
	ARP, BGP bool
	// Communities and LargeCommunities (RFC 8092) go with the routes, in order and each one once.
	Communities      []uint32
	LargeCommunities [][3]uint32
	// LocalPreference is for routers of the nodes' own AS.
	LocalPreference uint32
}

// defaultPreference is what routers assume without another one.
const defaultPreference = 100

// wellKnown are the names of communities (RFC 1997, 3765, 7999, 8326).
var wellKnown = map[string]uint32{
	"graceful-shutdown": 0xFFFF0000, "blackhole": 0xFFFF029A, "no-export": 0xFFFFFF01, "no-advertise": 0xFFFFFF02,
	"no-export-subconfed": 0xFFFFFF03, "no-peer": 0xFFFFFF04,
}

// announcing reads how a pool is announced. With an error, its addresses are not announced by BGP:
// a route without its communities could go where it must not.
func announcing(spec *Spec) (Announcing, error) {
	a := Announcing{LocalPreference: defaultPreference}
	for _, way := range spec.Announce {
		switch way {
		case ARP:
			a.ARP = true
		case BGP:
			a.BGP = true
		default:
			return Announcing{ARP: true}, fmt.Errorf("announce: %q is neither %s nor %s", way, ARP, BGP)
		}
	}
	if len(spec.Announce) == 0 {
		a.ARP = true
	}
	if spec.BGP == nil {
		return a, nil
	}
	if spec.BGP.LocalPreference != nil {
		a.LocalPreference = *spec.BGP.LocalPreference
	}
	for _, text := range spec.BGP.Communities {
		parts, err := community(text)
		switch {
		case err != nil:
			return Announcing{ARP: a.ARP}, err
		case len(parts) == 3:
			a.LargeCommunities = append(a.LargeCommunities, [3]uint32(parts))
		case len(parts) == 2:
			a.Communities = append(a.Communities, parts[0]<<16|parts[1])
		default:
			a.Communities = append(a.Communities, parts[0])
		}
	}
	slices.Sort(a.Communities)
	a.Communities = slices.Compact(a.Communities)
	slices.SortFunc(a.LargeCommunities, func(x, y [3]uint32) int { return slices.Compare(x[:], y[:]) })
	a.LargeCommunities = slices.Compact(a.LargeCommunities)
	return a, nil
}

// community reads a name, as one number, or the two or three numbers of a community.
func community(text string) ([]uint32, error) {
	if known, ok := wellKnown[text]; ok {
		return []uint32{known}, nil
	}
	parts, bits := strings.Split(text, ":"), 16
	if len(parts) == 3 {
		bits = 32
	}
	var out []uint32
	for _, part := range parts {
		n, err := strconv.ParseUint(part, 10, bits)
		if err != nil || len(parts) < 2 || len(parts) > 3 {
			return nil, fmt.Errorf("communities: %q is no community: want two numbers up to 65535 such as 64512:100, "+
				"three such as 64512:1:100, or a name such as no-export", text)
		}
		out = append(out, uint32(n))
	}
	return out, nil
}

// Ways finds how an address is announced.
type Ways []way

type way struct {
	ranges []Range
	Announcing
}

// WaysOf reads the pools of a cluster. Of several that have an address the oldest one counts.
func WaysOf(objects []*Object) Ways {
	out := Ways{}
	for _, o := range byAge(objects) {
		p, _ := parse(o) // what cannot be read is the status's to tell
		out = append(out, way{p.Ranges, p.Announcing})
	}
	return out
}

// Of returns how an address is announced. An address that no pool has, because its pool has
// changed, goes by ARP until its Service loses it.
func (w Ways) Of(addr netip.Addr) Announcing {
	for _, of := range w {
		if slices.ContainsFunc(of.ranges, func(r Range) bool { return r.Contains(addr) }) {
			return of.Announcing
		}
	}
	return Announcing{ARP: true}
}
