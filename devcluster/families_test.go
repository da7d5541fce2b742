package devcluster

import (
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/barque/barque/internal/apart"
	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/internal/osthread"
)

func TestParseFamilies(t *testing.T) {
	for text, want := range map[string]string{
		"ipv4": "ipv4", "ipv6": "ipv6", "IPv4,IPv6": "ipv4,ipv6", "ipv6, ipv4": "ipv6,ipv4",
		"": "!", "ipv5": "!", "ipv4,ipv4": "!", "ipv4,ipv6,ipv4": "!", "dual": "!",
	} {
		families, err := ParseFamilies(strings.Split(text, ","))
		var names []string
		for _, f := range families {
			names = append(names, string(f))
		}
		if refused := (*WrongError)(nil); want == "!" && !errors.As(err, &refused) ||
			want != "!" && (err != nil || strings.Join(names, ",") != want) {
			t.Errorf("%q: %v, %v; want %s", text, names, err, want)
		}
	}
}

// A node gets its addresses, and a server the cluster's ranges, in the order of the families. The
// user's ranges come later in the arguments, and take precedence.
func TestArgumentsOfFamilies(t *testing.T) {
	for _, c := range []struct {
		families           []Family
		ips, pods, service string
		all                int
	}{
		{nil, "10.77.0.11", "", "", 1},
		{[]Family{IPv4}, "10.77.0.11", "", "", 1},
		{[]Family{IPv4, IPv6}, "10.77.0.11,fd00:10:77::11", "10.42.0.0/16,fd00:42::/56", "10.43.0.0/16,fd00:43::/112",
			2},
		{[]Family{IPv6, IPv4}, "fd00:10:77::11,10.77.0.11", "fd00:42::/56,10.42.0.0/16", "fd00:43::/112,10.43.0.0/16",
			2},
		{[]Family{IPv6}, "fd00:10:77::11", "fd00:42::/56", "fd00:43::/112", 2},
	} {
		p := &Plan{Name: "x", Dir: "/d", Families: c.families, Subnet: netip.MustParsePrefix("10.77.0.0/24"),
			Args: []string{"--cluster-cidr=mine"}}
		if c.all == 2 {
			p.Subnet6 = netip.MustParsePrefix("fd00:10:77::/64")
		}
		p.Nodes = []Node{p.newNode("s1", Server, 11), p.newNode("a1", Agent, 21)}
		server, agent := p.nodeArgs(&p.Nodes[0]), p.nodeArgs(&p.Nodes[1])
		is := func(args []string, flag, want string) bool {
			return hasFlag(args, flag, func(v string) bool { return v == want })
		}
		if !is(server, "--node-ip", c.ips) ||
			c.pods != "" && (!is(server, "--cluster-cidr", c.pods) || !is(server, "--service-cidr", c.service)) {
			t.Errorf("%v: the server has %q", c.families, server)
		}
		if last := strings.Join(server, " "); strings.LastIndex(last, "--cluster-cidr") != strings.Index(last,
			"--cluster-cidr=mine") {
			t.Errorf("%v: the user's range does not come last: %s", c.families, last)
		}
		if strings.Contains(strings.Join(agent, " "), "--service-cidr") || len(p.Nodes[1].addresses()) != c.all {
			t.Errorf("%v: the agent has %q and the addresses %v", c.families, agent, p.Nodes[1].addresses())
		}
		if got := p.apiAddr(&p.Nodes[0]); !netip.MustParseAddrPort(got).IsValid() {
			t.Errorf("%v: the API is at %s", c.families, got)
		}
	}
}

// The nodes have addresses and routes of both families at once, and again after an interrupted
// start.
func TestNetworkOfTwoFamilies(t *testing.T) {
	if !apart.Run(t, apart.Network, await.Hang, "a dev cluster's network with IPv6") {
		return
	}
	o := Options{Name: ownName("f"), Dir: t.TempDir(), Servers: 1, Families: []Family{IPv6}}
	p, err := takeNetwork(t.Context(), nil, o)
	if err != nil {
		t.Fatal(err)
	}
	n := &p.Nodes[0]
	t.Cleanup(func() {
		if err := p.removeNamespace(n); err != nil {
			t.Error(err)
		}
	})
	for range 2 {
		if _, err := takeNetwork(t.Context(), p, o); err != nil {
			t.Fatal(err)
		}
		if err := p.makeNamespace(n); err != nil {
			t.Fatal(err)
		}
	}
	err = osthread.InNetwork(p.netns(n), func() error {
		for _, outside := range []string{"192.0.2.1", "2001:db8::1"} {
			ways, err := netlink.RouteGet(netip.MustParseAddr(outside).AsSlice())
			if err != nil || len(ways) != 1 ||
				!ways[0].Gw.Equal(gateway(p.subnetOf(netip.MustParseAddr(outside))).AsSlice()) {
				t.Errorf("the way to %s is %v, %v", outside, ways, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.giveNetworkBack(t.Context()); err != nil {
		t.Error(err)
	}
	if data, err := os.ReadFile(forward6.file); err != nil || strings.TrimSpace(string(data)) != p.Forwarding6 {
		t.Errorf("%s is %s, %v; it was %s", forward6.name, data, err, p.Forwarding6)
	}
}
