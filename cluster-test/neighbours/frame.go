package neighbours

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
)

// Each question has a sender of its own, so that each answer names its question, however late it
// comes: of 100.64.0.0/10, or an address in a private network of IPv6. They are nobody's here.
const senders = 1 << 22

var (
	senderNet4 = netip.MustParsePrefix("100.64.0.0/10")
	senderNet6 = netip.MustParsePrefix("fdba:1095::/96")
)

func sender(question uint32, ipv6 bool) netip.Addr {
	if !ipv6 {
		return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, 100<<24|64<<16|question%senders)))
	}
	b := senderNet6.Addr().As16()
	binary.BigEndian.PutUint32(b[12:], question%senders)
	return netip.AddrFrom16(b)
}

// questionOf returns the number of the question that an address has asked; 0 for any other address.
func questionOf(addr netip.Addr) uint32 {
	switch b := addr.AsSlice(); {
	case senderNet4.Contains(addr):
		return binary.BigEndian.Uint32(b) % senders
	case senderNet6.Contains(addr):
		return binary.BigEndian.Uint32(b[12:]) % senders
	}
	return 0
}

const (
	etherLen   = 14
	arpLen     = 28
	ipv6Len    = 40
	messageLen = 24 // of a solicitation and an advertisement, without options
)

var broadcast = bytes.Repeat([]byte{0xff}, 6)

// ask returns the frame of a question.
func ask(question uint32, mac net.HardwareAddr, addr netip.Addr) []byte {
	if addr.Is4() {
		return slices.Concat(broadcast, mac, []byte{8, 6, 0, 1, 8, 0, 6, 4, 0, 1}, mac,
			sender(question, false).AsSlice(), make([]byte, 6), addr.AsSlice())
	}
	target, from := addr.As16(), sender(question, true)
	group := netip.AddrFrom16([16]byte{0xff, 2, 11: 1, 12: 0xff, 13: target[13], 14: target[14], 15: target[15]})
	message := slices.Concat([]byte{135, 0, 0, 0, 0, 0, 0, 0}, target[:], []byte{1, 1}, mac)
	binary.BigEndian.PutUint16(message[2:], checksum(from, group, message))
	g := group.As16()
	header := []byte{0x60, 0, 0, 0, 0, byte(len(message)), 58, 255}
	return slices.Concat([]byte{0x33, 0x33}, g[12:], mac, []byte{0x86, 0xdd}, header, from.AsSlice(), g[:], message)
}

// checksum is that of ICMPv6 (RFC 4443).
func checksum(from, to netip.Addr, message []byte) uint16 {
	all := slices.Concat(from.AsSlice(), to.AsSlice(), []byte{0, 0, 0, byte(len(message)), 0, 0, 0, 58}, message)
	var sum uint32
	for i := 0; i+1 < len(all); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(all[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// read returns the claim in a frame. ok is false for any other frame.
func read(b []byte) (c Claim, ok bool) {
	if len(b) < etherLen {
		return c, false
	}
	kind, body := binary.BigEndian.Uint16(b[12:]), b[etherLen:]
	switch {
	case kind == 0x0806 && len(body) >= arpLen && bytes.Equal(body[:6], []byte{0, 1, 8, 0, 6, 4}):
		from, to := netip.AddrFrom4([4]byte(body[14:18])), netip.AddrFrom4([4]byte(body[24:28]))
		c = Claim{Addr: from, MAC: net.HardwareAddr(body[8:14]).String(), Question: questionOf(to)}
		// A question of a machine for another address says whose its sender is, but as no answer.
		return c, c.Question != 0 && body[7] == 2 || from == to
	case kind == 0x86dd && len(body) >= ipv6Len+messageLen+8 && body[6] == 58 && body[ipv6Len] == 136:
		option := body[ipv6Len+messageLen:]
		if option[0] != 2 || option[1] != 1 {
			return c, false
		}
		return Claim{Addr: netip.AddrFrom16([16]byte(body[ipv6Len+8:])), MAC: net.HardwareAddr(option[2:8]).String(),
			Question: questionOf(netip.AddrFrom16([16]byte(body[24:])))}, true
	}
	return c, false
}
