package connlimit

import (
	"fmt"
	"net/netip"

	"github.com/spf13/pflag"
)

// Flags are the limits as flags give them.
type Flags struct {
	Total, PerSource int
	Exempt           []string
}

// NewFlags returns the defaults.
func NewFlags() Flags { return Flags{Total: DefaultTotal, PerSource: DefaultPerSource} }

// AddFlags adds the flags.
func (f *Flags) AddFlags(set *pflag.FlagSet) {
	set.IntVar(&f.Total, "max-unauthenticated-connections", f.Total,
		"how many connections without credentials each port of this node keeps open; beyond it, the oldest of the source with the most is closed")
	set.IntVar(&f.PerSource, "max-unauthenticated-connections-per-source", f.PerSource,
		"the same for one source: an IPv4 address, or an IPv6 network of 64 bits")
	set.StringSliceVar(&f.Exempt, "max-unauthenticated-connections-exempt", f.Exempt,
		"sources that --max-unauthenticated-connections-per-source does not bound: ranges of addresses, such as those of a load balancer or a NAT gateway; loopback is one always")
}

// Limits returns the limits, or an error about the flags.
func (f Flags) Limits() (Limits, error) {
	limits := Limits{Total: f.Total, PerSource: f.PerSource}
	switch {
	case f.Total < 1:
		return limits, fmt.Errorf("--max-unauthenticated-connections %d: want 1 or more", f.Total)
	case f.PerSource < 1 || f.PerSource > f.Total:
		return limits,
			fmt.Errorf(
				"--max-unauthenticated-connections-per-source %d: want 1 to %d, the number of --max-unauthenticated-connections", f.PerSource, f.Total)
	}
	for _, text := range f.Exempt {
		prefix, err := netip.ParsePrefix(text)
		if addr, bad := netip.ParseAddr(text); bad == nil {
			prefix, err = netip.PrefixFrom(addr, addr.BitLen()), nil
		}
		if err != nil {
			return limits,
				fmt.Errorf(
					"--max-unauthenticated-connections-exempt %q: want a range of addresses, such as 192.0.2.0/28",
					text)
		}
		limits.Exempt = append(limits.Exempt, prefix.Masked())
	}
	return limits, nil
}
