package path

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/barque/barque/internal/apart"
	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/internal/osthread"
	"github.com/barque/barque/network/nodeaddr"
)

// give gives a link an address and brings it up, with the MTU.
func give(t *testing.T, handle *netlink.Handle, name string, mtu int, addresses ...string) {
	t.Helper()
	link, err := handle.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range addresses {
		addr := &netlink.Addr{IPNet: nodeaddr.IPNet(netip.MustParsePrefix(address))}
		if addr.IP.To4() == nil {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := handle.AddrAdd(link, addr); err != nil {
			t.Fatal(err)
		}
	}
	if err := handle.LinkSetMTU(link, mtu); err != nil {
		t.Fatal(err)
	}
	if err := handle.LinkSetUp(link); err != nil {
		t.Fatal(err)
	}
}

// pair makes another namespace, and a link "here" whose other end, "there", is in it.
func pair(t *testing.T) (own, other *netlink.Handle, there netns.NsHandle) {
	t.Helper()
	here, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	if there, err = netns.New(); err != nil { // and in it
		t.Fatal(err)
	}
	if err := netns.Set(here); err != nil {
		t.Fatal(err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "here"
	if err := netlink.LinkAdd(
		&netlink.Veth{LinkAttrs: attrs, PeerName: "there", PeerNamespace: netlink.NsFd(int(there))}); err != nil {
		t.Fatal(err)
	}
	if own, err = netlink.NewHandle(); err != nil {
		t.Fatal(err)
	}
	if other, err = netlink.NewHandleAt(there); err != nil {
		t.Fatal(err)
	}
	return own, other, there
}

// TestProbe asks a machine on a link whose other end takes smaller packets than this one sends, as
// a switch does that drops them without a word.
func TestProbe(t *testing.T) {
	if !apart.Run(t, apart.Network, await.Hang, "the way of large packets") {
		return
	}
	runtime.LockOSThread()
	own, other, _ := pair(t)
	give(t, own, "here", 1500, "192.0.2.1/24", "2001:db8::1/64")
	give(t, other, "there", 1500, "192.0.2.2/24", "2001:db8::2/64")
	ask := func(want Answer, size int, addresses ...string) {
		t.Helper()
		for _, address := range addresses {
			var got Answer
			var err error
			await.True(t, string(want)+" from "+address, func() bool {
				if got, err = Probe(t.Context(), netip.MustParseAddr(address), size); err != nil {
					t.Fatal(err)
				}
				return got == want
			})
		}
	}
	ask(Whole, 1500, "192.0.2.2", "2001:db8::2", "192.0.2.1")
	ask(Small, 1501, "192.0.2.2", "2001:db8::2") // this machine sends none
	ask(Silent, 1500, "192.0.2.3", "2001:db8::3", "203.0.113.1")
	link, err := other.LinkByName("there")
	if err != nil {
		t.Fatal(err)
	}
	if err := other.LinkSetMTU(link, 1400); err != nil {
		t.Fatal(err)
	}
	ask(Small, 1500, "192.0.2.2", "2001:db8::2")
	ask(Whole, 1400, "192.0.2.2", "2001:db8::2")
	findings := ProbeAll(t.Context(), map[string]netip.Addr{"b": netip.MustParseAddr("192.0.2.2")},
		netip.MustParseAddr("192.0.2.1"))
	if len(findings) != 1 || findings[0].Answer != Small || findings[0].Size != 1500 || findings[0].Node != "b" {
		t.Errorf("findings %+v", findings)
	}
	if findings := ProbeAll(t.Context(), map[string]netip.Addr{"b": netip.MustParseAddr("192.0.2.2")},
		netip.MustParseAddr("192.0.2.9")); findings[0].Error == "" {
		t.Errorf("an address that no link has: %+v", findings)
	}
}

func TestQuestion(t *testing.T) {
	for _, size := range []int{28, 128, 1500} {
		if got := len(question(false, 1, 2, size)) + header4; got != size {
			t.Errorf("%d bytes of %d", got, size)
		}
	}
	// An odd length, with the sums computed by hand.
	if got := checksum([]byte{8, 0, 0, 0, 0x12, 0x34, 0, 1, 0x56}); got != ^uint16(0x0800+0x1234+0x0001+0x5600) {
		t.Errorf("checksum %#x", got)
	}
	packet := question(false, 7, 0, 128)
	if checksum(packet) != 0 {
		t.Error("the checksum of a packet with its own is not zero")
	}
	if isAnswer(false, append(make([]byte, 20), packet...), 7) || isAnswer(false, nil, 7) || isAnswer(true, nil, 7) {
		t.Error("what is no answer was taken for one")
	}
}

// A firewall drops what the table names, in the namespace of the other machine.
func firewall(t *testing.T, at netns.NsHandle, port uint16, verdict ...expr.Any) {
	t.Helper()
	conn, err := nftables.New(nftables.WithNetNSFd(int(at)))
	if err != nil {
		t.Fatal(err)
	}
	table := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "firewall"})
	chain := conn.AddChain(
		&nftables.Chain{Name: "input", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookInput,
			Priority: nftables.ChainPriorityFilter})
	toPort := []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(port)},
	}
	conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: append(toPort, verdict...)})
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
}

// TestExplore asks a machine on which one port listens, one does not, one is dropped, and one
// rejected.
func TestExplore(t *testing.T) {
	if !apart.Run(t, apart.Network, 5*time.Minute, "the way to another machine") {
		return
	}
	runtime.LockOSThread()
	own, other, there := pair(t)
	give(t, own, "here", 1500, "192.0.2.1/24", "2001:db8::1/64")
	give(t, other, "there", 1500, "192.0.2.2/24", "2001:db8::2/64")
	err := osthread.Do(func() error {
		if err := netns.Set(there); err != nil {
			return err
		}
		for _, address := range []string{"192.0.2.2", "2001:db8::2"} {
			l, err := net.Listen("tcp", net.JoinHostPort(address, "1001"))
			if err != nil {
				return err
			}
			t.Cleanup(func() { l.Close() })
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	drop := &expr.Verdict{Kind: expr.VerdictDrop}
	firewall(t, there, 1003, drop)
	firewall(t, there, 1004,
		&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED})
	tcp := func(n uint16) Port { return Port{Number: n} }
	udp := func(n uint16) Port { return Port{Number: n, UDP: true} }
	ports := []Port{tcp(1001), tcp(1002), tcp(1003), tcp(1004), udp(1002), udp(1003), udp(1004)}
	want := []Contact{Listens, Closed, Unanswered, Rejected, Closed, Unanswered, Rejected}
	for _, address := range []string{"192.0.2.2", "2001:db8::2"} {
		// what a busy machine has no time for looks lost
		await.NoError(t, "what is known of "+address, func(context.Context) error {
			m, err := Explore(t.Context(), netip.MustParseAddr(address), ports)
			if err != nil {
				return err
			}
			for i, a := range m.Ports {
				if a.Port != ports[i] || a.Contact != want[i] {
					return fmt.Errorf("%v: %+v is %s, want %s", address, a.Port, a.Contact, want[i])
				}
			}
			if m.Largest != 1500 || !m.Way.Direct || m.Way.Link != "here" || m.Way.MTU != 1500 {
				return fmt.Errorf("%v: %+v", address, m)
			}
			return nil
		})
	}
	link, err := other.LinkByName("there")
	if err != nil {
		t.Fatal(err)
	}
	if err := other.LinkSetMTU(link, 1401); err != nil {
		t.Fatal(err)
	}
	await.NoError(t, "the largest packet", func(context.Context) error {
		// A veth takes the room of a VLAN tag more than its MTU.
		if got, err := Largest(t.Context(), netip.MustParseAddr("192.0.2.2"), 1500); err != nil || got < 1401 ||
			got > 1405 {
			return fmt.Errorf("the largest packet has %d bytes, %v; want 1401", got, err)
		}
		return nil
	})
	m, err := Explore(t.Context(), netip.MustParseAddr("192.0.2.1"), nil)
	if err != nil || !m.Way.Own {
		t.Errorf("this machine itself: %+v, %v", m, err)
	}
	if m, err := Explore(t.Context(), netip.MustParseAddr("203.0.113.1"), nil); err == nil {
		t.Errorf("without a way: %+v", m)
	}
}

// What was found out is told with what to do about it.
func TestFindings(t *testing.T) {
	addr := netip.MustParseAddr("192.0.2.2")
	way := nodeaddr.Way{Direct: true, Link: "eth0", MTU: 1500}
	api, gossip := Port{Number: 6443, For: "the API"}, Port{Number: 7946, UDP: true, For: "gossip"}
	perhaps := Port{Number: 6443, For: "the API", ServerOnly: true}
	for _, c := range []struct {
		name   string
		m      Machine
		failed string // names of findings that are not right
		text   string // somewhere
		doubts int    // findings that are unclear
	}{
		{"well", Machine{addr, way, 1500, []Answered{{api, Listens}, {gossip, Closed}}}, "", "directly", 1},
		{"by a router", Machine{addr, nodeaddr.Way{Link: "eth0", MTU: 1500}, 1500, nil}, "", "overlay", 0},
		{"nothing yet", Machine{addr, way, 1500, []Answered{{api, Closed}}}, "",
			"nothing listens yet, or a firewall rejects it", 1},
		{"itself", Machine{addr, nodeaddr.Way{Own: true}, 0, nil}, "", "itself", 0},
		{"away", Machine{addr, way, 0, []Answered{{api, Unanswered}, {gossip, Unanswered}}}, "path to 192.0.2.2",
			"nothing answers", 0},
		{"away, as a router says", Machine{addr, way, 0, []Answered{{api, Rejected}, {gossip, Rejected}}},
			"path to 192.0.2.2", "nothing answers", 0},
		{"no ICMP", Machine{addr, way, 0, []Answered{{api, Closed}}}, "path to 192.0.2.2", "let ICMP", 1},
		{"small packets", Machine{addr, way, 1400, []Answered{{api, Listens}}}, "path to 192.0.2.2",
			"ip link set dev eth0 mtu 1400", 0},
		{"a closed port", Machine{addr, way, 1500, []Answered{{api, Unanswered}, {gossip, Unanswered}}},
			"TCP 6443 at 192.0.2.2", "let TCP 6443 pass", 1},
		{"rejected ports", Machine{addr, way, 1500, []Answered{{api, Rejected}, {gossip, Rejected}}},
			"TCP 6443 at 192.0.2.2 UDP 7946 at 192.0.2.2", "let UDP 7946 pass", 0},
		{"perhaps an agent",
			Machine{addr, way, 1500, []Answered{{perhaps, Unanswered}, {perhaps, Rejected}, {perhaps, Closed}}}, "",
			"if that machine is a server: let TCP 6443 pass", 3},
		{"a server, by its address", Machine{addr, way, 1500, []Answered{{perhaps, Listens}}}, "", "answers: the API",
			0},
	} {
		var failed []string
		doubts := 0
		said := ""
		for _, f := range c.m.Findings() {
			said += f.Detail + "\n" + f.Remedy + "\n"
			if !f.OK {
				failed = append(failed, f.Name)
			}
			if f.Doubt {
				doubts++
			}
			if (!f.OK || f.Doubt) && f.Remedy == "" {
				t.Errorf("%s: nothing is said about what to do: %+v", c.name, f)
			}
		}
		if strings.Join(failed, " ") != c.failed || !strings.Contains(said, c.text) || doubts != c.doubts {
			t.Errorf("%s: failed %q, %d unclear, said\n%s", c.name, failed, doubts, said)
		}
	}
}
