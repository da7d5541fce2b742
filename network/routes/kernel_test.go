package routes

import (
	"context"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/barque/barque/internal/needs"
	"github.com/barque/barque/network/nodeaddr"
)

// inNamespace moves the test's thread into a new network namespace with the
// address 192.0.2.1/24. Nothing else runs on it any more.
func inNamespace(t *testing.T) {
	t.Helper()
	needs.Root(t, "routes in the kernel")
	runtime.LockOSThread() // never unlocked
	handle, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { handle.Close() })
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "eth0"
	link := &netlink.Bridge{LinkAttrs: attrs}
	addr := &netlink.Addr{IPNet: nodeaddr.IPNet(netip.MustParsePrefix("192.0.2.1/24"))}
	addr6 := &netlink.Addr{IPNet: nodeaddr.IPNet(netip.MustParsePrefix("2001:db8::1/64")), Flags: unix.IFA_F_NODAD}
	for _, step := range []error{netlink.LinkAdd(link), netlink.AddrAdd(link, addr), netlink.AddrAdd(link, addr6), netlink.LinkSetUp(link)} {
		if step != nil {
			t.Fatal(step)
		}
	}
}

var self = netip.MustParseAddr("192.0.2.1")

var own = nodeaddr.Addresses{Internal: []netip.Addr{self, netip.MustParseAddr("2001:db8::1")}}

func desired(routes ...Route) Plan {
	all := map[netip.Prefix]Route{}
	for _, route := range routes {
		all[route.Destination] = route
	}
	return Plan{Routes: all}
}

func TestApply(t *testing.T) {
	inNamespace(t)
	prefix, addr := netip.MustParsePrefix, netip.MustParseAddr
	local := Route{Destination: prefix("10.43.0.0/16"), Kind: Local}
	mine := Route{Destination: prefix("10.42.1.0/24"), Kind: Unreachable}
	mine6 := Route{Destination: prefix("fd00:42:0:1::/64"), Kind: Unreachable}
	local6 := Route{Destination: prefix("fd00:43::/112"), Kind: Local}
	two6 := Route{Destination: prefix("fd00:42:0:2::/64"), Kind: Via, Gateway: addr("2001:db8::2")}
	moved6 := Route{Destination: prefix("fd00:42:0:2::/64"), Kind: Via, Gateway: addr("2001:db8::22")}
	two := Route{Destination: prefix("10.42.2.0/24"), Kind: Via, Gateway: addr("192.0.2.2")}
	moved := Route{Destination: prefix("10.42.2.0/24"), Kind: Via, Gateway: addr("192.0.2.22")}
	far := Route{Destination: prefix("10.42.9.0/24"), Kind: Via, Gateway: addr("203.0.113.9")}

	// Somebody else's route stays whatever we do.
	network, err := netlink.ParseIPNet("198.51.100.0/24")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.RouteAdd(&netlink.Route{Dst: network, Gw: addr("192.0.2.5").AsSlice()}); err != nil {
		t.Fatal(err)
	}

	// No subtests: each would run in a thread of its own, outside the namespace.
	for _, step := range []struct {
		name string
		want []Route
		fail string
		have int
	}{
		{"all kinds", []Route{local, mine, two}, "", 3},
		{"again", []Route{local, mine, two}, "", 3},
		{"another gateway", []Route{local, mine, moved}, "", 3},
		{"fewer", []Route{local}, "", 1},
		{"a node elsewhere does not keep the others from theirs", []Route{far, local, mine, two}, "203.0.113.9", 3},
		{"both families", []Route{local, mine, two, local6, mine6, two6}, "", 6},
		{"both again", []Route{local, mine, two, local6, mine6, two6}, "", 6},
		{"another IPv6 gateway", []Route{local6, mine6, moved6}, "", 3},
		{"a share that becomes ours", []Route{{Destination: moved6.Destination, Kind: Unreachable}}, "", 1},
		{"none", nil, "", 0},
	} {
		err := Apply(desired(step.want...), own, nil)
		if step.fail == "" && err != nil || step.fail != "" && (err == nil || !strings.Contains(err.Error(), step.fail)) {
			t.Errorf("%s: %v", step.name, err)
		}
		present, err := ours()
		if err != nil {
			t.Fatal(err)
		}
		if len(present) != step.have {
			t.Errorf("%s: %d routes, want %d: %v", step.name, len(present), step.have, present)
		}
		link, err := nodeaddr.Link(self)
		if err != nil {
			t.Fatal(err)
		}
		m := maker{addresses: own, links: map[bool]int{false: link.Attrs().Index, true: link.Attrs().Index}}
		for _, route := range present {
			if want, ok := desired(step.want...).Routes[nodeaddr.Prefix(route.Dst)]; !ok || !m.matches(route, want) {
				t.Errorf("%s: unexpected %v", step.name, route)
			}
		}
	}
	all, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, route := range all {
		found = found || nodeaddr.Prefix(route.Dst) == prefix("198.51.100.0/24")
	}
	if !found {
		t.Error("a route that is not ours was removed")
	}
	if err := Apply(Plan{}, nodeaddr.Addresses{Internal: []netip.Addr{addr("192.0.2.77")}}, nil); err == nil || !strings.Contains(err.Error(), "192.0.2.77") {
		t.Errorf("an address that no link has: %v", err)
	}
}

// TestWatch: a route that somebody removes is noticed, and the watch ends with
// its context.
func TestWatch(t *testing.T) {
	inNamespace(t)
	route := Route{Destination: netip.MustParsePrefix("10.42.2.0/24"), Kind: Via, Gateway: netip.MustParseAddr("192.0.2.2")}
	if err := Apply(desired(route), own, nil); err != nil {
		t.Fatal(err)
	}
	namespace, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	defer namespace.Close()
	ctx, cancel := context.WithCancel(t.Context())
	noticed := make(chan struct{}, 100)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread() // never unlocked: the thread is in the namespace
		if err := netns.Set(namespace); err != nil {
			t.Error(err)
			return
		}
		Watch(ctx, func() { noticed <- struct{}{} })
	}()
	// The subscription starts some time; so the route goes until it is noticed.
	deadline := time.After(time.Minute)
	for seen := false; !seen; {
		if err := Purge(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-noticed:
			seen = true
		case <-deadline:
			t.Fatal("not noticed")
		case <-time.After(20 * time.Millisecond): // brief: then it goes once more
			if err := Apply(desired(route), own, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	cancel()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("the watch does not end")
	}
}
