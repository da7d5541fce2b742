// Package discovery declares the resources of the discovery.k8s.io API group: the endpoint slices
// with the addresses of a service's pods, for service proxies and DNS.
package discovery

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"
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
		Prepare: func(_ context.Context, s, old *discoveryv1.EndpointSlice) {
			// A change of the labels counts: they name the slice's service.
			if old != nil && !apiequality.Semantic.DeepEqual(s.Labels, old.Labels) {
				s.Generation = old.Generation + 1
			}
		},
		Validate: validateSlice,
		Warnings: sliceWarnings,
		Columns: []metav1.TableColumnDefinition{
			resource.Name(),
			resource.Column("AddressType", "string", "The type of the addresses in the slice."),
			resource.Column("Ports", "string", "The ports of all endpoints in the slice."),
			resource.Column("Endpoints", "string", "The addresses of the endpoints in the slice."),
			resource.Age(),
		},
		Row: func(s *discoveryv1.EndpointSlice, now time.Time) []any {
			return []any{s.Name, string(s.AddressType), formatPorts(s.Ports), formatEndpoints(s.Endpoints),
				resource.Since(s.CreationTimestamp, now)}
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

// sliceWarnings warns of names in place of addresses, and of addresses in old forms.
func sliceWarnings(_ context.Context, s, old *discoveryv1.EndpointSlice) []string {
	var warnings []string
	if s.AddressType == discoveryv1.AddressTypeFQDN {
		if old == nil {
			warnings = append(warnings, "spec.addressType: FQDN endpoints are deprecated")
		}
		return warnings
	}
	for i, e := range s.Endpoints {
		for j, address := range e.Addresses {
			warnings = append(warnings,
				utilvalidation.GetWarningsForIP(field.NewPath("endpoints").Index(i).Child("addresses").Index(j),
					address)...)
		}
	}
	return warnings
}

func validateSlice(_ context.Context, s, old *discoveryv1.EndpointSlice) field.ErrorList {
	errs := validation.Meta(s, old, true, validation.SubdomainName)
	errs = append(errs, validation.Enum(s.AddressType, field.NewPath("addressType"),
		discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN)...)
	if old != nil {
		errs = append(errs, validation.Immutable(s.AddressType, old.AddressType, field.NewPath("addressType"))...)
	}
	errs = append(errs, validatePorts(s.Ports, field.NewPath("ports"))...)
	if old != nil && apiequality.Semantic.DeepEqual(s.Endpoints, old.Endpoints) {
		return errs // an address that was accepted once does not block other changes
	}
	at := field.NewPath("endpoints")
	if n := len(s.Endpoints); n > mostEndpoints {
		return append(errs, field.TooMany(at, n, mostEndpoints))
	}
	for i := range s.Endpoints {
		errs = append(errs, validateEndpoint(&s.Endpoints[i], s.AddressType, at.Index(i))...)
	}
	return errs
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
		errs = append(errs, validateAddress(address, kind, at.Child("addresses"), i)...)
	}
	if e.NodeName != nil {
		errs = append(errs, validation.Check(*e.NodeName, at.Child("nodeName"), utilvalidation.IsDNS1123Subdomain)...)
	}
	if e.Hostname != nil {
		errs = append(errs, validation.Check(*e.Hostname, at.Child("hostname"), utilvalidation.IsDNS1123Label)...)
	}
	errs = append(errs, validation.Labels(e.DeprecatedTopology, at.Child("deprecatedTopology"))...)
	if e.Hints == nil {
		return errs
	}
	if n := len(e.Hints.ForZones); n > mostZones {
		return append(errs, field.TooMany(at.Child("hints", "forZones"), n, mostZones))
	}
	seen := map[string]bool{}
	for i, zone := range e.Hints.ForZones {
		at := at.Child("hints", "forZones").Index(i).Child("name")
		if seen[zone.Name] {
			errs = append(errs, field.Duplicate(at, zone.Name))
		}
		seen[zone.Name] = true
		errs = append(errs, validation.Check(zone.Name, at, utilvalidation.IsValidLabelValue)...)
	}
	if n := len(e.Hints.ForNodes); n > mostZones {
		return append(errs, field.TooMany(at.Child("hints", "forNodes"), n, mostZones))
	}
	seen = map[string]bool{}
	for i, node := range e.Hints.ForNodes {
		at := at.Child("hints", "forNodes").Index(i).Child("name")
		if seen[node.Name] {
			errs = append(errs, field.Duplicate(at, node.Name))
		}
		seen[node.Name] = true
		errs = append(errs, validation.Check(node.Name, at, utilvalidation.IsDNS1123Subdomain)...)
	}
	return errs
}

func validateAddress(address string, kind discoveryv1.AddressType, list *field.Path, i int) field.ErrorList {
	at := list.Index(i)
	switch kind {
	case discoveryv1.AddressTypeFQDN:
		return utilvalidation.IsFullyQualifiedDomainName(at, address)
	case discoveryv1.AddressTypeIPv4:
		if errs := validation.IP(address, at); len(errs) > 0 {
			return errs
		}
	case discoveryv1.AddressTypeIPv6:
		if errs := utilvalidation.IsValidIP(at, address); len(errs) > 0 {
			return errs
		}
	default:
		return nil // the type is refused, and nothing is known about its addresses
	}
	var errs field.ErrorList
	ip := netutils.ParseIPSloppy(address)
	if v4 := ip.To4() != nil; v4 != (kind == discoveryv1.AddressTypeIPv4) {
		errs = append(errs, field.Invalid(list, address, fmt.Sprintf("must be an %s address", kind)))
	}
	return append(errs, validation.NonSpecialIP(address, at)...)
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
		errs = append(errs,
			validation.OptionalOneOf(p.Protocol, at.Child("protocol"), corev1.ProtocolSCTP, corev1.ProtocolTCP,
				corev1.ProtocolUDP)...)
		if p.AppProtocol != nil {
			errs = append(errs,
				validation.Check(*p.AppProtocol, at.Child("appProtocol"), utilvalidation.IsQualifiedName)...)
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
