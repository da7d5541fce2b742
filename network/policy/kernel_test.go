package policy

import (
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"testing"

	"github.com/vishvananda/netns"

	"github.com/barque/barque/internal/needs"
	"github.com/barque/barque/network/nft"
)

// inNamespace moves the test's thread into a new network namespace. Nothing
// else runs on it any more.
func inNamespace(t *testing.T) tables {
	t.Helper()
	needs.Root(t, "network policies in the kernel")
	runtime.LockOSThread() // never unlocked
	handle, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { handle.Close() })
	return tables{writer: new(nft.Writer), families: []nft.Family{nft.IPv4, nft.IPv6}, dns: testDNS.Local.Addr()}
}

// TestKernelAcceptsEveryDelta walks the kernel through random clusters: it refuses
// whatever is deleted while used, or added twice.
func TestKernelAcceptsEveryDelta(t *testing.T) {
	kernel := inNamespace(t)
	own := []netip.Prefix{netip.MustParsePrefix("10.42.0.0/24"), netip.MustParsePrefix("fd00:42::/64")}
	s, applied := newState(testDNS), emptyRules()
	if err := kernel.replace(applied, own); err != nil {
		t.Fatal(err)
	}
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 2))
		randomWorld(r).turn(s, r)
		touched := s.take()
		if err := kernel.change(diff(applied, s.rules, touched)); err != nil {
			t.Fatalf("seed %d: %v\nfrom %+v\nto %+v", seed, err, applied, s.rules)
		}
		applied.take(s.rules, touched)
	}
	if err := kernel.replace(s.rules, own); err != nil {
		t.Errorf("replace what is there: %v", err)
	}
	for _, want := range []bool{true, false} {
		if got, err := kernel.writer.Tables(); err != nil ||
			slices.Contains(got, nft.Name{Family: nft.IPv6, Table: TableName}) != want {
			t.Errorf("tables: %v, %v; want ours: %v", got, err, want)
		}
		if err := Purge(); err != nil {
			t.Error(err)
		}
	}
	if err := Try(); err != nil {
		t.Errorf("trying what the kernel can do: %v", err)
	}
}
