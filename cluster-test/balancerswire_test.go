package clustertest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/barque/barque/cluster-test/neighbours"
	"github.com/barque/barque/cluster-test/netspace"
)

// outsider is a machine on the cluster's link that is no node. It finds addresses of pools as any
// neighbour does, with its kernel's ARP and neighbour discovery.
type outsider struct {
	netspace.Space
	// own are its addresses: two of each family, the first one of each first.
	own map[bool][]netip.Addr // by Is6
}

var wirePools = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/26"), netip.MustParsePrefix("2001:db8:51::/120")}

// newOutsider plugs a machine into the cluster's link, until the test ends.
func newOutsider(t *testing.T, c *Cluster) *outsider {
	t.Helper()
	space, err := netspace.New()
	if err != nil {
		t.Fatal(err)
	}
	o := &outsider{space, map[bool][]netip.Addr{}}
	t.Cleanup(func() { o.Close() }) // the cable goes with it
	bridge, err := netlink.LinkByName("bq-" + c.ID)
	if err != nil {
		t.Fatal(err)
	}
	cable := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "bq-" + c.ID + "-o", MasterIndex: bridge.Attrs().Index},
		PeerName: "eth0", PeerNamespace: netlink.NsFd(space.NsHandle)}
	if err := netlink.LinkAdd(cable); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netlink.LinkDel(cable); err != nil {
			t.Errorf("remove the outsider's cable: %v", err)
		}
	})
	networks, err := netlink.AddrList(bridge, netlink.FAMILY_ALL)
	if err := errors.Join(err, netlink.LinkSetUp(cable)); err != nil {
		t.Fatal(err)
	}
	err = space.Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return err
		}
		for _, n := range networks {
			if n.IP.IsLinkLocalUnicast() {
				continue
			}
			for last := byte(250); last < 252; last++ {
				ip := append(net.IP(nil), n.IP...)
				ip[len(ip)-1] = last
				addr := &netlink.Addr{IPNet: &net.IPNet{IP: ip, Mask: n.Mask}}
				if ip.To4() == nil {
					addr.Flags = unix.IFA_F_NODAD
				}
				if err := netlink.AddrAdd(link, addr); err != nil {
					return fmt.Errorf("%v: %w", addr, err)
				}
				own, _ := netip.AddrFromSlice(ip)
				own = own.Unmap()
				o.own[own.Is6()] = append(o.own[own.Is6()], own)
			}
		}
		for _, pool := range wirePools {
			to := &net.IPNet{IP: pool.Addr().AsSlice(), Mask: net.CIDRMask(pool.Bits(), pool.Addr().BitLen())}
			route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: to, Scope: netlink.SCOPE_LINK}
			if pool.Addr().Is6() {
				route.Scope = netlink.SCOPE_UNIVERSE
			}
			if err := netlink.RouteAdd(route); err != nil {
				return fmt.Errorf("a route to %v: %w", pool, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// get asks a Service from one of the outsider's addresses.
func (o *outsider) get(ctx context.Context, from netip.Addr, service string) (body string, err error) {
	dial := func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		err = o.Do(func() error {
			d := net.Dialer{LocalAddr: &net.TCPAddr{IP: from.AsSlice()}, FallbackDelay: -1}
			conn, err = d.DialContext(ctx, network, address)
			return err
		})
		return conn, err
	}
	client := &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(service, "80")+"/", nil)
	if err != nil {
		return "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	return string(data), err
}

// expect waits for an answer that has all of the texts.
func (o *outsider) expect(s *Space, from netip.Addr, service string, texts ...string) {
	s.Helper()
	what := fmt.Sprintf("the Service at %s answers %v", service, from)
	Eventually(s, deadline, what, func(ctx context.Context) error {
		ctx, cancel := TryOnce(ctx)
		defer cancel()
		body, err := o.get(ctx, from, service)
		for _, text := range texts {
			if err == nil && !strings.Contains(body, text) {
				err = fmt.Errorf("it answers %q, without %q", body, text)
			}
		}
		return err
	})
}

// TestLoadBalancersOnTheWire: a machine on the link that is no node reaches Services at addresses
// of pools, of both families. With externalTrafficPolicy Local the node with the pod answers for
// the address, and the pod sees the client's. loadBalancerSourceRanges lets no others in.
func TestLoadBalancersOnTheWire(t *testing.T) {
	t.Parallel()
	images, err := testRegistry()
	if err != nil {
		t.Fatal(err)
	}
	c := Start(t, Options{Servers: 1, Agents: 2, Families: "ipv4,ipv6", Registry: images})
	s := NewSpace(t, c)
	Eventually(t, deadline, "a whole cluster", c.Healthy)
	o := newOutsider(t, c)
	s.Apply(fmt.Sprintf(`
apiVersion: edge.barque.io/v1
kind: AddressPool
metadata: {name: wire}
spec: {addresses: [%q, %q]}
`, wirePools[0], wirePools[1]))
	s.Apply(hello("web", 1, "s1"))
	place(s, "a1")
	s.Run("families", func(s *Space) { checkFamiliesOnTheWire(s, o) })
	s.Run("local", func(s *Space) { checkLocal(s, o) })
	s.Run("sources", func(s *Space) { checkSources(s, o) })
}

// wireService makes a Service with an address of each family, and returns them.
func wireService(s *Space, name, more string) (ips []string) {
	s.Helper()
	s.Apply(fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %s}
spec:
  type: LoadBalancer
  loadBalancerClass: barque.io/pool
  ipFamilyPolicy: RequireDualStack
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
  %s
`, name, more))
	Eventually(s, deadline, "an address of each family", func(context.Context) error {
		if ips = s.ingress(name); len(ips) != 2 {
			return fmt.Errorf("it has %v", ips)
		}
		return nil
	})
	return ips
}

// place moves the pod to a node.
func place(s *Space, node string) {
	s.Helper()
	s.K("patch", "deployment", "web", "-p",
		`{"spec": {"template": {"spec": {"nodeSelector": {"kubernetes.io/hostname": "`+node+`"}}}}}`)
}

func is6(ip string) bool { return netip.MustParseAddr(ip).Is6() }

// checkFamiliesOnTheWire: the node that answers may be another one than the pod's.
func checkFamiliesOnTheWire(s *Space, o *outsider) {
	for _, ip := range wireService(s, "both", "") {
		o.expect(s, o.own[is6(ip)][0], ip, "Hello from web-")
	}
}

// checkLocal: the address follows the pod from one node to another one.
func checkLocal(s *Space, o *outsider) {
	ips := wireService(s, "local", "externalTrafficPolicy: Local")
	w, err := neighbours.Watch("bq-" + s.ID)
	if err != nil {
		s.Fatal(err)
	}
	defer w.Close()
	var addrs []netip.Addr
	for _, ip := range ips {
		addrs = append(addrs, netip.MustParseAddr(ip))
	}
	w.Ask(addrs...)
	for _, node := range []string{"a1", "a2"} {
		place(s, node)
		mac, err := s.MAC(node)
		if err != nil {
			s.Fatal(err)
		}
		for _, addr := range addrs {
			Eventually(s, deadline, fmt.Sprintf("%s answers for %v", node, addr), func(context.Context) error {
				if got, at := w.Holder(addr); got != mac || time.Since(at) > time.Second { // brief: a hundred answers
					return fmt.Errorf("%s has answered at %s", got, at)
				}
				return nil
			})
			from := o.own[addr.Is6()][0]
			o.expect(s, from, addr.String(), "Hello from web-", "client: "+from.String()+"\n")
		}
	}
	for _, fault := range w.Faults() {
		s.Error(fault)
	}
}

// checkSources: one of the outsider's addresses is let in, and the other one gets no answer.
func checkSources(s *Space, o *outsider) {
	allowed := fmt.Sprintf("loadBalancerSourceRanges: [\"%v/32\", \"%v/128\"]", o.own[false][0], o.own[true][0])
	for _, ip := range wireService(s, "sources", allowed) {
		own := o.own[is6(ip)]
		o.expect(s, own[0], ip, "Hello from web-")
		ctx, cancel := context.WithTimeout(s.Context(), 2*time.Second) // brief: there is to be no answer
		if body, err := o.get(ctx, own[1], ip); err == nil {
			s.Errorf("%s answers %v, which is in none of the ranges: %q", ip, own[1], body)
		}
		cancel()
	}
	s.K("patch", "service", "sources", "--type=json", "-p",
		`[{"op": "remove", "path": "/spec/loadBalancerSourceRanges"}]`)
	for _, ip := range s.ingress("sources") {
		o.expect(s, o.own[is6(ip)][1], ip, "Hello from web-")
	}
}
