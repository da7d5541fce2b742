package overlay

import (
	"net/netip"
	"reflect"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/internal/apart"
	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/network/nodeaddr"
)

var usual = Config{Mode: Auto, VNI: DefaultVNI, Port: DefaultPort}

func TestEndpoint(t *testing.T) {
	for _, address := range []string{"192.0.2.1", "2001:db8::1"} {
		own := Config{Mode: Always, VNI: 7, Port: 4789}.Endpoint("node-1", netip.MustParseAddr(address))
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "node-1", Annotations: map[string]string{Annotation: own.String()}}}
		if got, announced, err := EndpointOf(node); err != nil || !announced || got != own || !got.IsValid() ||
			!got.Always {
			t.Errorf("%v became %v, %v", own, got, err)
		}
	}
	none := Config{Mode: None}.Endpoint("n", netip.MustParseAddr("192.0.2.1"))
	if none.IsValid() {
		t.Errorf("an endpoint without an overlay: %v", none)
	}
	for _, annotations := range []map[string]string{nil, {Annotation: none.String()}} {
		e, announced, err := EndpointOf(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: annotations}})
		if err != nil || e.IsValid() || announced != (annotations != nil) {
			t.Errorf("%v: %v, %v, %v", annotations, e, announced, err)
		}
	}
	for _, text := range []string{"", "{}", `{"address":"192.0.2.1"}`,
		`{"address":"192.0.2.1","mac":"01:00:5e:00:00:01"}`, `{"address":"x","mac":"02:00:00:00:00:01"}`} {
		if e, _, err := EndpointOf(
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{Annotation: text}}}); err == nil {
			t.Errorf("%q was read as %v", text, e)
		}
	}
	macs := map[string]bool{}
	for _, name := range []string{"a", "b", "c"} {
		mac := macOf(name)
		if mac[0]&0x03 != 0x02 || mac.String() != macOf(name).String() {
			t.Errorf("%s: %v", name, mac)
		}
		macs[mac.String()] = true
	}
	if len(macs) != 3 {
		t.Errorf("addresses of three nodes: %v", macs)
	}
	if got := (Endpoint{MAC: "02:11:22:33:44:55"}).Gateway6().String(); got != "fe80::11:22ff:fe33:4455" {
		t.Errorf("gateway %s", got)
	}
}

func TestConfigIsChecked(t *testing.T) {
	for _, mode := range Modes {
		if err := (Config{mode, 1<<24 - 1, 1}).Check(); err != nil {
			t.Error(err)
		}
	}
	for _, c := range []Config{{"", 1, 1}, {"ipip", 1, 1}, {Auto, 0, 1}, {Auto, 1 << 24, 1}, {Auto, 1, 0}} {
		if c.Check() == nil {
			t.Errorf("%v was accepted", c)
		}
	}
}

func TestBrokenChecksums(t *testing.T) {
	for release, want := range map[string]bool{"4.19.0-27-amd64": true, "5.6.19": true, "5.7.0": false,
		"5.10.0-30": false, "6.18.44-fc": false, "6.1+": false, "": false} {
		if brokenChecksums(release) != want {
			t.Errorf("%q: want %v", release, want)
		}
	}
}

// seen is what the kernel has.
func seen(t *testing.T) (index int, entries map[entry]bool, addresses []string, mtu int) {
	t.Helper()
	link, err := netlink.LinkByName(LinkName)
	if err != nil {
		t.Fatal(err)
	}
	entries = map[entry]bool{}
	for _, family := range []int{unix.AF_BRIDGE, unix.AF_INET, unix.AF_INET6} {
		list, err := netlink.NeighList(link.Attrs().Index, family)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range list {
			if ip, ok := netip.AddrFromSlice(n.IP); ok && !ip.IsMulticast() {
				entries[entry{family == unix.AF_BRIDGE, n.HardwareAddr.String(), ip.Unmap()}] = true
			}
		}
	}
	addrs, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		t.Fatal(err)
	}
	for _, addr := range addrs {
		if !addr.IP.IsLinkLocalUnicast() {
			addresses = append(addresses, addr.IPNet.String())
		}
	}
	return link.Attrs().Index, entries, addresses, link.Attrs().MTU
}

func TestApply(t *testing.T) {
	if !apart.Run(t, apart.Network, await.Hang, "the overlay between nodes") {
		return
	}
	runtime.LockOSThread()
	addr := func(text string) netip.Addr { return netip.MustParseAddr(text) }
	share := func(text string) netip.Prefix { return netip.MustParsePrefix(text) }
	peer := func(name, address string, gateways ...netip.Addr) Peer {
		return Peer{Node: name, Endpoint: usual.Endpoint(name, addr(address)), Gateways: gateways}
	}
	want := Device{Own: usual.Endpoint("node-1", addr("192.0.2.1")),
		Shares: []netip.Prefix{share("10.42.1.0/24"), share("fd00:42:0:1::/64")}, MTU: 1500}
	fd := usual.Endpoint("node-2", addr("203.0.113.2")).Gateway6()
	var first int
	for i, step := range []struct {
		name  string
		peers []Peer
		mtu   int
		stays bool
	}{
		{"none", nil, 1500, true},
		{"two",
			[]Peer{peer("node-2", "203.0.113.2", addr("10.42.2.0"), fd),
				peer("node-3", "198.51.100.3", addr("10.42.3.0"))}, 1500, true},
		{"a node with another address",
			[]Peer{peer("node-2", "203.0.113.22", addr("10.42.2.0"), fd),
				peer("node-3", "198.51.100.3", addr("10.42.3.0"))}, 1500, true},
		{"a share that goes to another node",
			[]Peer{peer("node-2", "203.0.113.22", fd), peer("node-3", "198.51.100.3", addr("10.42.2.0"))}, 1500, true},
		{"fewer, larger packets", []Peer{peer("node-3", "198.51.100.3", addr("10.42.3.0"))}, 9000, true},
		{"none again", nil, 1500, true},
	} {
		want.Peers, want.MTU = step.peers, step.mtu
		for range 2 {
			index, err := Apply(want)
			if err != nil {
				t.Fatalf("%s: %v", step.name, err)
			}
			got, entries, addresses, mtu := seen(t)
			if i == 0 {
				first = index
			}
			if got != index || (index == first) != step.stays {
				t.Errorf("%s: the link has the index %d, and had %d", step.name, index, first)
			}
			if wanted := entriesOf(step.peers); !reflect.DeepEqual(entries, wanted) {
				t.Errorf("%s: got  %v\nwant %v", step.name, entries, wanted)
			}
			if !reflect.DeepEqual(addresses, []string{"10.42.1.0/32", "fd00:42:0:1::/128"}) || mtu != step.mtu-50 {
				t.Errorf("%s: addresses %v, MTU %d", step.name, addresses, mtu)
			}
		}
	}
	// What somebody else has put there goes.
	link, err := netlink.LinkByName(LinkName)
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: nodeaddr.IPNet(share("198.51.100.1/24"))}); err != nil {
		t.Fatal(err)
	}
	want.Shares = want.Shares[:1]
	if _, err := Apply(want); err != nil {
		t.Fatal(err)
	}
	if _, _, addresses, _ := seen(t); !reflect.DeepEqual(addresses, []string{"10.42.1.0/32"}) {
		t.Errorf("addresses %v", addresses)
	}
	// Another identifier needs another link.
	want.Own.VNI++
	if index, err := Apply(want); err != nil || index == first {
		t.Errorf("the link with the index %d stayed with another identifier: %v", index, err)
	}
	if err := withoutChecksumOffload(LinkName); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := Remove(); err != nil {
			t.Fatal(err)
		}
	}
	if link, err := nodeaddr.LinkNamed(LinkName); link != nil || err != nil {
		t.Errorf("left: %v, %v", link, err)
	}
}

// TestIPv6Below: a cluster whose nodes have IPv6 addresses only.
func TestIPv6Below(t *testing.T) {
	if !apart.Run(t, apart.Network, await.Hang, "the overlay over IPv6") {
		return
	}
	runtime.LockOSThread()
	own := usual.Endpoint("node-1", netip.MustParseAddr("2001:db8::1"))
	other := usual.Endpoint("node-2", netip.MustParseAddr("2001:db8:1::2"))
	peers := []Peer{{Node: "node-2", Endpoint: other, Gateways: []netip.Addr{other.Gateway6()}}}
	_, err := Apply(
		Device{Own: own, Shares: []netip.Prefix{netip.MustParsePrefix("fd00:42:0:1::/64")}, MTU: 1500, Peers: peers})
	if err != nil {
		t.Fatal(err)
	}
	if _, entries, _, mtu := seen(t); !reflect.DeepEqual(entries, entriesOf(peers)) || mtu != 1430 {
		t.Errorf("entries %v, MTU %d", entries, mtu)
	}
}
