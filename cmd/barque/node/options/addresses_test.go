package options

import (
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/membership/enroll"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/network/nodeaddr"
	"github.com/barque/barque/network/overlay"
	"github.com/barque/barque/network/ranges"
	"github.com/barque/barque/pki"
)

func prefixes(text string) ranges.Prefixes {
	p, err := ranges.ParsePrefixes(text)
	if err != nil {
		panic(err)
	}
	return p
}

// TestSettingsOfBefore: clusters that were made when there was one family read their settings, and
// are read.
func TestSettingsOfBefore(t *testing.T) {
	const before = `{"clusterCIDR":"10.42.0.0/16","serviceCIDR":"10.43.0.0/16","domain":"cluster.local"}`
	var s Settings
	if err := json.Unmarshal([]byte(before), &s); err != nil {
		t.Fatal(err)
	}
	if now, err := json.Marshal(s); err != nil || string(now) != before {
		t.Errorf("%s became %s, %v", before, now, err)
	}
	s.ClusterCIDRs, s.ServiceCIDRs = prefixes("fd00:42::/56,10.42.0.0/16"), prefixes("fd00:43::/112, 10.43.0.0/16")
	text, err := json.Marshal(s)
	var again Settings
	if err != nil || json.Unmarshal(text, &again) != nil || again.ClusterCIDRs.String() != s.ClusterCIDRs.String() ||
		again.validate() != nil {
		t.Errorf("%s: %v, %v", text, again, again.validate())
	}
	if got := again.APIAddr().String() + " " + again.DNSAddr().String(); got != "fd00:43::1 fd00:43::a" {
		t.Errorf("the addresses of the API and of cluster DNS: %s", got)
	}
}

func TestNodeAddresses(t *testing.T) {
	for name, c := range map[string]struct {
		options Options
		fails   string
	}{
		"one": {Options{NodeIPs: []string{"192.0.2.1"}}, ""},
		"both": {
			Options{NodeIPs: []string{"2001:db8::1", "192.0.2.1"}, NodeExternalIPs: []string{"198.51.100.1"}}, ""},
		"two of a family": {Options{NodeIPs: []string{"192.0.2.1", "192.0.2.2"}}, "--node-ip"},
		"no address": {Options{NodeIPs: []string{"192.0.2.1"}, NodeExternalIPs: []string{"x"}},
			"--node-external-ip"},
		"another network":    {Options{NodeIPs: []string{"192.0.2.1"}, Network: "none"}, ""},
		"an unknown network": {Options{NodeIPs: []string{"192.0.2.1"}, Network: "calico"}, "--network"},
		"an unknown overlay": {
			Options{NodeIPs: []string{"192.0.2.1"}, Overlay: overlay.Config{Mode: "ipip", VNI: 1, Port: 1}}, "overlay"},
		"encrypted by nobody": {
			Options{NodeIPs: []string{"192.0.2.1"}, Network: "none",
				Overlay: overlay.Config{Mode: overlay.AutoWireGuard, VNI: 1, Port: 1}}, "encrypt nothing"},
		"an overlay of no use": {
			Options{NodeIPs: []string{"192.0.2.1"}, Overlay: overlay.Config{Mode: overlay.Auto, VNI: 1 << 24, Port: 1}},
			"identifier"},
	} {
		o := c.options
		err := o.completeAddresses()
		if (err != nil) != (c.fails != "") || err != nil && !strings.Contains(err.Error(), c.fails) {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil && o.Addr().String() != o.NodeIPs[0] {
			t.Errorf("%s: the primary address is %v", name, o.Addr())
		}
	}
}

// TestFitAddresses: detected addresses yield to the cluster's families; given ones do not.
func TestFitAddresses(t *testing.T) {
	v4, v6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	only4, only6 := DefaultSettings(), DefaultSettings()
	only6.ClusterCIDRs, only6.ServiceCIDRs = prefixes("fd00:42::/56"), prefixes("fd00:43::/112")
	both := DefaultSettings()
	both.ClusterCIDRs, both.ServiceCIDRs = append(both.ClusterCIDRs, only6.ClusterCIDRs...),
		append(both.ServiceCIDRs, only6.ServiceCIDRs...)
	for name, c := range map[string]struct {
		settings Settings
		detected bool
		have     []netip.Addr
		want     int
		fails    string
	}{
		"IPv4":                       {only4, true, []netip.Addr{v4, v6}, 1, ""},
		"IPv4, given both":           {only4, false, []netip.Addr{v4, v6}, 2, ""},
		"IPv6":                       {only6, true, []netip.Addr{v4, v6}, 1, ""},
		"both":                       {both, true, []netip.Addr{v4, v6}, 2, ""},
		"both, one missing":          {both, true, []netip.Addr{v4}, 0, "fd00:42::/56"},
		"IPv6, given IPv4 first":     {only6, false, []netip.Addr{v4, v6}, 0, "--node-ip in that order"},
		"none of the cluster's kind": {only6, true, []netip.Addr{v4}, 0, "--node-ip"},
	} {
		o := Options{Detected: c.detected, Addresses: nodeaddr.Addresses{Internal: c.have}}
		o.Addresses.Internal = append([]netip.Addr(nil), c.have...)
		err := o.fitAddresses(c.settings)
		if (err != nil) != (c.fails != "") || err != nil && !strings.Contains(err.Error(), c.fails) {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil && len(o.Addresses.Internal) != c.want {
			t.Errorf("%s: %v", name, o.Addresses.Internal)
		}
	}
}

// TestAwaitedFamilies: a member waits for an address of each of its cluster's families. A machine
// that is to join takes what there is.
func TestAwaitedFamilies(t *testing.T) {
	v4, v6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	both := DefaultSettings()
	both.ClusterCIDRs, both.ServiceCIDRs = prefixes("10.42.0.0/16,fd00:42::/56"), prefixes("10.43.0.0/16,fd00:43::/112")
	only4 := DefaultSettings()
	for name, c := range map[string]struct {
		of    *Settings
		addrs []netip.Addr
		waits string
	}{
		"no cluster yet":              {nil, []netip.Addr{v4}, ""},
		"one family":                  {&only4, []netip.Addr{v4}, ""},
		"one family, not this":        {&only4, []netip.Addr{v6}, "10.42.0.0/16"},
		"two families":                {&both, []netip.Addr{v4, v6}, ""},
		"two families, IPv4 is first": {&both, []netip.Addr{v4}, "fd00:42::/56"},
		"two families, IPv6 is first": {&both, []netip.Addr{v6}, "10.42.0.0/16"},
	} {
		o := testOptions(t, "n1")
		if c.of != nil {
			text, err := json.Marshal(c.of)
			if err != nil {
				t.Fatal(err)
			}
			r := &enroll.Record{Dir: o.DataDir, Phase: enroll.PhaseMember, Name: "n1", Role: pki.RoleAgent,
				Cluster: join.Cluster{ID: "c1", Settings: text}}
			if err := r.Save(); err != nil {
				t.Fatal(err)
			}
		}
		err := o.hasFamilies(c.addrs)
		if (err == nil) != (c.waits == "") || err != nil && !strings.Contains(err.Error(), c.waits) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestFamiliesAreNotAwaitedForever: a member on a machine that never gets an address of a further
// family goes on after a while, and its start tells the error. Until then the status names it.
func TestFamiliesAreNotAwaitedForever(t *testing.T) {
	o := testOptions(t, "n1")
	both := DefaultSettings()
	both.ClusterCIDRs, both.ServiceCIDRs = prefixes("10.42.0.0/16,fd00:42::/56"), prefixes("10.43.0.0/16,fd00:43::/112")
	text, err := json.Marshal(both)
	if err != nil {
		t.Fatal(err)
	}
	r := &enroll.Record{Dir: o.DataDir, Phase: enroll.PhaseMember, Name: "n1", Role: pki.RoleAgent,
		Cluster: join.Cluster{ID: "c1", Settings: text}}
	if err := r.Save(); err != nil {
		t.Fatal(err)
	}
	v4, v6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	synctest.Test(t, func(t *testing.T) {
		enough := o.awaitFamilies()
		<-time.After(time.Hour) // without any address
		err := enough([]netip.Addr{v4})
		if err == nil {
			t.Fatal("it does not wait")
		}
		if text := waitsFor(err); !strings.Contains(text, "fd00:42::/56") || strings.Contains(text, "no route") {
			t.Errorf("the status is %q", text)
		}
		<-time.After(familyPatience - time.Second)
		if enough([]netip.Addr{v4}) == nil {
			t.Error("it does not wait long enough")
		}
		if err := enough([]netip.Addr{v4, v6}); err != nil {
			t.Errorf("with both: %v", err)
		}
		<-time.After(time.Second)
		if err := enough([]netip.Addr{v4}); err != nil {
			t.Errorf("it waits forever: %v", err)
		}
	})
	if text := waitsFor(errors.New("network is unreachable")); !strings.Contains(text, "no route") {
		t.Errorf("the status without an address is %q", text)
	}
}
