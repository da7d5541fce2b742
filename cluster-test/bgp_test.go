package clustertest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"
	"github.com/vishvananda/netlink"

	"github.com/barque/barque/cluster-test/netspace"
	"github.com/barque/barque/internal/needs"
)

// routerVariable makes a process of this test a router.
const routerVariable = "BARQUE_TEST_ROUTER"

const (
	routerAS, nodesAS = 64512, 4200000001
	bgpPassword       = "a password of the test"
	bgpAddress        = "198.51.100.1"
)

func init() {
	if text := os.Getenv(routerVariable); text != "" {
		if err := route(strings.Split(text, " ")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// route is a process that is a router, gobgp's own server. Each line on its standard input asks for
// its table, which it writes in a line. It ends with its input.
func route(neighbours []string) error {
	ctx := context.Background()
	r := server.NewBgpServer(server.LoggerOption(slog.New(slog.NewTextHandler(os.Stderr, nil)), nil))
	go r.Serve() // ends with the process
	if err := r.StartBgp(ctx, &api.StartBgpRequest{Global: &api.Global{Asn: routerAS, RouterId: "192.0.2.254",
		UseMultiplePaths: true}}); err != nil {
		return err
	}
	for _, n := range neighbours {
		err := r.AddPeer(ctx, &api.AddPeerRequest{Peer: &api.Peer{
			Conf:            &api.PeerConf{NeighborAddress: n, PeerAsn: nodesAS, AuthPassword: bgpPassword},
			Transport:       &api.Transport{PassiveMode: true},
			GracefulRestart: &api.GracefulRestart{Enabled: true, RestartTime: 60},
			Timers: &api.Timers{Config: &api.TimersConfig{HoldTime: 90, KeepaliveInterval: 30,
				IdleHoldTimeAfterReset: 1}},
			AfiSafis: []*api.AfiSafi{{
				Config: &api.AfiSafiConfig{Family: apiutil.ToApiFamily(bgp.AFI_IP, bgp.SAFI_UNICAST),
					Enabled: true},
				MpGracefulRestart: &api.MpGracefulRestart{Config: &api.MpGracefulRestartConfig{Enabled: true}},
			}},
		}})
		if err != nil {
			return err
		}
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		table := map[string][]string{}
		err := r.ListPath(apiutil.ListPathRequest{TableType: api.TableType_TABLE_TYPE_GLOBAL, Family: bgp.RF_IPv4_UC},
			func(prefix bgp.NLRI, paths []*apiutil.Path) {
				for _, p := range paths {
					table[prefix.String()] = append(table[prefix.String()], pathText(p))
				}
				slices.Sort(table[prefix.String()])
			})
		if err != nil {
			return err
		}
		line, err := json.Marshal(table)
		if err != nil {
			return err
		}
		fmt.Println(string(line))
	}
	return nil
}

// pathText has the next hop and the communities of a path.
func pathText(p *apiutil.Path) string {
	var next, communities string
	for _, a := range p.Attrs {
		switch a := a.(type) {
		case *bgp.PathAttributeNextHop:
			next = a.Value.String()
		case *bgp.PathAttributeCommunities:
			communities = " " + a.String()
		}
	}
	if p.Stale {
		communities += " stale"
	}
	return next + communities
}

// router is that process, in a network namespace of its own on the cluster's bridge.
type router struct {
	netspace.Space
	addr netip.Addr

	mu  sync.Mutex
	in  io.Writer
	out *bufio.Scanner
}

func newRouter(t *testing.T, c *Cluster, neighbours []string) *router {
	t.Helper()
	link, err := net.InterfaceByName("bq-" + c.ID)
	if err != nil {
		t.Fatal(err)
	}
	space, err := netspace.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { space.Close() })
	four := netip.MustParseAddr(neighbours[0]).As4()
	four[3] = 253
	r := &router{Space: space, addr: netip.AddrFrom4(four)}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MasterIndex = c.ID+"-r", link.Index
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(space.NsHandle)}
	if err := errors.Join(netlink.LinkAdd(veth), netlink.LinkSetUp(veth)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netlink.LinkDel(veth); err != nil {
			t.Error(err)
		}
	})
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	process := exec.Command(path)
	process.Env = append(os.Environ(), routerVariable+"="+strings.Join(neighbours, " "))
	process.Stderr = t.Output()
	in, err := process.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	err = space.Do(func() error {
		eth0, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return errors.Join(netlink.AddrAdd(eth0, &netlink.Addr{IPNet: &net.IPNet{IP: r.addr.AsSlice(),
			Mask: net.CIDRMask(24, 32)}}), netlink.LinkSetUp(eth0), process.Start())
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := process.Wait(); err != nil {
			t.Errorf("the router: %v", err)
		}
	})
	r.in, r.out = in, bufio.NewScanner(out)
	return r
}

// table is the router's: of each prefix the paths.
func (r *router) table() (map[string][]string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, err := io.WriteString(r.in, "table\n"); err != nil {
		return nil, err
	}
	if !r.out.Scan() {
		return nil, errors.Join(errors.New("the router has ended"), r.out.Err())
	}
	var table map[string][]string
	return table, json.Unmarshal(r.out.Bytes(), &table)
}

// has returns a function that compares the paths of an address with these.
func (r *router) has(address string, want ...string) func(context.Context) error {
	return func(context.Context) error {
		table, err := r.table()
		if err != nil {
			return err
		}
		if got := table[address+"/32"]; !slices.Equal(got, want) {
			return fmt.Errorf("of %s it has %q, want %q; the table is %q", address, got, want, table)
		}
		return nil
	}
}

// get asks an address over one next hop, as the router would lead a client's packets.
func (r *router) get(ctx context.Context, address, next string) error {
	to := &netlink.Route{Dst: &net.IPNet{IP: net.ParseIP(address).To4(), Mask: net.CIDRMask(32, 32)},
		Gw: net.ParseIP(next).To4()}
	if err := r.Do(func() error { return netlink.RouteReplace(to) }); err != nil {
		return err
	}
	var conn net.Conn
	err := r.Do(func() (err error) {
		// One address is dialled on the calling goroutine, and so on this thread.
		conn, err = (&net.Dialer{FallbackDelay: -1}).DialContext(ctx, "tcp", net.JoinHostPort(address, "80"))
		return err
	})
	if err != nil {
		return fmt.Errorf("by %s: %w", next, err)
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return err
		}
	}
	if _, err := io.WriteString(conn, "GET / HTTP/1.0\r\nHost: x\r\n\r\n"); err != nil {
		return err
	}
	answer, err := io.ReadAll(conn)
	if err == nil && !strings.Contains(string(answer), "Hello from web-") {
		err = fmt.Errorf("by %s the answer is %q", next, answer)
	}
	return err
}

// TestBGP: nodes announce an address of a Service to a router, which asks for a password, and serve
// what it sends them. The router follows labels, endpoints and pools, and keeps the routes of a
// process that is killed.
func TestBGP(t *testing.T) {
	needs.AllTests(t)
	t.Parallel()
	images, err := testRegistry()
	if err != nil {
		t.Fatal(err)
	}
	c := Start(t, Options{Servers: 2, Agents: 1, Registry: images})
	s := NewSpace(t, c)
	Eventually(t, deadline, "a whole cluster", c.Healthy)
	var hops, paths []string
	for _, n := range c.Nodes() {
		hops = append(hops, c.address(t, n))
	}
	slices.Sort(hops)
	for _, h := range hops {
		paths = append(paths, h+" {Communities: 64512:100}")
	}
	r := newRouter(t, c, hops)
	s.K("create", "deployment", "web", "--image=barque.local/hello:1")
	s.Apply(fmt.Sprintf(`
apiVersion: edge.barque.io/v1
kind: BGPPeer
metadata: {name: rack}
spec: {address: %s, as: %d, localAS: %d, passwordSecret: rack}
---
apiVersion: edge.barque.io/v1
kind: AddressPool
metadata: {name: routed}
spec: {addresses: [198.51.100.0/28], announce: [BGP], bgp: {communities: ["64512:100"]}}
`, r.addr, routerAS, nodesAS))
	s.Run("definitions", checkBGPDefinitions)
	Eventually(t, deadline, "the missing Secret in the status", func(ctx context.Context) error {
		return c.says(ctx, "BGP sessions are missing", "the Secret kube-system/rack of the password is not there")
	})
	c.Kubectl(t, "-n", "kube-system", "create", "secret", "generic", "rack", "--from-literal=password="+bgpPassword)
	t.Cleanup(func() { c.KubectlResult(context.Background(), "", "-n", "kube-system", "delete", "secret", "rack") })
	s.K("expose", "deployment", "web", "--type=LoadBalancer", "--port=80", "--target-port=8080",
		`--overrides={"metadata":{"annotations":{"barque.io/load-balancer-ips":"`+bgpAddress+`"}}}`)
	Eventually(t, deadline, "the routes of all nodes", r.has(bgpAddress, paths...))
	for _, hop := range hops {
		Eventually(t, deadline, "the Service by "+hop, func(ctx context.Context) error {
			ctx, cancel := TryOnce(ctx)
			defer cancel()
			return r.get(ctx, bgpAddress, hop)
		})
	}
	Eventually(t, deadline, "the sessions in the status", func(ctx context.Context) error {
		return c.says(ctx, "3 of 3 sessions of 3 nodes established")
	})
	s.Run("labels", func(s *Space) { checkBGPLabels(s, r, paths) })
	s.Run("local", func(s *Space) { checkBGPLocal(s, r) })
	s.Run("restart", func(s *Space) { checkBGPRestart(s, r, paths) })
	s.Run("arp", func(s *Space) { checkBGPByARP(s, r) })
}

// says reports whether the status has all of these texts.
func (c *Cluster) says(ctx context.Context, texts ...string) error {
	out := c.BarqueResult(ctx, "cluster", "status").Out
	flat := strings.Join(strings.Fields(out), " ") // lines are wrapped
	for _, text := range texts {
		if !strings.Contains(flat, text) {
			return fmt.Errorf("the status lacks %q:\n%s", text, out)
		}
	}
	return nil
}

// checkBGPDefinitions: what cannot work is refused, and the reason is told.
func checkBGPDefinitions(s *Space) {
	const usual = "address: 192.0.2.1, as: 64512, localAS: 64513"
	for spec, want := range map[string]string{
		"address: router, as: 64512, localAS: 64513":                     "must be an IP address, such as 192.0.2.1 or 2001:db8::1",
		"address: 127.0.0.1, as: 64512, localAS: 64513":                  "must be the address of another machine",
		"address: 192.0.2.1, as: 0, localAS: 64513":                      "should be greater than or equal to 1",
		"address: 192.0.2.1, as: 64512":                                  "Required value",
		usual + ", holdTimeSeconds: 2":                                   "should be greater than or equal to 3",
		usual + ", sourceAddress: '2001:db8::1'":                         "sourceAddress and address must be of one family",
		"address: 192.0.2.1, as: 64512, localAS: 64512, ebgpMultihop: 2": "ebgpMultihop is for a peer of another AS",
	} {
		r := s.ApplyResult("apiVersion: edge.barque.io/v1\nkind: BGPPeer\nmetadata: {name: wrong}\nspec: {" + spec + "}\n")
		if r.Error == nil || !strings.Contains(r.Err, want) {
			s.Errorf("a peer with %s: %s%s; want %s", spec, r.Out, r.Err, want)
		}
	}
	for spec, want := range map[string]string{
		"announce: [OSPF]":                       "Unsupported value",
		"bgp: {communities: ['70000:1']}":        "must be two numbers up to 65535 such as 64512:100",
		"bgp: {communities: ['1:2:4294967296']}": "must be two numbers up to 65535 such as 64512:100",
	} {
		r := s.ApplyResult("apiVersion: edge.barque.io/v1\nkind: AddressPool\nmetadata: {name: wrong}\n" +
			"spec: {addresses: [203.0.113.0/30], " + spec + "}\n")
		if r.Error == nil || !strings.Contains(r.Err, want) {
			s.Errorf("a pool with %s: %s%s; want %s", spec, r.Out, r.Err, want)
		}
	}
}

// checkBGPLabels: a node that is left out withdraws, and announces again when it is not.
func checkBGPLabels(s *Space, r *router, paths []string) {
	const label = "node.kubernetes.io/exclude-from-external-load-balancers"
	own := s.address(s, "s2")
	s.Kubectl(s, "label", "node", "s2", label+"=")
	Eventually(s, deadline, "the withdrawal", r.has(bgpAddress,
		slices.DeleteFunc(slices.Clone(paths), func(p string) bool { return strings.HasPrefix(p, own+" ") })...))
	s.Kubectl(s, "label", "node", "s2", label+"-")
	Eventually(s, deadline, "the route again", r.has(bgpAddress, paths...))
}

// checkBGPLocal: with the policy Local only nodes with an endpoint announce.
func checkBGPLocal(s *Space, r *router) {
	s.K("expose", "deployment", "web", "--name=local", "--type=LoadBalancer", "--port=81", "--target-port=8080",
		`--overrides={"spec":{"externalTrafficPolicy":"Local"},`+
			`"metadata":{"annotations":{"barque.io/load-balancer-ips":"198.51.100.2"}}}`)
	node := s.K("get", "pods", "-l", "app=web", "-o", "jsonpath={.items[0].spec.nodeName}")
	Eventually(s, deadline, "the route of "+node, r.has("198.51.100.2", s.address(s, node)+" {Communities: 64512:100}"))
	s.K("delete", "service", "local")
	Eventually(s, deadline, "the withdrawal", r.has("198.51.100.2"))
}

// checkBGPRestart: of a process that is killed or stopped, and started again, the router keeps the
// routes, at each look.
func checkBGPRestart(s *Space, r *router, paths []string) {
	for how, end := range map[string]func() error{
		"killed": func() error { return s.KillNodes(s.Context(), "a1") },
		"stopped": func() error {
			s.Dev(s, "stop", "a1")
			return nil
		},
	} {
		s.Run(how, func(s *Space) { checkBGPAway(s, r, paths, end) })
	}
}

func checkBGPAway(s *Space, r *router, paths []string, end func() error) {
	own := s.address(s, "a1")
	kept := func() error {
		table, err := r.table()
		if err != nil {
			return err
		}
		for _, p := range table[bgpAddress+"/32"] {
			if strings.HasPrefix(p, own+" ") {
				return nil
			}
		}
		s.Errorf("the router has lost the route of a1: %q", table)
		return nil
	}
	if err := end(); err != nil {
		s.Fatal(err)
	}
	Eventually(s, deadline, "the stale route", func(context.Context) error {
		table, err := r.table()
		if err == nil && !slices.Contains(table[bgpAddress+"/32"], own+" {Communities: 64512:100} stale") {
			err = fmt.Errorf("the routes are %q", table)
		}
		return errors.Join(err, kept())
	})
	if err := r.get(s.Context(), bgpAddress, own); err != nil {
		s.Errorf("without its process the node leads no packets on: %v", err)
	}
	s.Dev(s, "start", "a1")
	Eventually(s, deadline, "the routes of a1 again", func(ctx context.Context) error {
		return errors.Join(kept(), r.has(bgpAddress, paths...)(ctx))
	})
	Eventually(s, deadline, "a whole cluster", s.Healthy)
}

// checkBGPByARP: a pool that goes over to ARP is withdrawn, and one node answers.
func checkBGPByARP(s *Space, r *router) {
	s.Kubectl(s, "patch", "addresspool", "routed", "--type=merge", "-p", `{"spec":{"announce":["ARP"]}}`)
	Eventually(s, deadline, "the withdrawal", r.has(bgpAddress))
	Eventually(s, deadline, "a node that answers", func(ctx context.Context) error {
		status, err := s.Status(ctx)
		if err != nil {
			return err
		}
		for _, a := range status.Addresses {
			if a.Address == bgpAddress && a.Node != "" {
				return nil
			}
		}
		return fmt.Errorf("the addresses are %+v", status.Addresses)
	})
}
