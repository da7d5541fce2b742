package redirect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/barque/barque/edge/hold"
	"github.com/barque/barque/internal/apart"
	"github.com/barque/barque/network/nft"
)

// wanted is a Config.Wanted that the test changes.
type wanted struct {
	mu      sync.Mutex
	all     []netip.AddrPort
	changed chan struct{}
}

func (w *wanted) get() ([]netip.AddrPort, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all, w.changed
}

func (w *wanted) set(texts ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = nil
	for _, text := range texts {
		w.all = append(w.all, netip.MustParseAddrPort(text))
	}
	close(w.changed)
	w.changed = make(chan struct{})
}

// addressed gives the machine addresses, and routes for others by a link to nowhere.
func addressed(t *testing.T, own, routed []string) {
	t.Helper()
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "out"}, PeerName: "far"}); err != nil {
		t.Fatal(err)
	}
	link, err := netlink.LinkByName("out")
	if err != nil {
		t.Fatal(err)
	}
	far, err := netlink.LinkByName("far")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(netlink.LinkSetUp(link), netlink.LinkSetUp(far)); err != nil {
		t.Fatal(err)
	}
	for _, text := range own {
		a, err := netlink.ParseAddr(text)
		if err != nil {
			t.Fatal(err)
		}
		a.Flags = unix.IFA_F_NODAD
		if err := netlink.AddrAdd(link, a); err != nil {
			t.Fatal(err)
		}
	}
	for _, text := range routed {
		_, dst, err := net.ParseCIDR(text)
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: dst}); err != nil {
			t.Fatal(err)
		}
	}
}

// answer is the text that a server at an address says.
func answer(addr string) string {
	conn, err := net.DialTimeout("tcp", addr, 200*time.Millisecond) // brief: it is tried again
	if err != nil {
		return "nobody"
	}
	defer conn.Close()
	// A connection of the moment in which the last table goes is translated no more.
	if err := conn.SetDeadline(time.Now().Add(200 * time.Millisecond)); err != nil { // brief: it is tried again
		return "nobody"
	}
	text, err := io.ReadAll(conn)
	if err != nil {
		return "nobody"
	}
	return string(text)
}

// TestRedirect: packets for wanted addresses come to a program at the machine's own address, of
// both families, at the wanted ports alone, and no more when the process ends.
func TestRedirect(t *testing.T) {
	if !apart.Run(t, apart.Network, 20*time.Second, "packets for addresses of Gateways") {
		return
	}
	addressed(t, []string{"192.0.2.1/24", "2001:db8::1/64"}, []string{"198.51.100.0/24", "2001:db8:1::/64"})
	listener, err := net.Listen("tcp", ":8080")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() { // ends with the listener
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, conn.LocalAddr().(*net.TCPAddr).IP.String())
			_ = conn.Close()
		}
	}()
	w := &wanted{changed: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- Run(ctx, Config{Table: TableOfGateways, Of: "the test", Wanted: w.get,
			Failed: func(err error) { t.Error(err) },
			To:     []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}})
	}()
	expect := func(addr, want string) {
		t.Helper()
		for got := ""; got != want; got = answer(addr) {
			if ctx.Err() != nil {
				t.Fatalf("%s: %q, want %q", addr, got, want)
			}
		}
	}
	w.set("198.51.100.7:8080", "[2001:db8:1::7]:8080", "198.51.100.8:9090")
	expect("198.51.100.7:8080", "192.0.2.1")
	expect("[2001:db8:1::7]:8080", "2001:db8::1")
	if got := answer("198.51.100.8:8080"); got != "nobody" {
		t.Errorf("another port of an address: %q", got)
	}
	w.set("[2001:db8:1::7]:8080")
	expect("198.51.100.7:8080", "nobody")
	expect("[2001:db8:1::7]:8080", "2001:db8::1")
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	names, err := new(nft.Writer).Tables()
	if err != nil || slices.ContainsFunc(names, func(n nft.Name) bool { return n.Table == TableOfGateways }) {
		t.Errorf("tables %v, %v", names, err)
	}
}

// TestNoAddressOfTheFamily: the error says what is missing.
func TestNoAddressOfTheFamily(t *testing.T) {
	if !apart.Run(t, apart.Network, time.Minute, "the error of a machine without an address of a family") {
		return
	}
	w := &wanted{changed: make(chan struct{})}
	w.set("[2001:db8:1::7]:80")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	failed := make(chan error, 1)
	ended := make(chan error, 1)
	go func() {
		ended <- Run(ctx, Config{Table: TableOfGateways, Of: "the test", Wanted: w.get,
			To: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Failed: func(err error) { failed <- err }})
	}()
	if err := <-failed; !strings.Contains(fmt.Sprint(err), "no address of the family IPv6") {
		t.Error(err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestOneErrorOfEachFamily: two errors that last are not told again and again in turn.
func TestOneErrorOfEachFamily(t *testing.T) {
	if !apart.Run(t, apart.Network, time.Minute, "the errors of a machine without an address") {
		return
	}
	w := &wanted{changed: make(chan struct{})}
	w.set("192.0.2.7:80", "[2001:db8:1::7]:80")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	failed, looked := make(chan error, 10), make(chan bool)
	ended := make(chan error, 1)
	go func() {
		ended <- Run(ctx, Config{Table: TableOfGateways, Of: "the test", Failed: func(err error) { failed <- err },
			Wanted: func() ([]netip.AddrPort, <-chan struct{}) {
				looked <- true
				return w.get()
			}})
	}()
	for range 3 {
		<-looked
	}
	cancel()
	select {
	case <-looked: // one was under way
	case err := <-ended:
		ended <- err
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if n := len(failed); n != 2 {
		t.Errorf("%d errors were told", n)
	}
}

// TestHeld: of what a server holds, the API's addresses count.
func TestHeld(t *testing.T) {
	api, other := netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("192.0.2.11")
	changed := make(chan struct{})
	get := Held(func() ([]hold.Hold, <-chan struct{}) {
		return []hold.Hold{{Addr: other}, {Addr: api}}, changed
	}, []netip.Addr{api}, 6443)
	got, signal := get()
	if !slices.Equal(got, []netip.AddrPort{netip.AddrPortFrom(api, 6443)}) || signal != (<-chan struct{})(changed) {
		t.Error(got)
	}
}
