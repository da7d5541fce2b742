package path

import (
	"net/netip"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/barque/barque/internal/apart"
	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/network/nodeaddr"
)

// give gives a link an address and brings it up, with the MTU.
func give(t *testing.T, handle *netlink.Handle, name string, mtu int, addresses ...string) {
	t.Helper()
	link, err := handle.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range addresses {
		addr := &netlink.Addr{IPNet: nodeaddr.IPNet(netip.MustParsePrefix(address))}
		if addr.IP.To4() == nil {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := handle.AddrAdd(link, addr); err != nil {
			t.Fatal(err)
		}
	}
	if err := handle.LinkSetMTU(link, mtu); err != nil {
		t.Fatal(err)
	}
	if err := handle.LinkSetUp(link); err != nil {
		t.Fatal(err)
	}
}

// TestProbe asks a machine on a link whose other end takes smaller packets than this one sends, as
// a switch does that drops them without a word.
func TestProbe(t *testing.T) {
	if !apart.Run(t, apart.Network, await.Hang, "the way of large packets") {
		return
	}
	runtime.LockOSThread()
	here, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	there, err := netns.New() // and in it
	if err != nil {
		t.Fatal(err)
	}
	if err := netns.Set(here); err != nil {
		t.Fatal(err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "here"
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "there", PeerNamespace: netlink.NsFd(int(there))}); err != nil {
		t.Fatal(err)
	}
	own, err := netlink.NewHandle()
	if err != nil {
		t.Fatal(err)
	}
	other, err := netlink.NewHandleAt(there)
	if err != nil {
		t.Fatal(err)
	}
	give(t, own, "here", 1500, "192.0.2.1/24", "2001:db8::1/64")
	give(t, other, "there", 1500, "192.0.2.2/24", "2001:db8::2/64")
	ask := func(want Answer, size int, addresses ...string) {
		t.Helper()
		for _, address := range addresses {
			var got Answer
			await.True(t, string(want)+" from "+address, func() bool {
				if got, err = Probe(t.Context(), netip.MustParseAddr(address), size); err != nil {
					t.Fatal(err)
				}
				return got == want
			})
		}
	}
	ask(Whole, 1500, "192.0.2.2", "2001:db8::2", "192.0.2.1")
	ask(Small, 1501, "192.0.2.2", "2001:db8::2") // this machine sends none
	ask(Silent, 1500, "192.0.2.3", "2001:db8::3", "203.0.113.1")
	link, err := other.LinkByName("there")
	if err != nil {
		t.Fatal(err)
	}
	if err := other.LinkSetMTU(link, 1400); err != nil {
		t.Fatal(err)
	}
	ask(Small, 1500, "192.0.2.2", "2001:db8::2")
	ask(Whole, 1400, "192.0.2.2", "2001:db8::2")
	findings := ProbeAll(t.Context(), map[string]netip.Addr{"b": netip.MustParseAddr("192.0.2.2")}, netip.MustParseAddr("192.0.2.1"))
	if len(findings) != 1 || findings[0].Answer != Small || findings[0].Size != 1500 || findings[0].Node != "b" {
		t.Errorf("findings %+v", findings)
	}
	if findings := ProbeAll(t.Context(), map[string]netip.Addr{"b": netip.MustParseAddr("192.0.2.2")}, netip.MustParseAddr("192.0.2.9")); findings[0].Error == "" {
		t.Errorf("an address that no link has: %+v", findings)
	}
}

func TestQuestion(t *testing.T) {
	for _, size := range []int{28, 128, 1500} {
		if got := len(question(false, 1, 2, size)) + header4; got != size {
			t.Errorf("%d bytes of %d", got, size)
		}
	}
	// An odd length, with the sums computed by hand.
	if got := checksum([]byte{8, 0, 0, 0, 0x12, 0x34, 0, 1, 0x56}); got != ^uint16(0x0800+0x1234+0x0001+0x5600) {
		t.Errorf("checksum %#x", got)
	}
	packet := question(false, 7, 0, 128)
	if checksum(packet) != 0 {
		t.Error("the checksum of a packet with its own is not zero")
	}
	if isAnswer(false, append(make([]byte, 20), packet...), 7) || isAnswer(false, nil, 7) || isAnswer(true, nil, 7) {
		t.Error("what is no answer was taken for one")
	}
}
