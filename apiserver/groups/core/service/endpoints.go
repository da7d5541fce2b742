package service

//lint:file-ignore SA1019 Endpoints are deprecated for clients, and served to them all the same.

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/barque/barque/apiserver/groups/validation"
	"github.com/barque/barque/apiserver/resource"
)

// Endpoints declares endpoints.
func Endpoints() resource.Resource {
	return &resource.Kind[corev1.Endpoints]{
		GroupVersion:   corev1.SchemeGroupVersion,
		Name:           "endpoints",
		Singular:       "endpoints",
		ShortNames:     []string{"ep"},
		List:           &corev1.EndpointsList{},
		CreateOnUpdate: true,
		// The prefix is beside services/specs, as in upstream.
		Prefix:   "services/endpoints",
		Default:  defaultEndpoints,
		Validate: validateEndpoints,
		Warnings: endpointsWarnings,
		Columns: []metav1.TableColumnDefinition{
			resource.Name(),
			resource.Column("Endpoints", "string", "Addresses and ports that are ready."),
			resource.Age(),
		},
		Row: func(e *corev1.Endpoints, now time.Time) []any {
			return []any{e.Name, formatEndpoints(e), resource.Since(e.CreationTimestamp, now)}
		},
	}
}

func defaultEndpoints(e *corev1.Endpoints) {
	for i := range e.Subsets {
		for j := range e.Subsets[i].Ports {
			if p := &e.Subsets[i].Ports[j]; p.Protocol == "" {
				p.Protocol = corev1.ProtocolTCP
			}
		}
	}
}

// endpointsWarnings warns of addresses in old forms. All readers and writers get the warning that
// the kind itself is deprecated.
func endpointsWarnings(_ context.Context, e, _ *corev1.Endpoints) []string {
	var warnings []string
	warn := func(addresses []corev1.EndpointAddress, at *field.Path) {
		for i, a := range addresses {
			warnings = append(warnings, utilvalidation.GetWarningsForIP(at.Index(i).Child("ip"), a.IP)...)
		}
	}
	for i, s := range e.Subsets {
		warn(s.Addresses, field.NewPath("subsets").Index(i).Child("addresses"))
		warn(s.NotReadyAddresses, field.NewPath("subsets").Index(i).Child("notReadyAddresses"))
	}
	return warnings
}

func validateEndpoints(_ context.Context, e, old *corev1.Endpoints) field.ErrorList {
	errs := validation.Meta(e, old, true, validation.SubdomainName)
	if old != nil && apiequality.Semantic.DeepEqual(e.Subsets, old.Subsets) {
		return errs // an address that was accepted once does not block other changes
	}
	for i := range e.Subsets {
		s, at := &e.Subsets[i], field.NewPath("subsets").Index(i)
		if len(s.Addresses)+len(s.NotReadyAddresses) == 0 {
			errs = append(errs, field.Required(at, "must specify `addresses` or `notReadyAddresses`"))
		}
		for j := range s.Addresses {
			errs = append(errs, validateEndpointAddress(&s.Addresses[j], at.Child("addresses").Index(j))...)
		}
		for j := range s.NotReadyAddresses {
			errs = append(errs,
				validateEndpointAddress(&s.NotReadyAddresses[j], at.Child("notReadyAddresses").Index(j))...)
		}
		for j, p := range s.Ports {
			at := at.Child("ports").Index(j)
			if p.Name != "" || len(s.Ports) > 1 {
				errs = append(errs, validation.DNSLabel(p.Name, at.Child("name"))...)
			}
			errs = append(errs, validation.Port(p.Port, at.Child("port"))...)
			errs = append(errs,
				validation.Enum(p.Protocol, at.Child("protocol"), corev1.ProtocolTCP, corev1.ProtocolUDP,
					corev1.ProtocolSCTP)...)
			if p.AppProtocol != nil {
				errs = append(errs,
					validation.Check(*p.AppProtocol, at.Child("appProtocol"), utilvalidation.IsQualifiedName)...)
			}
		}
	}
	return errs
}

func validateEndpointAddress(a *corev1.EndpointAddress, at *field.Path) field.ErrorList {
	errs := validation.IP(a.IP, at.Child("ip"))
	errs = append(errs, validation.NonSpecialIP(a.IP, at.Child("ip"))...)
	if a.Hostname != "" {
		errs = append(errs, validation.DNSLabel(a.Hostname, at.Child("hostname"))...)
	}
	if a.NodeName != nil {
		errs = append(errs, validation.Check(*a.NodeName, at.Child("nodeName"), utilvalidation.IsDNS1123Subdomain)...)
	}
	return errs
}

// formatEndpoints prints the first three endpoints and how many there are more.
func formatEndpoints(e *corev1.Endpoints) string {
	const most = 3
	var shown []string
	count := 0
	add := func(s string) {
		if count++; count <= most {
			shown = append(shown, s)
		}
	}
	for _, s := range e.Subsets {
		for _, a := range s.Addresses {
			if len(s.Ports) == 0 {
				add(a.IP)
			}
			for _, p := range s.Ports {
				add(net.JoinHostPort(a.IP, strconv.Itoa(int(p.Port))))
			}
		}
	}
	out := resource.OrNone(strings.Join(shown, ","))
	if count > most {
		out += fmt.Sprintf(" + %d more...", count-most)
	}
	return out
}
