package wireguard

import (
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/internal/apart"
	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/internal/needs"
	"github.com/barque/barque/network/nodeaddr"
)

// newKey is a private key, and the public one of it.
func newKey(t *testing.T) (private, public Key) {
	t.Helper()
	private, err := LoadKey(filepath.Join(t.TempDir(), "key"))
	if err == nil {
		public, err = private.Public()
	}
	if err != nil {
		t.Fatal(err)
	}
	return private, public
}

// A node keeps its key, which nobody else can read, until somebody deletes it.
func TestLoadKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "wireguard.key")
	first, err := LoadKey(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if again, err := LoadKey(path); err != nil || again != first {
		t.Errorf("another key, %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if other, err := LoadKey(path); err != nil || other == first {
		t.Errorf("the same key after it was deleted, %v", err)
	}
	if err := os.WriteFile(path, []byte("AAAA\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadKey(path); err == nil || !strings.Contains(err.Error(), path) ||
		!strings.Contains(err.Error(), "delete it") {
		t.Errorf("a damaged key: %v", err)
	}
}

// The pair of keys was computed by another implementation of X25519.
func TestPublic(t *testing.T) {
	private, err := keyOf("0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20")
	if err != nil {
		t.Fatal(err)
	}
	want, err := keyOf("07a37cbc142093c8b755dc1b10e86cb426374ad16aa853ed0bdfc0b2b86d1c7c")
	if err != nil {
		t.Fatal(err)
	}
	if public, err := private.Public(); err != nil || public != want {
		t.Errorf("%v, %v; want %v", public, err, want)
	}
}

func TestEndpoint(t *testing.T) {
	_, public := newKey(t)
	annotated := func(text string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: map[string]string{Annotation: text}}}
	}
	for _, address := range []string{"192.0.2.1", "2001:db8::1"} {
		own := Endpoint{PublicKey: public, Address: netip.MustParseAddr(address), Port: DefaultPort, To: Elsewhere}
		if got, err := EndpointOf(annotated(own.String())); err != nil || got != own || !got.IsValid() {
			t.Errorf("%v became %v, %v", own, got, err)
		}
	}
	for _, node := range []*corev1.Node{{}, annotated(Endpoint{}.String())} {
		if got, err := EndpointOf(node); err != nil || got.IsValid() {
			t.Errorf("%v: %v, %v", node.Annotations, got, err)
		}
	}
	for _, text := range []string{"", "{}", `{"publicKey":"AAAA","address":"192.0.2.1","port":1}`,
		`{"address":"192.0.2.1","port":1}`, `{"publicKey":"` + public.String() + `","port":1}`,
		`{"publicKey":"` + public.String() + `","address":"192.0.2.1"}`} {
		if got, err := EndpointOf(annotated(text)); err == nil || got.IsValid() {
			t.Errorf("%q was read as %v", text, got)
		}
	}
	if data, err := json.Marshal(public); err != nil || string(data) != `"`+public.String()+`"` {
		t.Errorf("%s, %v", data, err)
	}
}

func TestStale(t *testing.T) {
	now := time.Unix(1e9, 0)
	for handshake, want := range map[time.Time]bool{now: false, now.Add(-2 * time.Minute): false,
		now.Add(-5 * time.Minute): true, {}: true} {
		if (Seen{Handshake: handshake}).Stale(now) != want {
			t.Errorf("%v: want %v", handshake, want)
		}
	}
}

// peer of a key, at 192.0.2.last, with shares.
func peer(key Key, last byte, shares ...string) Peer {
	p := Peer{Node: "n",
		Endpoint: Endpoint{PublicKey: key, Address: netip.AddrFrom4([4]byte{192, 0, 2, last}), Port: DefaultPort}}
	for _, share := range shares {
		p.Shares = append(p.Shares, netip.MustParsePrefix(share))
	}
	return p
}

// Changes lead to what is wanted, touch nothing that is right, and are none then.
func TestChanges(t *testing.T) {
	a, b := Key{1}, Key{2}
	have, set := map[Key]peerState{}, map[Key]netip.AddrPort{}
	for i, step := range []struct {
		want    []Peer
		changed []Key // in this order
	}{
		{nil, nil},
		{[]Peer{peer(a, 1, "10.42.1.0/24", "fd00:42:0:1::/64"), peer(b, 2, "10.42.2.0/24")}, []Key{a, b}},
		{[]Peer{peer(b, 2, "10.42.2.0/24"), peer(a, 1, "fd00:42:0:1::/64", "10.42.1.0/24")}, nil},
		{[]Peer{peer(a, 3, "10.42.1.0/24"), peer(b, 2, "10.42.2.0/24")}, []Key{a}},
		{[]Peer{peer(b, 2, "10.42.2.0/24", "10.42.1.0/24")}, []Key{a, b}}, // the share passes: who loses it comes first
		{[]Peer{peer(a, 2, "10.42.2.0/24", "10.42.1.0/24")}, []Key{b, a}}, // another key
		{nil, []Key{a}},
	} {
		for round := range 2 {
			var changed []Key
			for _, c := range changes(have, set, step.want) {
				changed = append(changed, c.key)
				if c.remove {
					delete(have, c.key)
					delete(set, c.key)
					continue
				}
				now := have[c.key]
				now.keepalive = keepalive
				if c.endpoint.IsValid() {
					now.endpoint, set[c.key] = c.endpoint, c.endpoint
				}
				if c.replace {
					now.allowed = c.allowed
				}
				have[c.key] = now
			}
			if want := step.changed; round == 0 && !slices.Equal(changed, want) || round == 1 && changed != nil {
				t.Errorf("step %d, round %d: changed %v, want %v", i, round, changed, want)
			}
		}
		if len(have) != len(step.want) {
			t.Errorf("step %d: %v", i, have)
		}
	}
}

// A peer that was heard from another address keeps it until its Node object says a new one. What a
// peer may send from is given anew only where it differs.
func TestChangesOfPeersThatMove(t *testing.T) {
	key := Key{1}
	told := netip.MustParseAddrPort("192.0.2.1:51820")
	share := netip.MustParsePrefix("10.42.1.0/24")
	roamed := peerState{endpoint: netip.MustParseAddrPort("198.51.100.1:40000"), allowed: []netip.Prefix{share},
		keepalive: keepalive}
	for name, c := range map[string]struct {
		have peerState
		set  map[Key]netip.AddrPort
		want Peer
		is   []change
	}{
		"roamed": {roamed, map[Key]netip.AddrPort{key: told}, peer(key, 1, "10.42.1.0/24"), nil},
		"with another share": {roamed, map[Key]netip.AddrPort{key: told}, peer(key, 1, "10.42.2.0/24"),
			[]change{{key: key, replace: true, allowed: []netip.Prefix{netip.MustParsePrefix("10.42.2.0/24")}}}},
		"a new address": {roamed, map[Key]netip.AddrPort{key: told}, peer(key, 2, "10.42.1.0/24"),
			[]change{{key: key, endpoint: netip.MustParseAddrPort("192.0.2.2:51820")}}},
		"of another process": {roamed, nil, peer(key, 1, "10.42.1.0/24"), []change{{key: key, endpoint: told}}},
	} {
		if got := changes(map[Key]peerState{key: c.have}, c.set, []Peer{c.want}); !reflect.DeepEqual(got, c.is) {
			t.Errorf("%s: %+v, want %+v", name, got, c.is)
		}
	}
}

// The kernel is told the same as a process.
func TestKernelConfig(t *testing.T) {
	private, public := newKey(t)
	gone := Key{9}
	list := append(changes(nil, nil, []Peer{peer(public, 1, "10.42.1.0/24", "fd00:42:0:1::/64")}),
		change{key: gone, remove: true})
	config := kernelConfig(&private, 7, list)
	if Key(*config.PrivateKey) != private || *config.ListenPort != 7 || config.ReplacePeers || len(config.Peers) != 2 ||
		!config.Peers[1].Remove {
		t.Fatalf("%+v", config)
	}
	first := config.Peers[0]
	if Key(first.PublicKey) != public || first.Endpoint.String() != "192.0.2.1:51820" || !first.ReplaceAllowedIPs ||
		*first.PersistentKeepaliveInterval != keepalive {
		t.Errorf("%+v", first)
	}
	if len(first.AllowedIPs) != 2 || first.AllowedIPs[0].String() != "10.42.1.0/24" ||
		first.AllowedIPs[1].String() != "fd00:42:0:1::/64" {
		t.Errorf("allowed are %v", first.AllowedIPs)
	}
	if none := kernelConfig(nil, 0, nil); none.PrivateKey != nil || none.ListenPort != nil {
		t.Errorf("%+v", none)
	}
}

func TestParseStateRefusesNonsense(t *testing.T) {
	for _, text := range []string{"public_key=zz", "public_key=00", "listen_port=70000", "endpoint=x", "allowed_ip=x",
		"rx_bytes=x"} {
		if s, err := parseState(text + "\n"); err == nil {
			t.Errorf("%q was read as %+v", text, s)
		}
	}
}

// TestProcessLink makes the link by this process, with a TUN device.
func TestProcessLink(t *testing.T) {
	const untested = "WireGuard without the kernel's"
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		needs.NoError(t, err, untested)
	}
	if !apart.Run(t, apart.Network, await.Hang, untested) {
		return
	}
	private, _ := newKey(t)
	_, a := newKey(t)
	_, b := newKey(t)
	opened, err := openTUN(1440, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	d := New(private, slog.New(slog.DiscardHandler))
	d.backend = opened
	want := Want{Port: DefaultPort,
		Shares: []netip.Prefix{netip.MustParsePrefix("10.42.9.0/24"), netip.MustParsePrefix("fd00:42:0:9::/64")},
		MTU:    1500, Overhead: 60}
	first := 0
	for i, peers := range [][]Peer{
		{peer(a, 1, "10.42.1.0/24")},
		{peer(a, 2, "10.42.1.0/24", "fd00:42:0:1::/64"), peer(b, 3, "10.42.3.0/24")},
		{peer(b, 3, "10.42.1.0/24", "10.42.3.0/24")},
		nil,
	} {
		want.Peers = peers
		for range 2 {
			index, err := d.Apply(want)
			if err != nil {
				t.Fatal(err)
			}
			if i == 0 && first == 0 {
				first = index
			}
			have, err := opened.state()
			if err != nil || have.private != private || have.port != DefaultPort ||
				len(changes(have.peers, nil, peers)) > 0 || index != first {
				t.Errorf("step %d: %+v, %v; index %d, was %d", i, have, err, index, first)
			}
			if seen, err := d.Seen(); err != nil || len(seen) != len(peers) {
				t.Errorf("step %d: seen %v, %v", i, seen, err)
			}
		}
	}
	link, err := netlink.LinkByName(LinkName)
	if err != nil || link.Attrs().MTU != 1440 {
		t.Fatalf("%v, %v", link, err)
	}
	addrs, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	for _, addr := range addrs {
		if !addr.IP.IsLinkLocalUnicast() {
			have[addr.IPNet.String()] = true
		}
	}
	if want := map[string]bool{"10.42.9.0/32": true, "fd00:42:0:9::/128": true}; !maps.Equal(have, want) {
		t.Errorf("addresses %v", have)
	}
	// Somebody removes the link: it is made anew.
	if err := netlink.LinkDel(link); err != nil {
		t.Fatal(err)
	}
	want.Peers = []Peer{peer(a, 1, "10.42.1.0/24")}
	await.True(t, "the link is there again", func() bool {
		index, err := d.Apply(want)
		return err == nil && index != first
	})
	for range 2 {
		if err := d.Remove(); err != nil {
			t.Fatal(err)
		}
	}
	if link, err := nodeaddr.LinkNamed(LinkName); link != nil || err != nil {
		t.Errorf("left: %v, %v", link, err)
	}
	if seen, err := d.Seen(); !reflect.DeepEqual(seen, []Seen(nil)) || err != nil {
		t.Errorf("seen without a link: %v, %v", seen, err)
	}
}

// unreadable is a link that cannot be read.
type unreadable struct{ backend }

func (unreadable) state() (state, error) { return state{}, errors.New("busy") }

// A link that cannot be read leaves the metrics of others as they are.
func TestMetricsOfALinkThatCannotBeRead(t *testing.T) {
	d := New(Key{1}, slog.New(slog.DiscardHandler))
	d.backend = unreadable{}
	registry := prometheus.NewRegistry()
	registry.MustRegister(d)
	if found, err := registry.Gather(); err != nil || len(found) > 0 {
		t.Errorf("%v, %v", found, err)
	}
}
