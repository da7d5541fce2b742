package speaker

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"

	"github.com/barque/barque/internal/apart"
)

// routerAS and nodesAS are the autonomous systems of the tests.
const routerAS, nodesAS = 64512, 4200000001

// alone runs a test in a network of its own: a router takes the ports 179 and 3784.
func alone(t *testing.T) bool {
	t.Helper()
	return apart.Run(t, apart.Network, 10*time.Minute, "BGP with a router")
}

// router is gobgp's own server, on loopback.
type router struct {
	*server.BgpServer
	at netip.AddrPort
}

// neighbour is a node as the router knows it.
type neighbour struct {
	address, password string
	as                uint32
	restart           bool
}

func newRouter(t *testing.T, neighbours ...neighbour) *router {
	t.Helper()
	at := netip.MustParseAddrPort("127.0.0.1:179")
	r := &router{server.NewBgpServer(server.LoggerOption(slog.New(slog.DiscardHandler), nil)), at}
	go r.Serve() // ends with Stop
	t.Cleanup(r.Stop)
	err := r.StartBgp(t.Context(), &api.StartBgpRequest{Global: &api.Global{
		Asn: routerAS, RouterId: "192.0.2.254", ListenAddresses: []string{"127.0.0.1"}, ListenPort: int32(at.Port()),
		UseMultiplePaths: true,
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range neighbours {
		var families []*api.AfiSafi
		for _, f := range []bgp.Family{bgp.RF_IPv4_UC} {
			families = append(families, &api.AfiSafi{
				Config:            &api.AfiSafiConfig{Family: apiutil.ToApiFamily(f.Afi(), f.Safi()), Enabled: true},
				MpGracefulRestart: &api.MpGracefulRestart{Config: &api.MpGracefulRestartConfig{Enabled: n.restart}},
			})
		}
		if err := r.AddPeer(t.Context(), &api.AddPeerRequest{Peer: &api.Peer{
			Conf:            &api.PeerConf{NeighborAddress: n.address, PeerAsn: n.as, AuthPassword: n.password},
			Transport:       &api.Transport{PassiveMode: true},
			GracefulRestart: &api.GracefulRestart{Enabled: n.restart, RestartTime: 60},
			Timers: &api.Timers{Config: &api.TimersConfig{HoldTime: 9, KeepaliveInterval: 3,
				IdleHoldTimeAfterReset: 1}},
			AfiSafis: families,
		}}); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// table returns the router's routes as text, one a line.
func (r *router) table(t *testing.T) []string {
	t.Helper()
	var out []string
	err := r.ListPath(apiutil.ListPathRequest{TableType: api.TableType_TABLE_TYPE_GLOBAL, Family: bgp.RF_IPv4_UC},
		func(prefix bgp.NLRI, paths []*apiutil.Path) {
			for _, p := range paths {
				text := []string{prefix.String()}
				for _, a := range p.Attrs {
					text = append(text, a.String())
				}
				if p.Stale {
					text = append(text, "stale")
				}
				out = append(out, strings.Join(text, " "))
			}
		})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(out)
	return out
}

const patience = time.Minute

// eventually waits until the router's routes are these.
func (r *router) eventually(t *testing.T, want ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for tick := time.NewTicker(20 * time.Millisecond); ; {
		got := r.table(t)
		if slices.Equal(got, want) {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("the router has %d routes:\n%s\nand not %d:\n%s", len(got),
				strings.Join(got[:min(len(got), 10)], "\n"), len(want), strings.Join(want[:min(len(want), 10)], "\n"))
		}
	}
}

// node is a Speaker, and the changes of its sessions.
type node struct {
	*Speaker
	changes chan Session
}

func newNode(t *testing.T, id string) *node {
	n := &node{changes: make(chan Session, 1000)}
	n.Speaker = New(Config{ID: netip.MustParseAddr(id), Changed: func(s Session) { n.changes <- s }})
	t.Cleanup(func() { n.Stop(ErrLeaving) })
	return n
}

// reaches waits until a session is as wanted.
func (n *node) reaches(t *testing.T, wanted string, is func(Session) bool) Session {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		select {
		case s := <-n.changes:
			if is(s) {
				return s
			}
		case <-ctx.Done():
			t.Fatalf("the session is never %s; it is %+v", wanted, n.Sessions())
		}
	}
}

func established(s Session) bool { return s.State == Established }

func (r *router) peer(source string) Peer {
	return Peer{Name: "r", Address: r.at, AS: routerAS, LocalAS: nodesAS, HoldTime: 9 * time.Second,
		RestartTime: time.Minute, Source: netip.MustParseAddr(source)}
}

func routesTo(of Attributes, prefixes ...string) map[netip.Prefix]Attributes {
	out := map[netip.Prefix]Attributes{}
	for _, p := range prefixes {
		out[netip.MustParsePrefix(p)] = of
	}
	return out
}

// row is a route as the router's table has it.
func row(prefix, next, more string) string {
	return strings.TrimSpace(fmt.Sprintf("%s {Origin: i} {AsPath: %d} {Nexthop: %s} %s", prefix, nodesAS, next, more))
}

// TestECMP: two nodes announce the same addresses, with communities. The router has both, and
// follows changes.
func TestECMP(t *testing.T) {
	if !alone(t) {
		return
	}
	r := newRouter(t, neighbour{address: "127.0.0.2", as: nodesAS}, neighbour{address: "127.0.0.3", as: nodesAS})
	with := Attributes{Communities: []uint32{64512<<16 | 100, 0xFFFFFF01}, LargeCommunities: [][3]uint32{{64512, 1, 2}}}
	const communities = "{Communities: 64512:100, no-export} {LargeCommunity: [ 64512:1:2]}"
	a, b := newNode(t, "127.0.0.2"), newNode(t, "127.0.0.3")
	a.SetRoutes(routesTo(with, "198.51.100.1/32", "198.51.100.2/32"))
	b.SetRoutes(routesTo(with, "198.51.100.1/32"))
	a.SetPeers([]Peer{r.peer("127.0.0.2")})
	b.SetPeers([]Peer{r.peer("127.0.0.3")})
	r.eventually(t, row("198.51.100.1/32", "127.0.0.2", communities), row("198.51.100.1/32", "127.0.0.3", communities),
		row("198.51.100.2/32", "127.0.0.2", communities))
	a.reaches(t, "of two routes", func(s Session) bool { return s.Routes == 2 })
	a.SetRoutes(routesTo(Attributes{}, "198.51.100.2/32", "198.51.100.3/32"))
	r.eventually(t, row("198.51.100.1/32", "127.0.0.3", communities), row("198.51.100.2/32", "127.0.0.2", ""),
		row("198.51.100.3/32", "127.0.0.2", ""))
	a.SetRoutes(nil)
	b.SetPeers(nil) // ends the session
	r.eventually(t)
}

// TestManyRoutes: more than a message has room for, and withdrawn again.
func TestManyRoutes(t *testing.T) {
	if !alone(t) {
		return
	}
	r := newRouter(t, neighbour{address: "127.0.0.2", as: nodesAS})
	n, routes := newNode(t, "127.0.0.2"), map[netip.Prefix]Attributes{}
	var want []string
	for i := range 1000 {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}), 32)
		routes[p] = Attributes{Communities: []uint32{uint32(i%3 + 1)}}
		want = append(want, row(p.String(), "127.0.0.2", fmt.Sprintf("{Communities: 0:%d}", i%3+1)))
	}
	slices.Sort(want)
	n.SetRoutes(routes)
	n.SetPeers([]Peer{r.peer("127.0.0.2")})
	r.eventually(t, want...)
	few := maps.Clone(routes)
	maps.DeleteFunc(few, func(p netip.Prefix, _ Attributes) bool { return p != netip.MustParsePrefix("198.18.0.7/32") })
	n.SetRoutes(few)
	r.eventually(t, row("198.18.0.7/32", "127.0.0.2", "{Communities: 0:2}"))
}

// TestInternalPeer: within an AS routes have no path, and a preference.
func TestInternalPeer(t *testing.T) {
	if !alone(t) {
		return
	}
	r := newRouter(t, neighbour{address: "127.0.0.2", as: routerAS})
	n, p := newNode(t, "127.0.0.2"), r.peer("127.0.0.2")
	p.LocalAS = routerAS
	n.SetRoutes(routesTo(Attributes{LocalPreference: 250}, "198.51.100.1/32"))
	n.SetPeers([]Peer{p})
	r.eventually(t, "198.51.100.1/32 {Origin: i} {AsPath: } {Nexthop: 127.0.0.2} {LocalPref: 250}")
}

// TestPassword: a session needs the router's password.
func TestPassword(t *testing.T) {
	if !alone(t) {
		return
	}
	r := newRouter(t, neighbour{address: "127.0.0.2", as: nodesAS, password: "a secret"})
	n, p := newNode(t, "127.0.0.2"), r.peer("127.0.0.2")
	n.SetRoutes(routesTo(Attributes{}, "198.51.100.1/32"))
	n.SetPeers([]Peer{p})
	n.reaches(t, "refused", func(s Session) bool { return strings.Contains(s.Problem, "it wants a password") })
	p.Password = "another one"
	n.SetPeers([]Peer{p})
	n.reaches(t, "refused", func(s Session) bool { return strings.Contains(s.Problem, "it has another password") })
	if got := r.table(t); len(got) > 0 {
		t.Errorf("the router has %q", got)
	}
	p.Password = "a secret"
	n.SetPeers([]Peer{p})
	r.eventually(t, row("198.51.100.1/32", "127.0.0.2", ""))
}

// TestGracefulRestart: the router keeps the routes of a node that is away, and drops those that it
// does not announce again. A node that leaves takes its routes along.
func TestGracefulRestart(t *testing.T) {
	if !alone(t) {
		return
	}
	r := newRouter(t, neighbour{address: "127.0.0.2", as: nodesAS, restart: true})
	n := newNode(t, "127.0.0.2")
	n.SetRoutes(routesTo(Attributes{}, "198.51.100.1/32", "198.51.100.2/32"))
	n.SetPeers([]Peer{r.peer("127.0.0.2")})
	if s := n.reaches(t, "established", established); !s.Restart {
		t.Error("the router does not keep routes over a restart, the session says")
	}
	r.eventually(t, row("198.51.100.1/32", "127.0.0.2", ""), row("198.51.100.2/32", "127.0.0.2", ""))
	n.Stop(ErrAway)
	stale := []string{row("198.51.100.1/32", "127.0.0.2", "stale"), row("198.51.100.2/32", "127.0.0.2", "stale")}
	r.eventually(t, stale...)
	again := newNode(t, "127.0.0.2")
	again.SetRoutes(routesTo(Attributes{}, "198.51.100.1/32"))
	again.SetPeers([]Peer{r.peer("127.0.0.2")})
	again.reaches(t, "established", established)
	r.eventually(t, row("198.51.100.1/32", "127.0.0.2", ""))
	again.Stop(ErrLeaving)
	r.eventually(t)
}

// TestWithoutGracefulRestart: a router that does not keep routes is told of the end, and drops
// them.
func TestWithoutGracefulRestart(t *testing.T) {
	if !alone(t) {
		return
	}
	r := newRouter(t, neighbour{address: "127.0.0.2", as: nodesAS})
	n := newNode(t, "127.0.0.2")
	n.SetRoutes(routesTo(Attributes{}, "198.51.100.1/32"))
	n.SetPeers([]Peer{r.peer("127.0.0.2")})
	r.eventually(t, row("198.51.100.1/32", "127.0.0.2", ""))
	if s := n.Sessions(); len(s) != 1 || s[0].Restart {
		t.Errorf("the sessions are %+v", s)
	}
	n.Stop(ErrAway)
	r.eventually(t)
}

// TestTheRoutersSideIsRead: what the router says is in the session, and a session that it has ended
// comes again.
func TestTheRoutersSideIsRead(t *testing.T) {
	if !alone(t) {
		return
	}
	r := newRouter(t, neighbour{address: "127.0.0.2", as: nodesAS}, neighbour{address: "127.0.0.3", as: 65000})
	n := newNode(t, "127.0.0.2")
	n.SetRoutes(routesTo(Attributes{}, "198.51.100.1/32"))
	wrong := r.peer("127.0.0.3")
	wrong.AS, wrong.LocalAS = routerAS+1, 65000
	wrong.Name = "wrong"
	n.SetPeers([]Peer{r.peer("127.0.0.2"), wrong})
	n.reaches(t, "refused", func(s Session) bool {
		return s.Peer == "wrong" && s.Problem == "the router is of AS 64512, and the BGPPeer says 64513"
	})
	r.eventually(t, row("198.51.100.1/32", "127.0.0.2", ""))
	err := r.ShutdownPeer(t.Context(), &api.ShutdownPeerRequest{Address: "127.0.0.2",
		Communication: "works on\nthe rack"})
	if err != nil {
		t.Fatal(err)
	}
	n.reaches(t, "ended by the router", func(s Session) bool {
		return strings.Contains(s.Problem, "the router has ended the session") &&
			strings.Contains(s.Problem, ": works on the rack")
	})
	if err := r.EnablePeer(t.Context(), &api.EnablePeerRequest{Address: "127.0.0.2"}); err != nil {
		t.Fatal(err)
	}
	n.reaches(t, "established again", established)
	r.eventually(t, row("198.51.100.1/32", "127.0.0.2", ""))
}

// TestRoutesOfThePeer: routes of a router are not announced to another one.
func TestRoutesOfThePeer(t *testing.T) {
	if !alone(t) {
		return
	}
	r := newRouter(t, neighbour{address: "127.0.0.2", as: nodesAS}, neighbour{address: "127.0.0.3", as: nodesAS})
	next, err := bgp.NewPathAttributeNextHop(netip.MustParseAddr("127.0.0.1"))
	if err != nil {
		t.Fatal(err)
	}
	of, err := bgp.NewIPAddrPrefix(netip.MustParsePrefix("203.0.113.0/24"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.AddPath(apiutil.AddPathRequest{Paths: []*apiutil.Path{{Family: bgp.RF_IPv4_UC, Nlri: of,
		Attrs: []bgp.PathAttributeInterface{bgp.NewPathAttributeOrigin(0), next}}}}); err != nil {
		t.Fatal(err)
	}
	n, first, second := newNode(t, "127.0.0.2"), r.peer("127.0.0.2"), r.peer("127.0.0.3")
	second.Name = "s"
	n.SetRoutes(routesTo(Attributes{}, "198.51.100.1/32"))
	n.SetPeers([]Peer{first, second})
	own := "203.0.113.0/24 {Origin: i} {Nexthop: 127.0.0.1}"
	r.eventually(t, row("198.51.100.1/32", "127.0.0.2", ""), row("198.51.100.1/32", "127.0.0.3", ""), own)
	for _, s := range n.Sessions() {
		if s.Routes != 1 {
			t.Errorf("%d routes are announced to %s", s.Routes, s.Peer)
		}
	}
}
