// Package discovery declares the resources of the discovery.k8s.io API group: the endpoint slices
// that tell service proxies and DNS where the pods of a service are.
package discovery

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/groups/validation"
	"github.com/barque/barque/apiserver/resource"
)

// Limits of a slice.
const (
	mostEndpoints = 1000
	mostPorts     = 20000
	mostAddresses = 100
	mostZones     = 8
)

// Resources declares the group's resources.
func Resources() []resource.Resource { return []resource.Resource{endpointSlices()} }

func endpointSlices() resource.Resource {
	return &resource.Kind[discoveryv1.EndpointSlice]{
		GroupVersion: discoveryv1.SchemeGroupVersion,
		Name:         "endpointslices",
		Singular:     "endpointslice",
		List:         &discoveryv1.EndpointSliceList{},
		Generation:   true,
		Default:      defaultSlice,
		Validate:     validateSlice,
		Columns: []metav1.TableColumnDefinition{
			resource.Name(),
			resource.Column("AddressType", "string", "The type of the addresses in the slice."),
			resource.Column("Ports", "string", "The ports of all endpoints in the slice."),
			resource.Column("Endpoints", "string", "The addresses of the endpoints in the slice."),
			resource.Age(),
		},
		Row: func(s *discoveryv1.EndpointSlice, now time.Time) []any {
			return []any{s.Name, string(s.AddressType), formatPorts(s.Ports), formatEndpoints(s.Endpoints), resource.Since(s.CreationTimestamp, now)}
		},
	}
}

func defaultSlice(s *discoveryv1.EndpointSlice) {
	for i := range s.Ports {
		p := &s.Ports[i]
		if p.Name == nil {
			p.Name = ptr.To("")
		}
		if p.Protocol == nil {
			p.Protocol = ptr.To(corev1.ProtocolTCP)
		}
	}
}

func validateSlice(_ context.Context, s, old *discoveryv1.EndpointSlice) field.ErrorList {
	errs := validation.Meta(s, old, true, validation.SubdomainName)
	errs = append(errs, validation.Enum(s.AddressType, field.NewPath("addressType"),
		discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN)...)
	if old != nil {
		errs = append(errs, validation.Immutable(s.AddressType, old.AddressType, field.NewPath("addressType"))...)
	}
	at := field.NewPath("endpoints")
	if n := len(s.Endpoints); n > mostEndpoints {
		return append(errs, field.TooMany(at, n, mostEndpoints))
	}
	for i := range s.Endpoints {
		errs = append(errs, validateEndpoint(&s.Endpoints[i], s.AddressType, at.Index(i))...)
	}
	return append(errs, validatePorts(s.Ports, field.NewPath("ports"))...)
}

func validateEndpoint(e *discoveryv1.Endpoint, kind discoveryv1.AddressType, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch n := len(e.Addresses); {
	case n == 0:
		errs = append(errs, field.Required(at.Child("addresses"), "must contain at least 1 address"))
	case n > mostAddresses:
		errs = append(errs, field.TooMany(at.Child("addresses"), n, mostAddresses))
	}
	for i, address := range e.Addresses {
		errs = append(errs, validateAddress(address, kind, at.Child("addresses").Index(i))...)
	}
	if e.NodeName != nil {
		errs = append(errs, validation.DNSSubdomain(*e.NodeName, at.Child("nodeName"))...)
	}
	if e.Hostname != nil {
		errs = append(errs, validation.DNSLabel(*e.Hostname, at.Child("hostname"))...)
	}
	errs = append(errs, validation.Labels(e.DeprecatedTopology, at.Child("deprecatedTopology"))...)
	if e.Hints == nil {
		return errs
	}
	if n := len(e.Hints.ForZones); n > mostZones {
		errs = append(errs, field.TooMany(at.Child("hints", "forZones"), n, mostZones))
	}
	seen := map[string]bool{}
	for i, zone := range e.Hints.ForZones {
		at := at.Child("hints", "forZones").Index(i).Child("name")
		if seen[zone.Name] {
			errs = append(errs, field.Duplicate(at, zone.Name))
		}
		seen[zone.Name] = true
		errs = append(errs, validation.Name(zone.Name, at, utilvalidation.IsValidLabelValue)...)
	}
	return errs
}

func validateAddress(address string, kind discoveryv1.AddressType, at *field.Path) field.ErrorList {
	if kind == discoveryv1.AddressTypeFQDN {
		return utilvalidation.IsFullyQualifiedDomainName(at, address)
	}
	errs := validation.IP(address, at)
	ip := net.ParseIP(address)
	if ip == nil {
		return errs
	}
	if v4 := ip.To4() != nil; v4 != (kind == discoveryv1.AddressTypeIPv4) {
		errs = append(errs, field.Invalid(at, address, fmt.Sprintf("must be an %s address", kind)))
	}
	switch {
	case ip.IsUnspecified():
		errs = append(errs, field.Invalid(at, address, "may not be unspecified (0.0.0.0 or ::)"))
	case ip.IsLoopback():
		errs = append(errs, field.Invalid(at, address, "may not be in the loopback range (127.0.0.0/8, ::1/128)"))
	case ip.IsLinkLocalUnicast(), ip.IsLinkLocalMulticast():
		errs = append(errs, field.Invalid(at, address, "may not be in the link-local range"))
	}
	return errs
}

func validatePorts(ports []discoveryv1.EndpointPort, at *field.Path) field.ErrorList {
	if n := len(ports); n > mostPorts {
		return field.ErrorList{field.TooMany(at, n, mostPorts)}
	}
	var errs field.ErrorList
	names := map[string]bool{}
	for i, p := range ports {
		at := at.Index(i)
		name := ptr.Deref(p.Name, "")
		if name != "" {
			errs = append(errs, validation.DNSLabel(name, at.Child("name"))...)
		}
		if names[name] {
			errs = append(errs, field.Duplicate(at.Child("name"), name))
		}
		names[name] = true
		if p.Protocol == nil {
			errs = append(errs, field.Required(at.Child("protocol"), ""))
		}
		errs = append(errs, validation.OptionalEnum(p.Protocol, at.Child("protocol"), corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)...)
		if p.Port != nil {
			errs = append(errs, validation.Port(*p.Port, at.Child("port"))...)
		}
		if p.AppProtocol != nil {
			errs = append(errs, validation.Check(*p.AppProtocol, at.Child("appProtocol"), utilvalidation.IsQualifiedName)...)
		}
	}
	return errs
}

func formatPorts(ports []discoveryv1.EndpointPort) string {
	all := make([]string, len(ports))
	for i, p := range ports {
		all[i] = "*"
		if p.Port != nil {
			all[i] = strconv.Itoa(int(*p.Port))
		}
	}
	return firstThree(all)
}

func formatEndpoints(endpoints []discoveryv1.Endpoint) string {
	var all []string
	for _, e := range endpoints {
		all = append(all, e.Addresses...)
	}
	return firstThree(all)
}

func firstThree(all []string) string {
	const most = 3
	switch n := len(all); {
	case n == 0:
		return "<unset>"
	case n > most:
		return fmt.Sprintf("%s + %d more...", strings.Join(all[:most], ","), n-most)
	}
	return strings.Join(all, ",")
}
