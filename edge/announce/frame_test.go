package announce

import (
	"bytes"
	"encoding/hex"
	"net"
	"net/netip"
	"testing"
)

var (
	ours  = net.HardwareAddr{2, 0, 0, 0, 0, 1}
	peer  = net.HardwareAddr{2, 0, 0, 0, 0, 2}
	held4 = netip.MustParseAddr("10.0.0.10")
	held6 = netip.MustParseAddr("fd00::10")
	peer4 = netip.MustParseAddr("10.0.0.2")
	peer6 = netip.MustParseAddr("fe80::2")
)

// solicit makes a neighbour solicitation of a peer.
func solicit(target, source netip.Addr) []byte {
	frame := advise(target, peer, group(target), groupMAC(group(target)), false)
	b := frame[etherLen:]
	copy(b[8:24], source.AsSlice())
	m := b[ipv6Len:]
	m[0], m[4], m[adviceLen] = solicitation, 0, optionSource
	if source.IsUnspecified() { // RFC 4861 forbids the option then
		frame, b, m = frame[:len(frame)-8], b[:len(b)-8], m[:len(m)-8]
		b[5] = adviceLen
	}
	m[2], m[3] = 0, 0
	sum := checksum(source, group(target), m)
	m[2], m[3] = byte(sum>>8), byte(sum)
	return frame
}

func TestQuestionsAreAnswered(t *testing.T) {
	for what, c := range map[string]struct {
		question []byte
		to       net.HardwareAddr
		asks     netip.Addr
	}{
		"ARP": {arp(arpRequest, peer4, peer, held4, make(net.HardwareAddr, 6), broadcast), peer, held4},
		"an ARP probe": {arp(arpRequest, netip.IPv4Unspecified(), peer, held4, make(net.HardwareAddr, 6), broadcast),
			peer, held4},
		"a solicitation": {solicit(held6, peer6), peer, held6},
		"one that looks for duplicates": {solicit(held6, netip.IPv6Unspecified()),
			groupMAC(allNodes), held6},
	} {
		p, ok := parse(c.question)
		if !ok || p.asks != c.asks {
			t.Errorf("%s: %+v, %v", what, p, ok)
			continue
		}
		answer := reply(p, ours)
		if !bytes.Equal(answer[:6], c.to) || !bytes.Equal(answer[6:12], ours) {
			t.Errorf("%s: the answer goes from %x to %x", what, answer[6:12], answer[:6])
		}
		got, ok := parse(answer)
		if !ok || got.claims != c.asks || !bytes.Equal(got.mac, ours) || got.asks.IsValid() {
			t.Errorf("%s: the answer is read as %+v, %v", what, got, ok)
		}
	}
}

func TestAnnouncementsAreClaims(t *testing.T) {
	for _, addr := range []netip.Addr{held4, held6} {
		for _, frame := range announcements(addr, ours) {
			p, ok := parse(frame)
			if !ok || p.claims != addr || p.asks.IsValid() || !bytes.Equal(p.mac, ours) || frame[0]&1 == 0 {
				t.Errorf("%v: %+v, %v, to %x", addr, p, ok, frame[:6])
			}
		}
	}
}

// TestKnownFrames compares with frames that Linux has sent: arping, and ndisc6.
func TestKnownFrames(t *testing.T) {
	request, err := hex.DecodeString(
		"ffffffffffff" + "020000000002" + "0806" + "0001080006040001" + "020000000002" + "0a000002" + "000000000000" +
			"0a00000a")
	if err != nil {
		t.Fatal(err)
	}
	if got := arp(arpRequest, peer4, peer, held4, make(net.HardwareAddr, 6), broadcast); !bytes.Equal(got, request) {
		t.Errorf("ARP request\n%x, want\n%x", got, request)
	}
	if got := group(netip.MustParseAddr("fe80::200:ff:fe12:3456")); got != netip.MustParseAddr("ff02::1:ff12:3456") {
		t.Errorf("group %v", got)
	}
	if got := groupMAC(group(held6)).String(); got != "33:33:ff:00:00:10" {
		t.Errorf("MAC of the group %s", got)
	}
}

func TestForeignFramesAreNotRead(t *testing.T) {
	good := solicit(held6, peer6)
	change := func(at int, to byte) []byte {
		out := bytes.Clone(good)
		out[at] = to
		return out
	}
	for what, frame := range map[string][]byte{
		"empty":                        nil,
		"a header alone":               good[:etherLen],
		"cut":                          good[:len(good)-1],
		"through a router":             change(etherLen+7, 254),
		"another next header":          change(etherLen+6, 17),
		"a wrong checksum":             change(etherLen+ipv6Len+2, good[etherLen+ipv6Len+2]^1),
		"another type":                 change(etherLen+ipv6Len, 133),
		"another code":                 change(etherLen+ipv6Len+1, 1),
		"an option without end":        change(len(good)-7, 0),
		"an option of too many octets": change(len(good)-7, 2),
		"another Ethernet type":        change(13, 0),
		"ARP about Ethernet and IPv6": append(append(ether(broadcast, peer, typeARP), 0, 1, 0x86, 0xdd, 6, 16, 0, 1),
			make([]byte, 40)...),
		"an ARP operation of RARP": arp(3, peer4, peer, held4, peer, broadcast),
	} {
		if p, ok := parse(frame); ok {
			t.Errorf("%s is read: %+v", what, p)
		}
	}
	if _, ok := parse(good); !ok {
		t.Error("the whole one is not read")
	}
}

// FuzzParse: foreign bytes never panic, and each question has an answer that is a claim.
func FuzzParse(f *testing.F) {
	for _, frame := range [][]byte{solicit(held6, peer6), solicit(held6, netip.IPv6Unspecified()),
		advise(held6, peer, allNodes, groupMAC(allNodes), false),
		arp(arpRequest, peer4, peer, held4, make(net.HardwareAddr, 6), broadcast),
		arp(arpReply, peer4, peer, held4, ours, ours)} {
		f.Add(frame)
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		p, ok := parse(frame)
		if !ok || !p.asks.IsValid() {
			return
		}
		answer := reply(p, ours)
		if got, ok := parse(answer); !ok || got.claims != p.asks || !bytes.Equal(got.mac, ours) {
			t.Errorf("%x is answered by %x: %+v, %v", frame, answer, got, ok)
		}
	})
}

func TestLinks(t *testing.T) {
	prefix := func(all ...string) (out []netip.Prefix) {
		for _, p := range all {
			out = append(out, netip.MustParsePrefix(p))
		}
		return out
	}
	machine := []network{
		{link{index: 2, name: "eth0"}, prefix("10.0.0.1/24", "fd00::1/64", "fe80::1/64")},
		{link{index: 3, name: "eth1"}, prefix("192.168.0.1/16", "fe80::2/64")},
		{link{index: 4, name: "eth2"}, prefix("192.168.7.1/24")},
		{link{index: 5, name: "pod"}, prefix("10.42.0.1/32")},
	}
	own := []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")}
	for addr, want := range map[string]string{
		"10.0.0.10": "eth0", "fd00::10": "eth0", "192.168.7.9": "eth1 eth2",
		"203.0.113.1": "eth0", "2001:db8::1": "eth0", // routed to the node
	} {
		got := ""
		for _, l := range linksFor(netip.MustParseAddr(addr), machine, own) {
			if got != "" {
				got += " "
			}
			got += l.name
		}
		if got != want {
			t.Errorf("%s is announced on %q, want %q", addr, got, want)
		}
	}
	if got := linksFor(held4, machine[1:], nil); got != nil {
		t.Errorf("without a link: %v", got)
	}
}
