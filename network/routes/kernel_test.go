package routes

import (
	"context"
	"errors"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/barque/barque/internal/needs"
	"github.com/barque/barque/network/nodeaddr"
	"github.com/barque/barque/network/wireguard"
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
	for _, step := range []error{netlink.LinkAdd(link), netlink.AddrAdd(link, addr), netlink.AddrAdd(link, addr6),
		netlink.LinkSetUp(link)} {
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
		if step.fail == "" && err != nil ||
			step.fail != "" && (err == nil || !strings.Contains(err.Error(), step.fail)) {
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
	if err := Apply(Plan{}, nodeaddr.Addresses{Internal: []netip.Addr{addr("192.0.2.77")}}, nil); err == nil ||
		!strings.Contains(err.Error(), "192.0.2.77") {
		t.Errorf("an address that no link has: %v", err)
	}
}

// TestNothingInClear: a pod that WireGuard leads to is unreachable without it, though there is a
// default route.
func TestNothingInClear(t *testing.T) {
	inNamespace(t)
	for _, gateway := range []string{"192.0.2.254", "2001:db8::fe"} {
		if err := netlink.RouteAdd(&netlink.Route{Gw: netip.MustParseAddr(gateway).AsSlice()}); err != nil {
			t.Fatal(err)
		}
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = wireguard.LinkName
	tunnel := &netlink.Bridge{LinkAttrs: attrs}
	if err := errors.Join(netlink.LinkAdd(tunnel), netlink.LinkSetUp(tunnel)); err != nil {
		t.Fatal(err)
	}
	mine, other := node("node-1", "10.42.1.0/24,fd00:42:0:1::/64", "192.0.2.1"),
		node("node-2", "10.42.2.0/24,fd00:42:0:2::/64", "192.0.2.2")
	endpoint := wireguard.Endpoint{PublicKey: wireguard.Key{2}, Address: netip.MustParseAddr("192.0.2.2"), Port: 1,
		To: wireguard.Everywhere}
	other.Annotations = map[string]string{wireguard.Annotation: endpoint.String()}
	plan := Make(World{Self: "node-1", Addresses: own, Nodes: []*corev1.Node{mine, other},
		PodNetworks: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("fd00:42::/56")},
		WireGuard:   wireguard.Endpoint{PublicKey: wireguard.Key{1}, Address: self, Port: 1},
		OnLink:      func(netip.Addr) bool { return true }})
	check := func(name string, want error) {
		t.Helper()
		for _, pod := range []string{"10.42.2.5", "fd00:42:0:2::5"} {
			if got, err := netlink.RouteGet(netip.MustParseAddr(pod).AsSlice()); !errors.Is(err, want) {
				t.Errorf("%s: the way to %s: %v, %v; want %v", name, pod, got, err, want)
			}
		}
	}
	links := Links{WireGuard: tunnel.Index}
	for _, step := range []struct {
		name string
		plan Plan
		want error
	}{{"with the link", plan, nil}, {"the link cannot be made", plan.Without(WireGuard), unix.EHOSTUNREACH},
		{"with it again", plan, nil}} {
		// An address of the own share is the source: the link has it, as WireGuard's does.
		if err := nodeaddr.Assign(tunnel, nodeaddr.Firsts(plan.Own)); err != nil {
			t.Fatal(err)
		}
		if err := Apply(step.plan, own, links); err != nil {
			t.Fatal(err)
		}
		check(step.name, step.want)
	}
	if err := netlink.LinkDel(tunnel); err != nil {
		t.Fatal(err)
	}
	check("the link is gone", unix.EHOSTUNREACH)
}

// TestWatch: a route that somebody removes is noticed, and the watch ends with
// its context.
func TestWatch(t *testing.T) {
	inNamespace(t)
	route := Route{Destination: netip.MustParsePrefix("10.42.2.0/24"), Kind: Via,
		Gateway: netip.MustParseAddr("192.0.2.2")}
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
