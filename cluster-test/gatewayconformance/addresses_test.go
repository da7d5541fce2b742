package main

import (
	"net/netip"
	"testing"
)

func TestAddressesOf(t *testing.T) {
	of, err := addressesOf(netip.MustParseAddr("192.0.2.11"))
	if err != nil || of.first != netip.MustParseAddr("192.0.2.180") || of.last.Less(of.usable) ||
		of.usable.Less(of.first) || !of.last.Less(of.unusable) {
		t.Errorf("%+v, %v", of, err)
	}
	if _, err := addressesOf(netip.MustParseAddr("2001:db8::1")); err == nil {
		t.Error("a pool of IPv6 addresses")
	}
}
