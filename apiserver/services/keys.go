package services

import (
	"net/netip"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// The prefixes of the reservations. Their value is the owner.
const (
	addressPrefix = "/barque/allocations/clusterips/"
	portPrefix    = "/barque/allocations/nodeports/"
)

func addressKey(a netip.Addr) string { return addressPrefix + a.String() }

func portKey(port int32) string { return portPrefix + strconv.Itoa(int(port)) }

// owner is how a Service is named in its reservations.
func owner(s *corev1.Service) string { return s.Namespace + "/" + s.Name + "/" + string(s.UID) }

// holdings are the values that belong to a Service.
type holdings struct {
	addresses map[netip.Addr]bool
	ports     map[int32]bool
}

// holdingsOf lists the allocated values of a Service; nil has none.
func holdingsOf(s *corev1.Service) holdings {
	h := holdings{map[netip.Addr]bool{}, map[int32]bool{}}
	if s == nil {
		return h
	}
	// A Service of long ago may have the singular field only. "None" and "" are no addresses.
	if s.Spec.Type != corev1.ServiceTypeExternalName {
		for _, text := range append([]string{s.Spec.ClusterIP}, s.Spec.ClusterIPs...) {
			if a, ok := parseAddress(text); ok {
				h.addresses[a] = true
			}
		}
	}
	for _, p := range s.Spec.Ports {
		h.ports[p.NodePort] = true
	}
	h.ports[s.Spec.HealthCheckNodePort] = true
	delete(h.ports, 0)
	return h
}

// parseAddress reads an address as Services have been allowed to write it, with leading zeros.
func parseAddress(text string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(text)
	if err != nil {
		octets := strings.Split(text, ".")
		for i, o := range octets {
			if octets[i] = strings.TrimLeft(o, "0"); octets[i] == "" && o != "" {
				octets[i] = "0"
			}
		}
		if a, err = netip.ParseAddr(strings.Join(octets, ".")); err != nil {
			return a, false
		}
	}
	return a.Unmap(), true
}

func familyOf(a netip.Addr) corev1.IPFamily {
	if a.Is4() {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}

// resourceVersion is the revision of a Service's newest change.
func resourceVersion(s *corev1.Service) (uint64, error) {
	return strconv.ParseUint(s.ResourceVersion, 10, 64)
}
