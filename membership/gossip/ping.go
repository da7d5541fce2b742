package gossip

import (
	"errors"
	"net"
)

// ErrUnknownMember is returned by Ping for an unknown name.
var ErrUnknownMember = errors.New("no such member of the gossip pool")

// Ping probes one member directly, with one packet. It returns nil if the answer comes within
// memberlist's ProbeTimeout. A lost packet is an error as well.
func (p *Pool) Ping(name string) error {
	m, known := p.Member(name)
	if !known {
		return ErrUnknownMember
	}
	_, err := p.list.Ping(m.Name, net.UDPAddrFromAddrPort(m.Addr))
	return err
}
