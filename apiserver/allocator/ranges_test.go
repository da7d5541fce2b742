package allocator

import (
	"math/rand/v2"
	"net/netip"
	"testing"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func TestAddresses(t *testing.T) {
	for _, tt := range []struct {
		cidr        string
		size        int
		first, last string
		outside     []string
	}{
		{"10.43.0.0/16", 65534, "10.43.0.1", "10.43.255.254",
			[]string{"10.43.0.0", "10.43.255.255", "10.44.0.1", "fd00::1"}},
		{"10.43.9.9/24", 254, "10.43.9.1", "10.43.9.254", []string{"10.43.9.0", "10.43.9.255"}},
		{"10.0.0.0/8", maxAddresses, "10.0.0.1", "10.16.0.0", []string{"10.255.255.255"}},
		{"fd00:43::/112", 65535, "fd00:43::1", "fd00:43::ffff", []string{"fd00:43::", "fd00:43::1:0"}},
		{"fd00:43::/64", maxAddresses, "fd00:43::1", "fd00:43::10:0", nil},
		{"10.43.0.0/30", 2, "10.43.0.1", "10.43.0.2", []string{"10.43.0.3"}},
		{"10.43.0.0/31", 0, "", "", []string{"10.43.0.0", "10.43.0.1"}},
		{"10.43.0.0/32", 0, "", "", []string{"10.43.0.0"}},
		{"fd00::/128", 0, "", "", []string{"fd00::"}},
	} {
		r := Addresses(netip.MustParsePrefix(tt.cidr))
		if r.values.size() != tt.size {
			t.Errorf("%s: %d addresses, want %d", tt.cidr, r.values.size(), tt.size)
			continue
		}
		for _, out := range tt.outside {
			if r.Contains(addr(out)) {
				t.Errorf("%s contains %s", tt.cidr, out)
			}
		}
		if tt.size == 0 {
			continue
		}
		if first, last := r.values.at(0), r.values.at(tt.size-1); first != addr(tt.first) || last != addr(tt.last) {
			t.Errorf("%s: from %v to %v", tt.cidr, first, last)
		}
		for range 100 {
			if v := r.values.at(rand.IntN(tt.size)); !r.Contains(v) {
				t.Fatalf("%s does not contain %v", tt.cidr, v)
			}
		}
	}
	if r := Addresses(netip.MustParsePrefix("fd00:43::/64")); !r.Contains(addr("fd00:43::ffff:ffff:ffff:ffff")) {
		t.Error("an address beyond those that are chosen cannot be asked for")
	}
}

func TestPorts(t *testing.T) {
	for _, bad := range [][2]int32{{0, 10}, {20, 10}, {60000, 65536}} {
		if _, err := Ports(bad[0], bad[1]); err == nil {
			t.Errorf("ports %v are valid", bad)
		}
	}
	r, err := Ports(30000, 30099)
	if err != nil {
		t.Fatal(err)
	}
	if r.Contains(29999) || !r.Contains(30000) || !r.Contains(30099) || r.Contains(30100) ||
		r.String() != "30000-30099" {
		t.Errorf("range %v has other bounds", r)
	}
}

// Each value is given once, those of the low band last.
func TestChoose(t *testing.T) {
	r, err := Ports(30000, 30099)
	if err != nil {
		t.Fatal(err)
	}
	if r.low != 16 {
		t.Fatalf("the low band of 100 ports is %d", r.low)
	}
	taken := map[int32]bool{}
	for i := range 100 {
		port, ok := r.Choose(func(p int32) bool { return !taken[p] })
		if !ok || taken[port] || !r.Contains(port) {
			t.Fatalf("the %dth port is %d, %v", i, port, ok)
		}
		if inLow := port < 30000+int32(r.low); inLow != (i >= 100-r.low) {
			t.Fatalf("the %dth port is %d", i, port)
		}
		taken[port] = true
	}
	if port, ok := r.Choose(func(p int32) bool { return !taken[p] }); ok {
		t.Errorf("a full range gave %d", port)
	}
}
