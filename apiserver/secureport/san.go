package secureport

import (
	"fmt"
	"net/netip"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// checkSAN returns why a text is no name or address for a certificate.
func checkSAN(name string) error {
	if addr, err := netip.ParseAddr(name); err == nil {
		if addr.Zone() != "" || addr.IsUnspecified() {
			return fmt.Errorf("--tls-san %s: want an address that clients call", name)
		}
		return nil
	}
	bad := validation.IsDNS1123Subdomain(name)
	if strings.HasPrefix(name, "*.") {
		bad = validation.IsWildcardDNS1123Subdomain(name)
	}
	if len(bad) > 0 {
		return fmt.Errorf("--tls-san %q: want a DNS name or an IP address: %s", name, strings.Join(bad, "; "))
	}
	return nil
}
