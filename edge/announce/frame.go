package announce

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
)

// Ethernet types, and the lengths of headers.
const (
	typeARP  = 0x0806
	typeIPv6 = 0x86dd

	macLen    = 6
	etherLen  = 2*macLen + 2
	arpLen    = 28
	ipv6Len   = 40
	adviceLen = 24 // a solicitation or an advertisement without options
	icmpv6    = 58
	hopLimit  = 255 // of all neighbour discovery: a router cannot have forwarded it

	arpRequest = 1
	arpReply   = 2

	solicitation  = 135
	advertisement = 136

	flagSolicited = 1 << 6
	flagOverride  = 1 << 5

	optionSource = 1 // the sender's link-layer address
	optionTarget = 2 // the target's
)

var broadcast = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// packet is a received message of either protocol.
type packet struct {
	from net.HardwareAddr // of the frame
	// asks is set for a question about the address, and claims for a statement of mac that it has
	// it. Either may be an invalid address.
	asks, claims netip.Addr
	mac          net.HardwareAddr // that claims
	// asker is the address that asks. It is unspecified while the asker looks for duplicates.
	asker netip.Addr
	// askerMAC is to be answered.
	askerMAC net.HardwareAddr
}

// parse reads a frame. ok is false for any other one.
func parse(frame []byte) (p packet, ok bool) {
	if len(frame) < etherLen {
		return p, false
	}
	p.from = clone(frame[macLen : 2*macLen])
	body := frame[etherLen:]
	switch binary.BigEndian.Uint16(frame[2*macLen:]) {
	case typeARP:
		return p, p.parseARP(body)
	case typeIPv6:
		return p, p.parseNDP(body)
	}
	return p, false
}

// parseARP reads an ARP packet (RFC 826) about IPv4 over Ethernet.
func (p *packet) parseARP(b []byte) bool {
	if len(b) < arpLen || !bytes.Equal(b[:6], []byte{0, 1, 8, 0, macLen, 4}) {
		return false
	}
	sender, target := netip.AddrFrom4([4]byte(b[14:18])), netip.AddrFrom4([4]byte(b[24:28]))
	p.mac = clone(b[8:14])
	if !sender.IsUnspecified() {
		p.claims = sender
	}
	switch binary.BigEndian.Uint16(b[6:]) {
	case arpRequest:
		if target != sender { // otherwise it announces itself
			p.asks, p.asker, p.askerMAC = target, sender, p.mac
		}
	case arpReply:
	default:
		return false
	}
	return true
}

// parseNDP reads a neighbour solicitation or advertisement (RFC 4861). The kernel has not verified
// it: AF_PACKET comes before.
func (p *packet) parseNDP(b []byte) bool {
	if len(b) < ipv6Len+adviceLen || b[0]>>4 != 6 || b[6] != icmpv6 || b[7] != hopLimit {
		return false
	}
	length := int(binary.BigEndian.Uint16(b[4:]))
	if length < adviceLen || len(b) < ipv6Len+length {
		return false
	}
	source, message := netip.AddrFrom16([16]byte(b[8:24])), b[ipv6Len:ipv6Len+length]
	if message[1] != 0 || checksum(source, netip.AddrFrom16([16]byte(b[24:40])), message) != 0 {
		return false
	}
	target := netip.AddrFrom16([16]byte(message[8:24]))
	if target.IsMulticast() || target.Is4In6() {
		return false
	}
	wanted := byte(optionTarget)
	switch message[0] {
	case solicitation:
		p.asks, p.asker, wanted = target, source, optionSource
	case advertisement:
		p.claims = target
	default:
		return false
	}
	mac, ok := option(message[adviceLen:], wanted)
	if !ok {
		return false
	}
	if mac == nil {
		mac = p.from
	}
	p.mac, p.askerMAC = mac, mac
	return true
}

// option returns the link-layer address of an option, nil without one. ok is false for malformed
// options.
func option(b []byte, kind byte) (mac net.HardwareAddr, ok bool) {
	for len(b) > 0 {
		if len(b) < 2 || b[1] == 0 || len(b) < int(b[1])*8 {
			return nil, false
		}
		if b[0] == kind && b[1] == 1 {
			mac = clone(b[2 : 2+macLen])
		}
		b = b[int(b[1])*8:]
	}
	return mac, true
}

func clone(b []byte) net.HardwareAddr { return net.HardwareAddr(bytes.Clone(b)) }

func ether(to, from net.HardwareAddr, kind uint16) []byte {
	out := make([]byte, 0, etherLen+ipv6Len+adviceLen+8)
	out = append(append(out, to...), from...)
	return binary.BigEndian.AppendUint16(out, kind)
}

// arp makes an ARP packet that says that mac has addr.
func arp(op uint16, addr netip.Addr, mac net.HardwareAddr, target netip.Addr, targetMAC, to net.HardwareAddr) []byte {
	out := append(ether(to, mac, typeARP), 0, 1, 8, 0, macLen, 4)
	out = binary.BigEndian.AppendUint16(out, op)
	out = append(append(out, mac...), addr.AsSlice()...)
	return append(append(out, targetMAC...), target.AsSlice()...)
}

// allNodes is the group of all IPv6 nodes of a link (RFC 4291).
var allNodes = netip.MustParseAddr("ff02::1")

// group returns the solicited-node multicast address of an address (RFC 4291).
func group(addr netip.Addr) netip.Addr {
	b, own := netip.MustParseAddr("ff02::1:ff00:0").As16(), addr.As16()
	copy(b[13:], own[13:])
	return netip.AddrFrom16(b)
}

// groupMAC returns the Ethernet address of an IPv6 multicast address (RFC 2464).
func groupMAC(group netip.Addr) net.HardwareAddr {
	b := group.As16()
	return net.HardwareAddr{0x33, 0x33, b[12], b[13], b[14], b[15]}
}

// advise makes a neighbour advertisement that says that mac has addr.
func advise(addr netip.Addr, mac net.HardwareAddr, to netip.Addr, toMAC net.HardwareAddr, solicited bool) []byte {
	flags := byte(flagOverride)
	if solicited {
		flags |= flagSolicited
	}
	message := make([]byte, 8, adviceLen+8)
	message[0], message[4] = advertisement, flags
	message = append(append(message, addr.AsSlice()...), optionTarget, 1)
	message = append(message, mac...)
	binary.BigEndian.PutUint16(message[2:], checksum(addr, to, message))
	out := append(ether(toMAC, mac, typeIPv6), 0x60, 0, 0, 0)
	out = binary.BigEndian.AppendUint16(out, uint16(len(message)))
	out = append(out, icmpv6, hopLimit)
	out = append(append(out, addr.AsSlice()...), to.AsSlice()...)
	return append(out, message...)
}

// checksum is that of ICMPv6 (RFC 4443): 0 for a message that has the right one.
func checksum(source, destination netip.Addr, message []byte) uint16 {
	sum := uint32(len(message)) + icmpv6
	add := func(b []byte) {
		for ; len(b) > 1; b = b[2:] {
			sum += uint32(b[0])<<8 | uint32(b[1])
		}
		if len(b) == 1 {
			sum += uint32(b[0]) << 8
		}
	}
	s, d := source.As16(), destination.As16()
	add(s[:])
	add(d[:])
	add(message)
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// reply answers a question about an address that this node holds.
func reply(p packet, mac net.HardwareAddr) []byte {
	switch {
	case p.asks.Is4():
		return arp(arpReply, p.asks, mac, p.asker, p.askerMAC, p.askerMAC)
	case p.asker.IsUnspecified(): // it looks for duplicates, and has no address to be answered at
		return advise(p.asks, mac, allNodes, groupMAC(allNodes), false)
	}
	return advise(p.asks, mac, p.asker, p.askerMAC, true)
}

// announcements are what a node sends unasked that has taken an address over. Of IPv4 these are
// two: some neighbours learn from requests only, and some from replies.
func announcements(addr netip.Addr, mac net.HardwareAddr) [][]byte {
	if addr.Is4() {
		return [][]byte{
			arp(arpRequest, addr, mac, addr, make(net.HardwareAddr, macLen), broadcast),
			arp(arpReply, addr, mac, addr, broadcast, broadcast),
		}
	}
	return [][]byte{advise(addr, mac, allNodes, groupMAC(allNodes), false)}
}
