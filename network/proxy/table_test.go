package proxy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netns"

	"github.com/barque/barque/internal/needs"
	"github.com/barque/barque/network/nft"
)

// inNamespace moves the test's thread into a new network namespace. Nothing
// else runs on it any more.
func inNamespace(t testing.TB) table {
	t.Helper()
	needs.Root(t, "the proxy's rules in the kernel")
	runtime.LockOSThread() // never unlocked
	handle, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { handle.Close() })
	return table{writer: new(nft.Writer), podNetwork: netip.MustParsePrefix("10.42.0.0/16"),
		serviceNetwork: netip.MustParsePrefix("10.43.0.0/16")}
}

// TestKernelAcceptsEveryDelta walks the kernel through random plans: it refuses
// whatever is deleted while used, or added twice.
func TestKernelAcceptsEveryDelta(t *testing.T) {
	kernel := inNamespace(t)
	for _, family := range []nft.Family{nft.IPv4, nft.IPv6} {
		kernel.walk(t, family)
	}
}

// walk is TestKernelAcceptsEveryDelta in one family.
func (kernel table) walk(t *testing.T, family nft.Family) {
	ours := nft.Name{Family: family, Table: TableName}
	if kernel.family = family; family == nft.IPv6 {
		kernel.podNetwork, kernel.serviceNetwork = netip.MustParsePrefix("fd00::a2a:0:0/96"),
			netip.MustParsePrefix("fd00::a2b:0:0/96")
		kernel.local = []netip.Addr{netip.MustParseAddr("fd5b::53")}
	}
	now := emptyRules()
	if err := kernel.replace(now); err != nil {
		t.Fatal(err)
	}
	for seed := range uint64(150) {
		r := rand.New(rand.NewPCG(seed, 3))
		next := plan(randomSnapshot(r))
		if family == nft.IPv6 {
			next = mirrorRules(next)
		}
		if err := kernel.change(diff(now, next)); err != nil {
			t.Fatalf("seed %d: %v\nfrom %+v\nto %+v", seed, err, now, next)
		}
		now = next
	}
	if err := kernel.replace(now); err != nil {
		t.Errorf("replace what is there: %v", err)
	}
	for _, want := range []bool{true, false} {
		if got, err := kernel.writer.Tables(); err != nil || slices.Contains(got, ours) != want {
			t.Errorf("tables: %v, %v; want ours: %v", got, err, want)
		}
		if err := Purge(); err != nil {
			t.Error(err)
		}
	}
}

// TestManyServices: a large cluster fits into one transaction, and a change in
// it costs no more than in a small one.
func TestManyServices(t *testing.T) {
	kernel := inNamespace(t)
	rules := emptyRules()
	for i := range 2000 {
		name := fmt.Sprintf("all/default/s%d/TCP/80", i)
		var backends []Backend
		for j := range 3 {
			backends = append(backends,
				Backend{Addr: netip.AddrFrom4([4]byte{10, 42, byte(i >> 8), byte(j)}), Port: 80})
		}
		rules.Chains[name] = Chain{HideForeign: true, Backends: backends}
		rules.Frontends[Frontend{Addr: netip.AddrFrom4([4]byte{10, 43, byte(i >> 8), byte(i)}), Port: 80}] = name
	}
	var large []Backend
	for i := range 1234 {
		large = append(large, Backend{Addr: netip.AddrFrom4([4]byte{10, 42, byte(i >> 8), byte(i)}), Port: 80})
	}
	rules.Chains["all/default/large/TCP/80"] = Chain{Backends: large}
	began := time.Now()
	if err := kernel.replace(rules); err != nil {
		t.Fatal(err)
	}
	t.Logf("2,000 services of 3 and one of %d endpoints written in %v", len(large), time.Since(began))

	next := emptyRules()
	next.Frontends, next.Hairpins = rules.Frontends, rules.Hairpins
	for name, chain := range rules.Chains {
		next.Chains[name] = chain
	}
	next.Chains["all/default/s77/TCP/80"] = Chain{HideForeign: true, Backends: large[:2]}
	began = time.Now()
	delta := diff(rules, next)
	t.Logf("compared in %v", time.Since(began))
	began = time.Now()
	if err := kernel.change(delta); err != nil {
		t.Fatal(err)
	}
	t.Logf("one service changed in %v", time.Since(began))
}
