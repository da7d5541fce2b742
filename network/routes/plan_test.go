package routes

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/network/nodeaddr"
	"github.com/barque/barque/network/overlay"
	"github.com/barque/barque/network/wireguard"
)

// node makes a Node with shares of the pod network and addresses, each separated by commas.
func node(name, shares, ips string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if shares != "" {
		n.Spec.PodCIDRs = strings.Split(shares, ",")
		n.Spec.PodCIDR = n.Spec.PodCIDRs[0]
	}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name}}
	if ips != "" {
		for _, ip := range strings.Split(ips, ",") {
			n.Status.Addresses = append(n.Status.Addresses,
				corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
		}
	}
	return n
}

// born gives a Node a time of creation, in seconds.
func born(at int64, n *corev1.Node) *corev1.Node {
	n.CreationTimestamp = metav1.Unix(at, 0)
	return n
}

// with gives a Node the annotation of its overlay.
func with(n *corev1.Node, c overlay.Config) *corev1.Node {
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			n.Annotations = map[string]string{
				overlay.Annotation: c.Endpoint(n.Name, netip.MustParseAddr(a.Address)).String()}
			return n
		}
	}
	return n
}

func config(mode overlay.Mode) overlay.Config {
	return overlay.Config{Mode: mode, VNI: overlay.DefaultVNI, Port: overlay.DefaultPort}
}

// TestMake: the nodes 192.0.2.* and 2001:db8::* share a layer-2 network, all others are elsewhere.
func TestMake(t *testing.T) {
	const self = "node-1"
	auto, always, none := config(overlay.Auto), config(overlay.Always), config(overlay.None)
	otherVNI, otherPort := auto, auto
	otherVNI.VNI, otherPort.Port = 7, 4789
	gateway6 := func(name string) string {
		return auto.Endpoint(name, netip.MustParseAddr("192.0.2.1")).Gateway6().String()
	}
	const services, mine = "10.43.0.0/16 local", "10.42.1.0/24 unreachable"
	const services6, mine6 = "fd00:43::/112 local", "fd00:42:0:1::/64 unreachable"
	me := node(self, "10.42.1.0/24", "192.0.2.1")
	dual := node(self, "10.42.1.0/24,fd00:42:0:1::/64", "192.0.2.1,2001:db8::1")
	for name, test := range map[string]struct {
		overlay overlay.Config
		nodes   []*corev1.Node // the first one is this one
		want    []string
		peers   []string
		fails   string
	}{
		"alone, without a share": {auto, []*corev1.Node{node(self, "", "192.0.2.1")}, []string{services}, nil, ""},
		"alone":                  {auto, []*corev1.Node{me}, []string{services, mine}, nil, ""},
		"others in the same network": {auto,
			[]*corev1.Node{me, with(node("node-2", "10.42.2.0/24", "192.0.2.2"), auto),
				with(node("node-3", "10.42.3.0/24", "192.0.2.3"), none)},
			[]string{services, mine, "10.42.2.0/24 via 192.0.2.2", "10.42.3.0/24 via 192.0.2.3"}, nil, ""},
		"others elsewhere": {auto,
			[]*corev1.Node{me, with(node("node-2", "10.42.2.0/24", "203.0.113.2"), auto),
				with(node("node-3", "10.42.3.0/24", "192.0.2.3"), auto)},
			[]string{services, mine, "10.42.2.0/24 overlay 10.42.2.0", "10.42.3.0/24 via 192.0.2.3"},
			[]string{"node-2 203.0.113.2"}, ""},
		"elsewhere without an overlay: the kernel says so": {auto,
			[]*corev1.Node{me, with(node("node-2", "10.42.2.0/24", "203.0.113.2"), none)},
			[]string{services, mine, "10.42.2.0/24 via 203.0.113.2"}, nil, ""},
		"elsewhere, not announced yet": {auto, []*corev1.Node{me, node("node-2", "10.42.2.0/24", "203.0.113.2")},
			[]string{services, mine}, nil, ""},
		"this one has none": {none, []*corev1.Node{me, with(node("node-2", "10.42.2.0/24", "203.0.113.2"), always)},
			[]string{services, mine, "10.42.2.0/24 via 203.0.113.2"}, nil, ""},
		"this one always": {always,
			[]*corev1.Node{me, with(node("node-2", "10.42.2.0/24", "192.0.2.2"), auto),
				with(node("node-3", "10.42.3.0/24", "192.0.2.3"), none)},
			[]string{services, mine, "10.42.2.0/24 overlay 10.42.2.0", "10.42.3.0/24 via 192.0.2.3"},
			[]string{"node-2 192.0.2.2"}, ""},
		"the other one always": {auto, []*corev1.Node{me, with(node("node-2", "10.42.2.0/24", "192.0.2.2"), always)},
			[]string{services, mine, "10.42.2.0/24 overlay 10.42.2.0"}, []string{"node-2 192.0.2.2"}, ""},
		"another identifier": {auto, []*corev1.Node{me, with(node("node-2", "10.42.2.0/24", "203.0.113.2"), otherVNI)},
			[]string{services, mine}, nil, "--vxlan-vni"},
		"another port": {auto, []*corev1.Node{me, with(node("node-2", "10.42.2.0/24", "203.0.113.2"), otherPort)},
			[]string{services, mine}, nil, "--vxlan-port"},
		"an annotation that cannot be read": {auto,
			[]*corev1.Node{me,
				{ObjectMeta: metav1.ObjectMeta{Name: "x", Annotations: map[string]string{overlay.Annotation: "?"}}}},
			[]string{services, mine}, nil, "node x"},
		"others that are not ready for it": {auto,
			[]*corev1.Node{me, node("node-2", "", "192.0.2.2"), node("node-3", "10.42.3.0/24", ""),
				node("node-5", "10.42.5.0/24", "fd00::5")}, []string{services, mine}, nil, ""},
		"a share like ours is a mistake": {auto, []*corev1.Node{me, node("node-0", "10.42.0.0/20", "192.0.2.9")},
			[]string{services, mine}, nil, ""},
		"two with one share: always the same": {auto,
			[]*corev1.Node{me, node("node-3", "10.42.2.0/24", "192.0.2.3"),
				node("node-2", "10.42.2.0/24", "192.0.2.2")},
			[]string{services, mine, "10.42.2.0/24 via 192.0.2.2"}, nil, ""},
		"the older of two with one share": {auto,
			[]*corev1.Node{me, born(1, node("node-3", "10.42.2.0/24", "192.0.2.3")),
				born(2, node("node-2", "10.42.2.0/24", "192.0.2.2"))},
			[]string{services, mine, "10.42.2.0/24 via 192.0.2.3"}, nil, ""},
		"a share within an older node's": {auto,
			[]*corev1.Node{me, born(1, node("node-3", "10.42.2.0/24", "192.0.2.3")),
				born(2, node("node-2", "10.42.2.64/26", "192.0.2.2"))},
			[]string{services, mine, "10.42.2.0/24 via 192.0.2.3"}, nil, ""},
		"a share around an older node's": {auto,
			[]*corev1.Node{me, born(1, node("node-3", "10.42.2.0/24", "192.0.2.3")),
				born(2, node("node-2", "10.42.2.0/23", "192.0.2.2"))},
			[]string{services, mine, "10.42.2.0/24 via 192.0.2.3"}, nil, ""},
		"a share of machines' addresses": {auto,
			[]*corev1.Node{me, node("node-2", "192.0.2.3/32", "192.0.2.2"),
				node("node-3", "10.42.3.0/24", "192.0.2.3")},
			[]string{services, mine, "10.42.3.0/24 via 192.0.2.3"}, nil,
			"node node-2 are not reached: they are outside of the pod networks"},
		"a share around the pod network": {auto,
			[]*corev1.Node{node(self, "", "192.0.2.1"), node("node-2", "10.0.0.0/8", "192.0.2.2")},
			[]string{services}, nil, "outside of the pod networks"},
		"both families": {auto,
			[]*corev1.Node{dual, with(node("node-2", "10.42.2.0/24,fd00:42:0:2::/64", "192.0.2.2,2001:db8::2"), auto)},
			[]string{services, mine, services6, mine6, "10.42.2.0/24 via 192.0.2.2",
				"fd00:42:0:2::/64 via 2001:db8::2"}, nil, ""},
		"both families, elsewhere": {auto,
			[]*corev1.Node{dual,
				with(node("node-2", "10.42.2.0/24,fd00:42:0:2::/64", "203.0.113.2,2001:db8:1::2"), auto)},
			[]string{services, mine, services6, mine6, "10.42.2.0/24 overlay 10.42.2.0",
				"fd00:42:0:2::/64 overlay " + gateway6("node-2")}, []string{"node-2 203.0.113.2"}, ""},
		"a family without an address takes the overlay": {auto,
			[]*corev1.Node{dual, with(node("node-2", "10.42.2.0/24,fd00:42:0:2::/64", "192.0.2.2"), auto)},
			[]string{services, mine, services6, mine6, "10.42.2.0/24 via 192.0.2.2",
				"fd00:42:0:2::/64 overlay " + gateway6("node-2")}, []string{"node-2 192.0.2.2"}, ""},
		"IPv6 only": {auto,
			[]*corev1.Node{node(self, "fd00:42:0:1::/64", "2001:db8::1"),
				with(node("node-2", "fd00:42:0:2::/64", "2001:db8::2"), auto),
				with(node("node-3", "fd00:42:0:3::/64", "2001:db8:1::3"), auto)},
			[]string{services6, mine6, "fd00:42:0:2::/64 via 2001:db8::2",
				"fd00:42:0:3::/64 overlay " + gateway6("node-3")}, []string{"node-3 2001:db8:1::3"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := World{Self: self, Overlay: test.overlay, Nodes: test.nodes,
				ServiceNetworks: []netip.Prefix{netip.MustParsePrefix("10.43.0.0/16"),
					netip.MustParsePrefix("fd00:43::/112")},
				PodNetworks: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16"),
					netip.MustParsePrefix("fd00:42::/48")},
				OnLink: func(a netip.Addr) bool {
					return netip.MustParsePrefix("192.0.2.0/24").Contains(a) ||
						netip.MustParsePrefix("2001:db8::/64").Contains(a)
				}}
			for _, is6 := range []bool{false, true} {
				if addr := internalIP(test.nodes[0], is6); addr.IsValid() {
					w.Addresses.Internal = append(w.Addresses.Internal, addr)
				}
			}
			want, got := map[string]bool{}, map[string]bool{}
			for _, route := range test.want {
				want[route] = true
			}
			plan := Make(w)
			for destination, route := range plan.Routes {
				text := fmt.Sprint(destination, " ", route.Kind)
				if route.Gateway.IsValid() {
					text += " " + route.Gateway.String()
				}
				got[text] = true
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got  %v\nwant %v", got, want)
			}
			var peers []string
			for _, peer := range plan.Peers {
				peers = append(peers, peer.Node+" "+peer.Endpoint.Address.String())
			}
			if !reflect.DeepEqual(peers, test.peers) {
				t.Errorf("peers %v, want %v", peers, test.peers)
			}
			if err := plan.Unreached; (err != nil) != (test.fails != "") ||
				err != nil && !strings.Contains(err.Error(), test.fails) {
				t.Errorf("unreached: %v", err)
			}
			if own := shares(test.nodes[0]); !reflect.DeepEqual(plan.Own, own) {
				t.Errorf("own %v, want %v", plan.Own, own)
			}
		})
	}
}

// TestMakeEncrypted is about pairs of which one node wants WireGuard. The nodes 192.0.2.* share a
// layer-2 network.
func TestMakeEncrypted(t *testing.T) {
	endpoint := func(address string, to wireguard.Wish) wireguard.Endpoint {
		return wireguard.Endpoint{PublicKey: wireguard.Key{1}, Address: netip.MustParseAddr(address), Port: 1, To: to}
	}
	const none = wireguard.Wish("none")
	for _, c := range []struct {
		own     wireguard.Wish
		ours    overlay.Mode
		address string // of the other node
		other   wireguard.Wish
		theirs  overlay.Mode // "" is a node that has told nothing yet
		want    string
		fails   string
	}{
		{wireguard.Nowhere, overlay.Auto, "203.0.113.2", wireguard.Nowhere, overlay.Auto, "overlay", ""},
		{wireguard.Elsewhere, overlay.AutoWireGuard, "203.0.113.2", wireguard.Elsewhere, overlay.AutoWireGuard,
			"wireguard", ""},
		{wireguard.Elsewhere, overlay.AutoWireGuard, "203.0.113.2", wireguard.Nowhere, overlay.Auto, "wireguard", ""},
		{wireguard.Nowhere, overlay.Auto, "203.0.113.2", wireguard.Elsewhere, overlay.AutoWireGuard, "wireguard", ""},
		{wireguard.Elsewhere, overlay.AutoWireGuard, "192.0.2.2", wireguard.Elsewhere, overlay.AutoWireGuard, "via",
			""},
		{wireguard.Elsewhere, overlay.AutoWireGuard, "192.0.2.2", wireguard.Nowhere, overlay.Auto, "via", ""},
		{wireguard.Elsewhere, overlay.AutoWireGuard, "192.0.2.2", wireguard.Nowhere, overlay.Always, "wireguard", ""},
		{wireguard.Elsewhere, overlay.AutoWireGuard, "192.0.2.2", wireguard.Everywhere, overlay.WireGuard, "wireguard",
			""},
		{wireguard.Everywhere, overlay.WireGuard, "192.0.2.2", wireguard.Nowhere, overlay.Auto, "wireguard", ""},
		{wireguard.Nowhere, overlay.Always, "192.0.2.2", wireguard.Everywhere, overlay.WireGuard, "wireguard", ""},
		{wireguard.Everywhere, overlay.WireGuard, "192.0.2.2", none, overlay.None, "", "node-2"},
		// of an old release
		{wireguard.Everywhere, overlay.WireGuard, "192.0.2.2", none, overlay.Auto, "", "update it"},
		{wireguard.Everywhere, overlay.WireGuard, "192.0.2.2", none, "", "", ""},
		{wireguard.Everywhere, overlay.WireGuard, "2001:db8::2", wireguard.Everywhere, overlay.WireGuard, "",
			"--node-ip"},
		{none, overlay.None, "192.0.2.2", wireguard.Elsewhere, overlay.AutoWireGuard, "via", ""},
		{none, overlay.None, "192.0.2.2", wireguard.Everywhere, overlay.WireGuard, "", "this node has none"},
		{none, overlay.None, "203.0.113.2", wireguard.Elsewhere, overlay.AutoWireGuard, "", "this node has none"},
		{none, overlay.Auto, "203.0.113.2", wireguard.Nowhere, overlay.Auto, "overlay", ""}, // its key cannot be read
	} {
		me, other := node("node-1", "10.42.1.0/24", "192.0.2.1"), node("node-2", "10.42.2.0/24", c.address)
		if c.theirs != "" {
			other = with(other, config(c.theirs))
		}
		if c.other != none {
			other.Annotations[wireguard.Annotation] = endpoint(c.address, c.other).String()
		}
		w := World{Self: "node-1", Overlay: config(c.ours), Nodes: []*corev1.Node{me, other},
			Addresses:   nodeaddr.Addresses{Internal: []netip.Addr{netip.MustParseAddr("192.0.2.1")}},
			PodNetworks: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")},
			OnLink:      netip.MustParsePrefix("192.0.2.0/24").Contains}
		if c.own != none {
			w.WireGuard = endpoint("192.0.2.1", c.own)
			w.WireGuard.PublicKey = wireguard.Key{9}
		}
		plan := Make(w)
		share := netip.MustParsePrefix("10.42.2.0/24")
		if got := string(plan.Routes[share].Kind); got != c.want {
			t.Errorf("%+v: the way is %q", c, got)
		}
		if want := c.want == "wireguard"; (len(plan.Tunnels) == 1) != want ||
			want && (plan.Tunnels[0].Node != "node-2" || plan.Tunnels[0].Shares[0] != share) {
			t.Errorf("%+v: tunnels %+v", c, plan.Tunnels)
		}
		if err := plan.Unreached; (err != nil) != (c.fails != "") ||
			err != nil && !strings.Contains(err.Error(), c.fails) {
			t.Errorf("%+v: unreached: %v", c, err)
		}
		without := plan.Without(WireGuard).Routes
		if _, there := without[share]; there != (c.want != "" && c.want != "wireguard") {
			t.Errorf("%+v: without WireGuard there is a way: %v", c, there)
		}
		wished := c.own == wireguard.Elsewhere || c.own == wireguard.Everywhere || c.other == wireguard.Elsewhere ||
			c.other == wireguard.Everywhere
		if closed := without[w.PodNetworks[0]].Kind == Unreachable; closed != wished {
			t.Errorf("%+v: a default route does not take the packets of pods: %v", c, closed)
		}
	}
}

// TestMakeWithOneKey: of nodes with one key the oldest alone is reached, but for this one's key.
func TestMakeWithOneKey(t *testing.T) {
	me := node("node-1", "10.42.1.0/24", "192.0.2.1")
	keyed := func(name, share string, key byte, age int64) *corev1.Node {
		n := with(node(name, share, "192.0.2.2"), config(overlay.WireGuard))
		n.CreationTimestamp = metav1.Unix(1e9-age, 0)
		endpoint := wireguard.Endpoint{PublicKey: wireguard.Key{key}, Address: netip.MustParseAddr("192.0.2.2"),
			Port: 1, To: wireguard.Everywhere}
		n.Annotations[wireguard.Annotation] = endpoint.String()
		return n
	}
	plan := Make(
		World{Self: "node-1", PodNetworks: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")},
			Overlay: config(overlay.WireGuard),
			Nodes: []*corev1.Node{me, keyed("node-2", "10.42.2.0/24", 2, 0), keyed("node-3", "10.42.3.0/24", 2, 60),
				keyed("node-4", "10.42.4.0/24", 2, 60),
				keyed("node-5", "10.42.5.0/24", 1, 90), keyed("node-6", "10.42.6.0/24", 6, 0)},
			Addresses: nodeaddr.Addresses{Internal: []netip.Addr{self}},
			WireGuard: wireguard.Endpoint{PublicKey: wireguard.Key{1}, Address: self, Port: 1,
				To: wireguard.Everywhere},
			OnLink: func(netip.Addr) bool { return true }})
	var reached []string
	for _, tunnel := range plan.Tunnels {
		reached = append(reached, tunnel.Node)
	}
	if want := []string{"node-3", "node-6"}; !reflect.DeepEqual(reached, want) {
		t.Errorf("reached are %v, want %v", reached, want)
	}
	for _, says := range []string{"nodes node-3 and node-2 have one WireGuard key", "nodes node-3 and node-4",
		"nodes node-1 and node-5"} {
		if err := plan.Unreached; err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q is not said: %v", says, err)
		}
	}
	for _, share := range []string{"10.42.2.0/24", "10.42.4.0/24", "10.42.5.0/24"} {
		if route, there := plan.Routes[netip.MustParsePrefix(share)]; there {
			t.Errorf("a way to %s: %v", share, route)
		}
	}
}
