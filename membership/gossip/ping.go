package gossip

import (
	"errors"
	"net"
)

// ErrUnknownMember is returned by Ping for a name that this node has never heard of.
var ErrUnknownMember = errors.New("no such member of the gossip pool")

// Ping asks one member past all gossip, with one packet, and returns nil when it has answered
// within memberlist's ProbeTimeout. A lost packet is an error, too.
func (p *Pool) Ping(name string) error {
	m, known := p.Member(name)
	if !known {
		return ErrUnknownMember
	}
	_, err := p.list.Ping(m.Name, net.UDPAddrFromAddrPort(m.Addr))
	return err
}
