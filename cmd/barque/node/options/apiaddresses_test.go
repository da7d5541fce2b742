package options

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/barque/barque/apiserver/secureport"
	"github.com/barque/barque/network/ranges"
)

func TestAPIAddressesAreChecked(t *testing.T) {
	settings := Settings{
		ClusterCIDRs: ranges.Prefixes{netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("fd42::/56")},
		ServiceCIDRs: ranges.Prefixes{netip.MustParsePrefix("10.43.0.0/16"), netip.MustParsePrefix("fd43::/112")},
	}
	for given, want := range map[string]string{
		"":                      "",
		"192.0.2.10":            "",
		"192.0.2.10,fd00::10":   "",
		"192.0.2.10,192.0.2.11": "one of each family",
		"api.example":           "want a free address",
		"127.0.0.1":             "want a free address",
		"0.0.0.0":               "want a free address",
		"224.0.0.1":             "want a free address",
		"fe80::1%eth0":          "want a free address",
		"::ffff:192.0.2.10":     "want a free address",
		"192.0.2.1":             "this machine's own",
		"10.42.7.7":             "addresses of pods",
		"10.43.7.7":             "addresses of services",
		"fd43::7":               "addresses of services",
	} {
		o := &Options{Serving: ServingOptions{API: secureport.NewOptions()}}
		o.Addresses.Internal = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("fd00::1")}
		if given != "" {
			o.Serving.API.Addresses = strings.Split(given, ",")
		}
		err := o.completeAPIAddresses()
		if err == nil {
			err = o.checkAPIAddresses(settings)
		}
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("--api-address %s: %v, want %q", given, err, want)
		}
	}
	o := &Options{Serving: ServingOptions{API: secureport.NewOptions()}}
	o.Addresses.Internal = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	o.Serving.API.Addresses = []string{"fd00::10"}
	if err := o.completeAPIAddresses(); err == nil || !strings.Contains(err.Error(), "no address of that family") {
		t.Errorf("a family that the machine lacks: %v", err)
	}
	// Agents must not get a certificate for it.
	o.Serving.API.Addresses = []string{"192.0.2.10"}
	if _, is := o.Serving.SANOf("192.0.2.10"); !is {
		t.Error("the address is none of the API's")
	}
	if err := o.completeAPIAddresses(); err != nil || o.APIAddress() != netip.MustParseAddr("192.0.2.10") {
		t.Error(o.APIAddress(), err)
	}
}
