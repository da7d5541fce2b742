package proxy

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/barque/barque/internal/await"
)

// TestPrivate: a neighbour with a route does not reach an address at which the node itself answers.
func TestPrivate(t *testing.T) {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	kernel := inNamespace(t)
	kernel.local = []netip.Addr{netip.MustParseAddr("169.254.20.53")}
	node, err := netns.Get()
	must(err)
	defer node.Close()
	neighbour, err := netns.New() // the thread is in it now
	must(err)
	defer neighbour.Close()
	link := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "eth0", PeerNamespace: netlink.NsFd(node)}
	link.Name = "eth0"
	must(netlink.LinkAdd(link))
	address := func(link, cidr string) {
		t.Helper()
		to, err := netlink.LinkByName(link)
		must(err)
		must(netlink.LinkSetUp(to))
		addr, err := netlink.ParseAddr(cidr)
		must(err)
		must(netlink.AddrReplace(to, addr))
	}
	address("eth0", "192.0.2.2/24")
	address("eth0", "10.42.0.7/32")
	eth0, err := netlink.LinkByName("eth0")
	must(err)
	private, err := netlink.ParseIPNet("169.254.20.53/32")
	must(err)
	must(netlink.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Dst: private, Gw: net.IPv4(192, 0, 2, 1)}))

	must(netns.Set(node))
	address("eth0", "192.0.2.1/24")
	address("lo", "169.254.20.53/32")
	pod, err := netlink.ParseIPNet("10.42.0.7/32")
	must(err)
	inner, err := netlink.LinkByName("eth0")
	must(err)
	must(netlink.RouteAdd(&netlink.Route{LinkIndex: inner.Attrs().Index, Dst: pod, Scope: netlink.SCOPE_LINK}))
	must(kernel.replace(emptyRules()))
	server, err := net.ListenPacket("udp4", "169.254.20.53:10053")
	must(err)
	defer server.Close()
	must(server.SetReadDeadline(time.Now().Add(await.Hang)))
	send := func(source string) {
		t.Helper()
		client, err := net.ListenPacket("udp4", source+":0")
		must(err)
		defer client.Close()
		_, err = client.WriteTo([]byte("?"), server.LocalAddr())
		must(err)
	}

	for _, allowed := range []struct {
		from   netns.NsHandle
		source string
	}{{neighbour, "10.42.0.7"}, {node, "192.0.2.1"}, {node, "169.254.20.53"}} {
		must(netns.Set(neighbour))
		send("192.0.2.2") // in front of the packet that arrives
		must(netns.Set(allowed.from))
		send(allowed.source)
		_, from, err := server.ReadFrom(make([]byte, 1))
		must(err)
		if got := from.(*net.UDPAddr).IP.String(); got != allowed.source {
			t.Errorf("a packet of %s arrived, want %s", got, allowed.source)
		}
	}
}
