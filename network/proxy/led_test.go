package proxy

import (
	"net"
	"net/netip"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/network/nft"
)

// TestLedToTheNode: a Service without endpoints at a port of the node refuses its clients, and not
// those of an address that another program, as the gateway is, has led to the same port.
func TestLedToTheNode(t *testing.T) {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	kernel := inNamespace(t)
	must(netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "out"}, PeerName: "far"}))
	for _, name := range []string{"lo", "out", "far"} {
		link, err := netlink.LinkByName(name)
		must(err)
		must(netlink.LinkSetUp(link))
		if name == "out" {
			address, err := netlink.ParseAddr("192.0.2.1/24")
			must(err)
			must(netlink.AddrAdd(link, address))
			led, err := netlink.ParseIPNet("198.51.100.7/32")
			must(err)
			must(netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: led}))
		}
	}
	listener, err := net.Listen("tcp", ":8080")
	must(err)
	defer listener.Close()
	rules := emptyRules()
	node := netip.MustParseAddr("192.0.2.1")
	rules.Refused[Frontend{Addr: node, Protocol: corev1.ProtocolTCP, Port: 8080}] = Reject
	must(kernel.replace(rules))
	tx, err := kernel.writer.Begin(nft.Name{Family: nft.IPv4, Table: "other"})
	must(err)
	tx.Clear()
	tx.Rule(tx.Hook("output", nftables.ChainTypeNAT, nftables.ChainHookOutput,
		nftables.ChainPriorityRef(*nftables.ChainPriorityNATDest-1)),
		nft.DestinationIn(netip.MustParsePrefix("198.51.100.7/32"), true),
		[]expr.Any{
			&expr.Immediate{Register: nft.RegA, Data: node.AsSlice()},
			&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: nft.RegA},
		})
	must(tx.Commit("lead an address to the node"))
	for _, c := range []struct {
		addr string
		open bool
	}{{"192.0.2.1:8080", false}, {"198.51.100.7:8080", true}} {
		conn, err := net.DialTimeout("tcp", c.addr, await.Hang)
		if (err == nil) != c.open {
			t.Errorf("%s: %v, want it open: %v", c.addr, err, c.open)
		}
		if err == nil {
			_ = conn.Close()
		}
	}
}
