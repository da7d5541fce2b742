package announce

import (
	"context"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/barque/barque/edge/hold"
	"github.com/barque/barque/internal/needs"
)

// holder holds the addresses that a test sets.
type holder struct {
	mu      sync.Mutex
	held    []hold.Hold
	changed chan struct{}
	limit   func(hold.Instant)
}

func (h *holder) Answer(addr netip.Addr, send func()) bool {
	if !h.Holds(addr) {
		return false
	}
	send()
	return true
}

func (h *holder) Limit(set func(hold.Instant)) {
	h.limit = set
	set(hold.Boot().Add(time.Hour))
}

func (h *holder) Holds(addr netip.Addr) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.ContainsFunc(h.held, func(o hold.Hold) bool { return o.Addr == addr })
}

func (h *holder) Held() ([]hold.Hold, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.held), h.changed
}

func (h *holder) set(addrs ...netip.Addr) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.held = nil
	for _, a := range addrs {
		h.held = append(h.held, hold.Hold{Addr: a, Since: hold.Boot()})
	}
	close(h.changed)
	h.changed = make(chan struct{})
}

// ownNetwork gives the test a network namespace with two linked interfaces, of this node and of a
// peer. All goroutines that make sockets must run on its thread, so the sockets are opened here.
func ownNetwork(t *testing.T) (node, other link) {
	t.Helper()
	needs.Root(t, "ARP and neighbour discovery on a link")
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "node", HardwareAddr: ours}, PeerName: "peer",
		PeerHardwareAddr: peer}
	if err := netlink.LinkAdd(pair); err != nil {
		t.Fatal(err)
	}
	links := map[string]link{}
	for name, addrs := range map[string][]string{"node": {"10.0.0.1/24", "fd00::1/64"}, "peer": {"10.0.1.2/24"}} {
		l, err := netlink.LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range addrs {
			of, err := netlink.ParseAddr(a)
			if err != nil {
				t.Fatal(err)
			}
			of.Flags = unix.IFA_F_NODAD
			if err := netlink.AddrAdd(l, of); err != nil {
				t.Fatal(err)
			}
		}
		if err := netlink.LinkSetUp(l); err != nil {
			t.Fatal(err)
		}
		links[name] = link{index: l.Attrs().Index, name: name, mac: l.Attrs().HardwareAddr}
	}
	return links["node"], links["peer"]
}

// wire reads the packets that arrive at the peer.
type wire struct {
	*socket
	heard chan packet
}

func listen(t *testing.T, l link, ipv6 bool) *wire {
	t.Helper()
	s, err := open(l, ipv6)
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{s, make(chan packet, 100)}
	t.Cleanup(func() { s.close() })
	go func() { // ends with the socket
		buffer := make([]byte, 2048)
		for {
			n, err := s.read(buffer)
			if err != nil {
				return
			}
			if p, ok := parse(buffer[:n]); ok {
				w.heard <- p
			}
		}
	}()
	return w
}

// expect waits for a claim of an address, and repeats what leads to it: a link drops packets until
// the kernel has noticed that it is up.
func (w *wire) expect(t *testing.T, addr netip.Addr, cause func()) {
	t.Helper()
	timeout := time.After(time.Minute)
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for len(w.heard) > 0 { // of earlier causes
		<-w.heard
	}
	cause()
	for {
		select {
		case <-again.C:
			cause()
		case p := <-w.heard:
			if p.claims == addr && slices.Equal(p.mac, ours) {
				return
			}
		case <-timeout:
			t.Fatalf("nothing claims %v", addr)
		}
	}
}

func (w *wire) ask(t *testing.T, frame []byte) {
	t.Helper()
	if err := w.send(frame); err != nil {
		t.Fatal(err)
	}
}

// TestOnTheWire lets a node take two addresses over, answer for them, see a conflict, and give them
// up, on real links.
func TestOnTheWire(t *testing.T) {
	_, other := ownNetwork(t)
	at4, at6 := listen(t, other, false), listen(t, other, true)
	h := &holder{changed: make(chan struct{})}
	conflicts := make(chan string, 10)
	a := New(
		Config{Holder: h, Own: []netip.Addr{netip.MustParseAddr("10.0.0.1")},
			Conflict: func(addr netip.Addr, mac net.HardwareAddr, link string) {
				conflicts <- addr.String() + " " + mac.String() + " " + link
			}})
	h.set(held4, held6)
	defer a.bound()()
	// The sockets are opened here, because Run may be on another thread, in another namespace.
	if err := a.settle([]netip.Addr{held4, held6}); err != nil {
		t.Fatal(err)
	}
	defer a.close()
	at4.expect(t, held4, func() { a.announce(held4) })
	at6.expect(t, held6, func() { a.announce(held6) })

	request := arp(arpRequest, peer4, peer, held4, make(net.HardwareAddr, 6), broadcast)
	at4.expect(t, held4, func() { at4.ask(t, request) })
	at6.expect(t, held6, func() { at6.ask(t, solicit(held6, peer6)) })

	stranger := net.HardwareAddr{2, 0, 0, 0, 0, 9}
	// it repeats its claim
	at4.expect(t, held4, func() { at4.ask(t, arp(arpReply, held4, stranger, peer4, peer, broadcast)) })
	if got, want := <-conflicts, "10.0.0.10 02:00:00:00:00:09 node"; got != want {
		t.Errorf("conflict %q, want %q", got, want)
	}

	h.set(held6)
	answered := testutil.ToFloat64(a.metrics.answers.WithLabelValues("ipv4"))
	// The link is open for both, and its packets stay in order.
	at6.expect(t, held6, func() {
		at4.ask(t, request)
		at6.ask(t, solicit(held6, peer6))
	})
	if err := a.settle([]netip.Addr{held6}); err != nil {
		t.Fatal(err)
	}
	if got := testutil.ToFloat64(a.metrics.answers.WithLabelValues("ipv4")); got != answered {
		t.Errorf("%v answers for an address that was given up", got-answered)
	}
	if len(a.open) != 1 {
		t.Errorf("%d sockets are open for one address", len(a.open))
	}
}

// TestRunEnds leaves no socket open.
func TestRunEnds(t *testing.T) {
	h := &holder{changed: make(chan struct{})}
	a := New(Config{Holder: h})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	h.set(netip.MustParseAddr("192.0.2.1"))
	stop()
	if err := <-ended; err != nil || len(a.open) != 0 {
		t.Errorf("%v, %d sockets are open", err, len(a.open))
	}
}

// TestTheKernelLooksAtTheTime: a process that is stopped between its own look at the clock and its
// answer goes on after the end of its holds, and sends. The kernel drops the answer.
func TestTheKernelLooksAtTheTime(t *testing.T) {
	node, other := ownNetwork(t)
	wire, wire6 := listen(t, other, false), listen(t, other, true)
	h := &holder{changed: make(chan struct{})}
	a := New(Config{Holder: h, Own: []netip.Addr{netip.MustParseAddr("10.0.0.1")}})
	h.set(held4, held6)
	end := a.bound()
	if a.deadline == nil {
		needs.Missing(t, "eBPF at the end of a link (tcx, Linux 6.6)", "the kernel drops late answers")
	}
	if err := a.settle([]netip.Addr{held4, held6}); err != nil {
		t.Fatal(err)
	}
	r, r6 := a.open[key{node.index, false}], a.open[key{node.index, true}]
	if r == nil || r6 == nil || len(a.judges) != 1 {
		t.Fatalf("the sockets are %v, and %d programs judge what they send", a.open, len(a.judges))
	}
	late6 := advise(held6, ours, allNodes, groupMAC(allNodes), false)
	wire6.expect(t, held6, func() {
		if sent, err := a.send(r6, held6, late6); err != nil || !sent {
			t.Error("before the end:", sent, err)
		}
	})
	late := arp(arpReply, held4, ours, peer4, peer, peer)
	wire.expect(t, held4, func() {
		if sent, err := a.send(r, held4, late); err != nil || !sent {
			t.Error("before the end:", sent, err)
		}
	})
	h.limit(hold.Boot())
	for range 5 {
		if sent, err := a.send(r, held4, late); err == nil || sent {
			t.Error("after the end it is sent")
		}
		if sent, err := a.send(r6, held6, late6); err == nil || sent {
			t.Error("after the end it is sent, by IPv6")
		}
	}
	another, err := open(node, false) // that has nothing to do with held addresses
	if err != nil {
		t.Fatal(err)
	}
	defer another.close()
	marker := netip.MustParseAddr("10.0.0.77")
	for len(wire.heard) > 0 {
		<-wire.heard
	}
	if err := another.send(arp(arpReply, marker, ours, peer4, peer, peer)); err != nil {
		t.Fatal(err)
	}
	if p := <-wire.heard; p.claims != marker {
		t.Errorf("heard is a claim of %v", p.claims)
	}
	h.limit(hold.Boot().Add(time.Hour))
	wire.expect(t, held4, func() {
		if sent, err := a.send(r, held4, late); err != nil || !sent {
			t.Error("before a later end:", sent, err)
		}
	})

	// The program ends with the socket: nothing is left on the link.
	h.limit(hold.Boot())
	if err := another.mark(deadlineMark); err != nil {
		t.Fatal(err)
	}
	if err := another.send(late); err == nil {
		t.Error("a marked packet passes")
	}
	if err := a.settle([]netip.Addr{held6}); err != nil || len(a.judges) != 1 {
		t.Errorf("%v; %d programs for one socket", err, len(a.judges))
	}
	if err := another.send(late); err == nil {
		t.Error("a marked packet passes while the other socket is open")
	}
	a.close()
	if len(a.judges) != 0 {
		t.Errorf("%d programs for no socket", len(a.judges))
	}
	wire.expect(t, held4, func() {
		if err := another.send(late); err != nil {
			t.Error("a program is left on the link:", err)
		}
	})
	end()
}
