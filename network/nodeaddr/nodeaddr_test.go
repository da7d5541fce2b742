package nodeaddr

import (
	"net/netip"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/barque/barque/internal/apart"
	"github.com/barque/barque/internal/await"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		texts []string
		ok    bool
	}{
		{[]string{"192.0.2.1"}, true},
		{[]string{"2001:db8::1"}, true},
		{[]string{"2001:db8::1", "192.0.2.1"}, true},
		{[]string{"192.0.2.1", "192.0.2.2"}, false},
		{[]string{"192.0.2.1", "2001:db8::1", "192.0.2.2"}, false},
		{[]string{"0.0.0.0"}, false},
		{[]string{"fe80::1"}, false},
		{[]string{"::ffff:192.0.2.1"}, false},
		{[]string{"here"}, false},
	} {
		addrs, err := Parse(c.texts)
		if (err == nil) != c.ok || c.ok && (len(addrs) != len(c.texts) || addrs[0].String() != c.texts[0]) {
			t.Errorf("%v: got %v, %v", c.texts, addrs, err)
		}
	}
}

// TestMachine reads addresses, MTUs and ways from a machine with two links.
func TestMachine(t *testing.T) {
	if !apart.Run(t, apart.Network, await.Hang, "the addresses of a node") {
		return
	}
	runtime.LockOSThread()
	if _, err := Detect(); err == nil {
		t.Error("an address was found on a machine without any route")
	}
	links := map[string]netlink.Link{}
	for name, mtu := range map[string]int{"one": 1500, "two": 9000} {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = name, mtu
		link := &netlink.Bridge{LinkAttrs: attrs}
		if err := netlink.LinkAdd(link); err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkSetUp(link); err != nil {
			t.Fatal(err)
		}
		links[name] = link
	}
	for link, text := range map[string]string{"one": "192.0.2.1/24", "two": "2001:db8::1/64"} {
		addr, err := netlink.ParseAddr(text)
		if err != nil {
			t.Fatal(err)
		}
		addr.Flags = 2 // without duplicate address detection
		if err := netlink.AddrAdd(links[link], addr); err != nil {
			t.Fatal(err)
		}
	}
	v4, v6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	if addrs, err := Detect(); err != nil || len(addrs) != 2 || addrs[0] != v4 || addrs[1] != v6 {
		t.Errorf("found %v, %v", addrs, err)
	}
	for mtu, addrs := range map[int][]netip.Addr{1500: {v6, v4}, 9000: {v6}} {
		a := Addresses{Internal: addrs}
		if got, err := a.MTU(); err != nil || got != mtu || a.Primary() != v6 {
			t.Errorf("%v: MTU %d, %v; primary %v", addrs, got, err, a.Primary())
		}
	}
	if _, err := (Addresses{Internal: []netip.Addr{netip.MustParseAddr("192.0.2.9")}}).MTU(); err == nil {
		t.Error("an address that no link has was found")
	}
	gateway := netip.MustParseAddr("192.0.2.254")
	far := netip.MustParsePrefix("198.51.100.0/24")
	err := netlink.RouteAdd(&netlink.Route{Dst: IPNet(far), Gw: gateway.AsSlice()})
	if err != nil {
		t.Fatal(err)
	}
	for addr, want := range map[string]bool{"192.0.2.7": true, "2001:db8::7": true, "198.51.100.7": false,
		"203.0.113.7": false} {
		if OnLink(netip.MustParseAddr(addr)) != want {
			t.Errorf("%s on the link: want %v", addr, want)
		}
	}
}
