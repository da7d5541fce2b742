// Package ranges has the address ranges of a cluster: those of pods and of services.
package ranges

import (
	"fmt"
	"net/netip"
	"strings"
)

// Prefixes are the ranges of pods, or of services: one, or one of each family. The family of the
// first one is the cluster's primary family.
type Prefixes []netip.Prefix

// ParsePrefixes reads ranges that commas separate.
func ParsePrefixes(text string) (Prefixes, error) {
	var all Prefixes
	for _, one := range strings.Split(text, ",") {
		prefix, err := netip.ParsePrefix(strings.TrimSpace(one))
		if err != nil {
			return nil, err
		}
		all = append(all, prefix)
	}
	return all, nil
}

func (p Prefixes) String() string {
	texts := make([]string, len(p))
	for i, prefix := range p {
		texts[i] = prefix.String()
	}
	return strings.Join(texts, ",")
}

// MarshalText writes one range like earlier versions, which had one only.
func (p Prefixes) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText is the reverse of MarshalText.
func (p *Prefixes) UnmarshalText(text []byte) (err error) {
	*p, err = ParsePrefixes(string(text))
	return err
}

// Primary is the first range.
func (p Prefixes) Primary() netip.Prefix { return p[0] }

// Secondary is the other range; the zero value without one.
func (p Prefixes) Secondary() netip.Prefix {
	if len(p) < 2 {
		return netip.Prefix{}
	}
	return p[1]
}

// Contains tells whether an address is in one of the ranges.
func (p Prefixes) Contains(addr netip.Addr) bool {
	for _, prefix := range p {
		if prefix.Contains(addr) {
			return true
		}
	}
	return false
}

// Has tells whether a range is of the family.
func (p Prefixes) Has(is6 bool) bool {
	for _, prefix := range p {
		if prefix.Addr().Is6() == is6 {
			return true
		}
	}
	return false
}

// Check refuses more than one range of a family, and ranges of a wrong size: longest4 and longest6
// are the longest prefixes.
func (p Prefixes) Check(what string, longest4, longest6 int) error {
	if len(p) == 0 || len(p) > 2 || len(p) == 2 && p[0].Addr().Is6() == p[1].Addr().Is6() {
		return fmt.Errorf("%s %q: want one range, or one of IPv4 and one of IPv6", what, p)
	}
	for _, prefix := range p {
		longest := longest4
		if prefix.Addr().Is6() {
			longest = longest6
		}
		if !prefix.IsValid() || prefix.Addr().Is4In6() || prefix.Bits() > longest {
			return fmt.Errorf("%s %s: want a range of /%d or larger", what, prefix, longest)
		}
	}
	return nil
}
