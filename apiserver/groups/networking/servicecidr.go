package networking

import (
	"context"
	"slices"
	"strings"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/barque/barque/apiserver/groups/validation"
	"github.com/barque/barque/apiserver/resource"
)

func serviceCIDRs() resource.Resource {
	return &resource.Kind[networkingv1.ServiceCIDR]{
		GroupVersion:  version,
		Name:          "servicecidrs",
		Singular:      "servicecidr",
		ClusterScoped: true,
		List:          &networkingv1.ServiceCIDRList{},
		Validate:      validateServiceCIDR,
		Status: &resource.Status[networkingv1.ServiceCIDR]{
			Prepare: func(_ context.Context, c, old *networkingv1.ServiceCIDR) {
				metav1.ResetObjectMetaForStatus(&c.ObjectMeta, &old.ObjectMeta)
			},
			Reset: []fieldpath.Path{fieldpath.MakePathOrDie("metadata")},
		},
		Columns: []metav1.TableColumnDefinition{
			resource.Name(),
			resource.Column("CIDRs", "string", "The ranges of addresses."),
			resource.Age(),
		},
		Row: func(c *networkingv1.ServiceCIDR, now time.Time) []any {
			return []any{c.Name, strings.Join(c.Spec.CIDRs, ","), resource.Since(c.CreationTimestamp, now)}
		},
	}
}

func validateServiceCIDR(_ context.Context, c, old *networkingv1.ServiceCIDR) field.ErrorList {
	errs := validation.Meta(c, old, false, validation.SubdomainName)
	cidrs, at := c.Spec.CIDRs, field.NewPath("spec", "cidrs")
	if old == nil {
		return append(errs, validateCIDRs(cidrs, at)...)
	}
	was := old.Spec.CIDRs
	switch {
	case len(cidrs) == len(was):
		for i := range cidrs {
			errs = append(errs, validation.Immutable(cidrs[i], was[i], at.Index(i))...)
		}
	case len(was) == 1 && len(cidrs) == 2: // a cluster of one family gets the other
		errs = append(errs, validation.Immutable(cidrs[0], was[0], at.Index(0))...)
		errs = append(errs, validateCIDRs(cidrs, at)...)
	default:
		errs = append(errs, field.Invalid(at, cidrs, "field is immutable"))
	}
	return errs
}

func validateCIDRs(cidrs []string, at *field.Path) field.ErrorList {
	if len(cidrs) == 0 {
		return field.ErrorList{field.Required(at, "at least one CIDR required")}
	}
	if len(cidrs) > 2 {
		return field.ErrorList{field.Invalid(at, cidrs, "may only hold up to 2 values")}
	}
	var errs field.ErrorList
	var families []netutils.IPFamily
	for i, cidr := range cidrs {
		errs = append(errs, utilvalidation.IsValidCIDR(at.Index(i), cidr)...)
		family := netutils.IPFamilyOfCIDRString(cidr)
		if family != netutils.IPFamilyUnknown && slices.Contains(families, family) {
			errs = append(errs,
				field.Invalid(at, cidrs,
					"may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64"))
		}
		families = append(families, family)
	}
	return errs
}

func ipAddresses() resource.Resource {
	return &resource.Kind[networkingv1.IPAddress]{
		GroupVersion:  version,
		Name:          "ipaddresses",
		Singular:      "ipaddress",
		ShortNames:    []string{"ip"},
		ClusterScoped: true,
		List:          &networkingv1.IPAddressList{},
		Validate:      validateIPAddress,
		Columns: []metav1.TableColumnDefinition{
			resource.Name(),
			resource.Column("ParentRef", "string", "The object that has the address."),
		},
		Row: func(a *networkingv1.IPAddress, _ time.Time) []any {
			return []any{a.Name, formatParent(a.Spec.ParentRef)}
		},
	}
}

func formatParent(p *networkingv1.ParentReference) string {
	if p == nil {
		return resource.None
	}
	parts := []string{strings.ToLower(schema.GroupResource{Group: p.Group, Resource: p.Resource}.String())}
	if p.Namespace != "" {
		parts = append(parts, p.Namespace)
	}
	return strings.Join(append(parts, p.Name), "/")
}

// addressName lets an address be named by itself only, in its one canonical form.
func addressName(name string, _ bool) []string {
	var messages []string
	for _, err := range utilvalidation.IsValidIP(nil, name) {
		messages = append(messages, err.Detail)
	}
	return messages
}

func validateIPAddress(_ context.Context, a, old *networkingv1.IPAddress) field.ErrorList {
	errs := validation.Meta(a, old, false, addressName)
	p, at := a.Spec.ParentRef, field.NewPath("spec", "parentRef")
	if old != nil {
		errs = append(errs, validation.Immutable(p, old.Spec.ParentRef, at)...)
	}
	if p == nil {
		return append(errs, field.Required(at, ""))
	}
	if p.Group != "" {
		errs = append(errs, validation.Check(p.Group, at.Child("group"), utilvalidation.IsDNS1123Subdomain)...)
	}
	errs = append(errs, validation.PathSegment(p.Resource, at.Child("resource"))...)
	errs = append(errs, validation.PathSegment(p.Name, at.Child("name"))...)
	if p.Namespace != "" {
		errs = append(errs, validation.PathSegment(p.Namespace, at.Child("namespace"))...)
	}
	return errs
}
