package allocator

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/barque/barque/raftstore"
)

func newBackend(t *testing.T) *raftstore.Store {
	t.Helper()
	store := raftstore.NewInMemory(raftstore.Options{})
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return store
}

func newAddresses(t *testing.T, backend Backend, cidr string) *Pool[netip.Addr] {
	t.Helper()
	pool, err := NewAddresses(backend, netip.MustParsePrefix(cidr))
	if err != nil {
		t.Fatal(err)
	}
	return pool
}

func newPorts(t *testing.T, backend Backend, first, last int32) *Pool[int32] {
	t.Helper()
	pool, err := NewPorts(backend, first, last)
	if err != nil {
		t.Fatal(err)
	}
	return pool
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func TestAllocateGivesEachValueOnce(t *testing.T) {
	pool := newAddresses(t, newBackend(t), "10.43.0.0/26")
	seen := make(map[netip.Addr]bool)
	const usable = 64 - 3 // without network, broadcast and the kubernetes Service's
	for i := range usable {
		value, err := pool.Allocate(t.Context(), fmt.Sprintf("ns/s%d/uid", i))
		if err != nil {
			t.Fatal(err)
		}
		if seen[value] {
			t.Fatalf("%v was given twice", value)
		}
		seen[value] = true
	}
	for _, never := range []string{"10.43.0.0", "10.43.0.1", "10.43.0.63"} {
		if seen[addr(never)] {
			t.Errorf("%s was given", never)
		}
	}
	if _, err := pool.Allocate(t.Context(), "ns/more/uid"); !errors.Is(err, ErrFull) {
		t.Errorf("allocating from a full range: %v", err)
	}
	if err := pool.Release(t.Context(), addr("10.43.0.40"), "ns/nobody/uid"); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Allocate(t.Context(), "ns/more/uid"); !errors.Is(err, ErrFull) {
		t.Errorf("after a release by somebody else: %v", err)
	}
}

func TestAllocateLeavesTheLowBandForLast(t *testing.T) {
	pool := newPorts(t, newBackend(t), 30000, 30099)
	low := pool.low
	if low != 16 {
		t.Fatalf("the low band of 100 ports is %d", low)
	}
	for i := range 100 {
		port, err := pool.Allocate(t.Context(), fmt.Sprintf("ns/s%d/uid", i))
		if err != nil {
			t.Fatal(err)
		}
		if inLow := port < 30000+int32(low); inLow != (i >= 100-low) {
			t.Fatalf("the %dth port is %d", i, port)
		}
	}
}

func TestReserve(t *testing.T) {
	backend := newBackend(t)
	addresses := newAddresses(t, backend, "10.43.0.0/16")
	ports := newPorts(t, backend, 30000, 32767)
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	must(addresses.Reserve(ctx, addr("10.43.7.7"), "ns/a/1"))
	must(addresses.Reserve(ctx, addr("10.43.7.7"), "ns/a/1")) // again, after a lost answer
	must(ports.Reserve(ctx, 30080, "ns/a/1"))

	tests := []struct {
		name string
		err  error
		want error
		says string
	}{
		{"taken address", addresses.Reserve(ctx, addr("10.43.7.7"), "ns/b/2"), ErrAllocated, "provided IP 10.43.7.7 is already allocated"},
		{"taken port", ports.Reserve(ctx, 30080, "ns/b/2"), ErrAllocated, "provided port 30080 is already allocated"},
		{"foreign address", addresses.Reserve(ctx, addr("10.44.0.1"), "ns/b/2"), ErrNotInRange, "The range of valid IPs is 10.43.0.0/16"},
		{"network's address", addresses.Reserve(ctx, addr("10.43.0.0"), "ns/b/2"), ErrNotInRange, ""},
		{"broadcast address", addresses.Reserve(ctx, addr("10.43.255.255"), "ns/b/2"), ErrNotInRange, ""},
		{"IPv6 address", addresses.Reserve(ctx, addr("fd00::1"), "ns/b/2"), ErrNotInRange, ""},
		{"port below", ports.Reserve(ctx, 29999, "ns/b/2"), ErrNotInRange, "The range of valid ports is 30000-32767"},
		{"port above", ports.Reserve(ctx, 32768, "ns/b/2"), ErrNotInRange, ""},
		{"kubernetes Service's", addresses.Reserve(ctx, addr("10.43.0.1"), "ns/b/2"), ErrAllocated, "default/kubernetes"},
	}
	for _, tt := range tests {
		if !errors.Is(tt.err, tt.want) || !strings.Contains(tt.err.Error(), tt.says) {
			t.Errorf("%s: %v", tt.name, tt.err)
		}
	}

	// The kubernetes Service gets its address again when it is made anew.
	must(addresses.Reserve(ctx, addr("10.43.0.1"), "default/kubernetes/1"))
	must(addresses.Reserve(ctx, addr("10.43.0.1"), "default/kubernetes/2"))

	must(addresses.Release(ctx, addr("10.43.7.7"), "ns/b/2")) // not its own
	if err := addresses.Reserve(ctx, addr("10.43.7.7"), "ns/b/2"); !errors.Is(err, ErrAllocated) {
		t.Errorf("after a release by another owner: %v", err)
	}
	must(addresses.Release(ctx, addr("10.43.7.7"), "ns/a/1"))
	must(addresses.Reserve(ctx, addr("10.43.7.7"), "ns/b/2"))
}

func TestRanges(t *testing.T) {
	backend := newBackend(t)
	tests := []struct {
		cidr        string
		size        int
		first, last string
		fails       bool
	}{
		{cidr: "10.43.0.0/16", size: 65534, first: "10.43.0.1", last: "10.43.255.254"},
		{cidr: "10.43.9.9/24", size: 254, first: "10.43.9.1", last: "10.43.9.254"},
		{cidr: "10.0.0.0/8", size: maxAddresses, first: "10.0.0.1", last: "10.16.0.0"},
		{cidr: "fd00:43::/112", size: 65535, first: "fd00:43::1", last: "fd00:43::ffff"},
		{cidr: "fd00:43::/64", size: maxAddresses, first: "fd00:43::1", last: "fd00:43::10:0"},
		{cidr: "10.43.0.0/30", size: 2, first: "10.43.0.1", last: "10.43.0.2"},
		{cidr: "10.43.0.0/31", fails: true},
		{cidr: "10.43.0.0/32", fails: true},
	}
	for _, tt := range tests {
		pool, err := NewAddresses(backend, netip.MustParsePrefix(tt.cidr))
		if tt.fails != (err != nil) {
			t.Errorf("%s: %v", tt.cidr, err)
		}
		if tt.fails {
			continue
		}
		r := pool.values
		if r.size() != tt.size || r.at(0) != addr(tt.first) || r.at(tt.size-1) != addr(tt.last) {
			t.Errorf("%s: %d addresses from %v to %v", tt.cidr, r.size(), r.at(0), r.at(r.size()-1))
		}
		for range 100 {
			i := rand.IntN(tt.size)
			if got, ok := r.index(r.at(i)); !ok || got != i {
				t.Fatalf("%s: address %d is %v, whose number is %d, %v", tt.cidr, i, r.at(i), got, ok)
			}
		}
	}
	for _, bad := range [][2]int32{{0, 10}, {20, 10}, {60000, 65536}} {
		if _, err := NewPorts(backend, bad[0], bad[1]); err == nil {
			t.Errorf("ports %v are valid", bad)
		}
	}
}

// TestServersDoNotFight has several servers give away and take back all of a small range at once.
func TestServersDoNotFight(t *testing.T) {
	backend := newBackend(t)
	const servers, rounds = 6, 60
	var mu sync.Mutex
	holders := make(map[int32]string)
	var wg sync.WaitGroup
	for server := range servers {
		pool := newPorts(t, backend, 30000, 30007)
		wg.Go(func() {
			for round := range rounds {
				owner := fmt.Sprintf("ns/s%d-%d/uid", server, round)
				port, err := pool.Allocate(t.Context(), owner)
				if errors.Is(err, ErrFull) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if other, held := holders[port]; held {
					t.Errorf("port %d was given to %s while %s had it", port, owner, other)
				}
				holders[port] = owner
				mu.Unlock()

				mu.Lock()
				delete(holders, port)
				mu.Unlock()
				if err := pool.Release(t.Context(), port, owner); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// brokenBackend loses the answers of the store.
type brokenBackend struct {
	Backend
	commit error
}

func (b brokenBackend) Commit(context.Context, raftstore.Txn) (raftstore.Result, error) {
	return raftstore.Result{}, b.commit
}

func TestStoreErrorsAreAPIErrors(t *testing.T) {
	pool := newPorts(t, brokenBackend{newBackend(t), raftstore.ErrUnavailable}, 30000, 30100)
	if _, err := pool.Allocate(t.Context(), "ns/a/1"); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("without a leader: %v", err)
	}
	pool = newPorts(t, brokenBackend{newBackend(t), raftstore.ErrUnknownOutcome}, 30000, 30100)
	if err := pool.Reserve(t.Context(), 30000, "ns/a/1"); !apierrors.IsTimeout(err) {
		t.Errorf("with a lost answer: %v", err)
	}
}
