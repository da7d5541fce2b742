package networking

import (
	"context"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/barque/barque/apiserver/groups/grouptest"
)

func TestServiceCIDR(t *testing.T) {
	ctx := context.Background()
	parse := func(cidrs string) *networkingv1.ServiceCIDR {
		return grouptest.Parse[networkingv1.ServiceCIDR](t,
			"metadata: {name: c, resourceVersion: '1'}\nspec: {cidrs: ["+cidrs+"]}")
	}
	const at = "spec.cidrs"
	for cidrs, want := range map[string][]string{
		"10.0.0.0/24":                     nil,
		"10.0.0.0/24, 'fd00::/112'":       nil,
		"":                                {grouptest.Missing + at},
		"a, b":                            {grouptest.Invalid + at + "[0]", grouptest.Invalid + at + "[1]"},
		"10.0.0.1/24":                     {grouptest.Invalid + at + "[0]"},
		"10.0.0.0/24, 10.1.0.0/24":        {grouptest.Invalid + at},
		"10.0.0.0/24, 10.1.0.0/24, 'a/b'": {grouptest.Invalid + at},
	} {
		grouptest.WantErrors(t, validateServiceCIDR(ctx, parse(cidrs), nil), want...)
	}
	old := parse("10.0.0.0/24")
	for cidrs, want := range map[string][]string{
		"10.0.0.0/24":               nil,
		"10.0.0.0/24, 'fd00::/112'": nil,
		"10.1.0.0/24":               {grouptest.Invalid + at + "[0]"},
		"10.1.0.0/24, 'fd00::/112'": {grouptest.Invalid + at + "[0]"},
		"10.0.0.0/24, 10.1.0.0/24":  {grouptest.Invalid + at},
		"":                          {grouptest.Invalid + at},
	} {
		grouptest.WantErrors(t, validateServiceCIDR(ctx, parse(cidrs), old), want...)
	}
	grouptest.WantRow(t, serviceCIDRs(), parse("10.0.0.0/24, 'fd00::/112'"), "c", "10.0.0.0/24,fd00::/112", "<unknown>")
}

func TestIPAddress(t *testing.T) {
	ctx := context.Background()
	for text, want := range map[string][]string{
		"metadata: {name: 10.0.0.1}\nspec: {parentRef: {resource: services, namespace: a, name: b}}":        nil,
		"metadata: {name: 'fd00::1'}\nspec: {parentRef: {group: example.com, resource: gateways, name: b}}": nil,
		"metadata: {name: 'fd00::0001'}\nspec: {}": {
			grouptest.Invalid + "metadata.name", grouptest.Missing + "spec.parentRef"},
		"metadata: {name: a}\nspec: {parentRef: {group: A, namespace: a/b}}": {
			grouptest.Invalid + "metadata.name", grouptest.Invalid + "spec.parentRef.group",
			grouptest.Missing + "spec.parentRef.resource", grouptest.Missing + "spec.parentRef.name",
			grouptest.Invalid + "spec.parentRef.namespace"},
	} {
		grouptest.WantErrors(t, validateIPAddress(ctx, grouptest.Parse[networkingv1.IPAddress](t, text), nil), want...)
	}
	old := grouptest.Parse[networkingv1.IPAddress](t,
		"metadata: {name: 10.0.0.1, resourceVersion: '1'}\nspec: {parentRef: {group: a.b, resource: Services, namespace: o, name: b}}")
	grouptest.WantErrors(t, validateIPAddress(ctx, old, old))
	a := old.DeepCopy()
	a.Spec.ParentRef.Name = "c"
	grouptest.WantErrors(t, validateIPAddress(ctx, a, old), grouptest.Invalid+"spec.parentRef")
	grouptest.WantRow(t, ipAddresses(), old, "10.0.0.1", "services.a.b/o/b")
	grouptest.WantRow(t, ipAddresses(), &networkingv1.IPAddress{}, "", "<none>")
}
