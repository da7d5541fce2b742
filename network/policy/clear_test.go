package policy

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/network/nodeaddr"
	"github.com/barque/barque/network/wireguard"
)

// datagram is a UDP packet with its IP header.
func datagram(from, to netip.AddrPort, text string) []byte {
	udp := binary.BigEndian.AppendUint16(nil, from.Port())
	udp = binary.BigEndian.AppendUint16(udp, to.Port())
	udp = binary.BigEndian.AppendUint16(udp, uint16(8+len(text)))
	udp = append(append(udp, 0, 0), text...)
	source, destination := from.Addr().AsSlice(), to.Addr().AsSlice()
	pseudo := append(append([]byte{0, unix.IPPROTO_UDP, 0, byte(len(udp))}, source...), destination...)
	binary.BigEndian.PutUint16(udp[6:], sum(append(pseudo, udp...)))
	var header []byte
	if from.Addr().Is6() {
		header = []byte{0x60, 0, 0, 0, 0, byte(len(udp)), unix.IPPROTO_UDP, 64}
		header = append(append(header, source...), destination...)
	} else {
		header = []byte{0x45, 0, 0, byte(20 + len(udp)), 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}
		header = append(append(header, source...), destination...)
		binary.BigEndian.PutUint16(header[10:], sum(header))
	}
	return append(header, udp...)
}

// sum is the checksum of IP and UDP.
func sum(data []byte) uint16 {
	var s uint32
	for len(data) > 1 {
		s, data = s+uint32(binary.BigEndian.Uint16(data)), data[2:]
	}
	if len(data) == 1 {
		s += uint32(data[0]) << 8
	}
	for s>>16 > 0 {
		s = s&0xffff + s>>16
	}
	return ^uint16(s)
}

// TestNothingIsTakenInClear: a packet with the address of a pod that WireGuard leads to is dropped
// on another link. Others with such addresses arrive.
func TestNothingIsTakenInClear(t *testing.T) {
	kernel := inNamespace(t)
	check := func(errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "eth0"
	check(netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "wire"}))
	attrs.Name = wireguard.LinkName
	check(netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}))
	links := map[string]netlink.Link{}
	for _, name := range []string{"lo", "eth0", "wire", wireguard.LinkName} {
		link, err := netlink.LinkByName(name)
		check(err, netlink.LinkSetUp(link))
		links[name] = link
	}
	for _, share := range []string{"10.42.2.0/24", "fd00:42:0:2::/64"} {
		check(
			netlink.RouteAdd(
				&netlink.Route{Dst: nodeaddr.IPNet(netip.MustParsePrefix(share)),
					LinkIndex: links[wireguard.LinkName].Attrs().Index}))
	}
	for _, share := range []string{"10.42.3.0/24", "fd00:42:0:3::/64"} {
		check(
			netlink.RouteAdd(
				&netlink.Route{Dst: nodeaddr.IPNet(netip.MustParsePrefix(share)),
					LinkIndex: links["eth0"].Attrs().Index}))
	}
	for _, address := range []string{"192.0.2.1/24", "2001:db8::1/64"} {
		addr := &netlink.Addr{IPNet: nodeaddr.IPNet(netip.MustParsePrefix(address))}
		if addr.IP.To4() == nil {
			addr.Flags = unix.IFA_F_NODAD
		}
		check(netlink.AddrAdd(links["eth0"], addr))
	}
	check(kernel.replace(emptyRules(), nil))
	raw, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	check(err)
	defer unix.Close(raw)
	for _, c := range []struct{ own, tunnelled, direct string }{
		{"192.0.2.1", "10.42.2.5", "10.42.3.5"},
		{"2001:db8::1", "fd00:42:0:2::5", "fd00:42:0:3::5"},
	} {
		listener, err := net.ListenUDP("udp",
			net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(c.own), 0)))
		check(err)
		defer listener.Close()
		to := listener.LocalAddr().(*net.UDPAddr).AddrPort()
		for _, from := range []string{c.tunnelled, c.direct} {
			protocol := uint16(unix.ETH_P_IP)
			if to.Addr().Is6() {
				protocol = unix.ETH_P_IPV6
			}
			at := &unix.SockaddrLinklayer{Protocol: protocol<<8 | protocol>>8, Ifindex: links["wire"].Attrs().Index,
				Halen: 6}
			copy(at.Addr[:], links["eth0"].Attrs().HardwareAddr)
			check(unix.Sendto(raw, datagram(netip.AddrPortFrom(netip.MustParseAddr(from), 1), to, from), 0, at))
		}
		check(listener.SetReadDeadline(time.Now().Add(await.Hang)))
		text := make([]byte, 100)
		// Packets of one wire keep their order: the first one would have come first.
		if n, err := listener.Read(text); err != nil || string(text[:n]) != c.direct {
			t.Errorf("a packet from %q arrived, %v; want %s alone", text[:n], err, c.direct)
		}
	}
}
