package discovery

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/barque/barque/apiserver/groups/grouptest"
)

const meta = "metadata: {name: s, namespace: default, resourceVersion: '1'}\n"

func TestDefaultSlice(t *testing.T) {
	got := grouptest.Parse[discoveryv1.EndpointSlice](t, `ports: [{port: 80}, {name: x, protocol: UDP}]`)
	defaultSlice(got)
	want := grouptest.Parse[discoveryv1.EndpointSlice](t,
		`ports: [{name: "", port: 80, protocol: TCP}, {name: x, protocol: UDP}]`)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestValidateSlice(t *testing.T) {
	for name, c := range map[string]struct {
		slice string
		want  []string
	}{
		"good": {
			"addressType: IPv4\nendpoints: [{addresses: [10.0.0.1], nodeName: n1, hostname: a, conditions: {ready: true}}]\nports: [{port: 80}]", nil},
		"empty":   {`addressType: IPv6`, nil},
		"names":   {"addressType: FQDN\nendpoints: [{addresses: [a.example.com]}]", nil},
		"no type": {``, []string{grouptest.Missing + "addressType"}},
		"type":    {`addressType: Smoke`, []string{grouptest.Unknown + "addressType"}},
		"addresses": {
			"addressType: IPv4\nendpoints: [{addresses: []}, {addresses: [x]}, {addresses: [127.0.0.1]}, {addresses: ['fd00::1']}]", []string{grouptest.Missing + "endpoints[0].addresses", grouptest.Invalid + "endpoints[1].addresses[0]", grouptest.Invalid + "endpoints[2].addresses[0]", grouptest.Invalid + "endpoints[3].addresses"}},
		"names of": {
			"addressType: IPv4\nendpoints: [{addresses: [10.0.0.1], nodeName: A, hostname: A, hints: {forZones: [{name: z}, {name: z}]}}]", []string{grouptest.Invalid + "endpoints[0].nodeName", grouptest.Invalid + "endpoints[0].hostname", grouptest.Duplicate + "endpoints[0].hints.forZones[1].name"}},
		"ports": {"addressType: IPv4\nports: [{port: 80}, {port: -1}, {name: A, port: 1, protocol: X}]",
			[]string{grouptest.Duplicate + "ports[1].name", grouptest.Invalid + "ports[2].name",
				grouptest.Unknown + "ports[2].protocol"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := grouptest.Parse[discoveryv1.EndpointSlice](t, meta+c.slice)
			defaultSlice(s)
			grouptest.WantErrors(t, validateSlice(context.Background(), s, nil), c.want...)
		})
	}
	old := grouptest.Parse[discoveryv1.EndpointSlice](t, meta+`addressType: IPv4`)
	s := old.DeepCopy()
	s.AddressType = discoveryv1.AddressTypeIPv6
	grouptest.WantErrors(t, validateSlice(context.Background(), s, old), grouptest.Invalid+"addressType")
}

func TestSliceRow(t *testing.T) {
	s := grouptest.Parse[discoveryv1.EndpointSlice](t,
		meta+
			"addressType: IPv4\nendpoints: [{addresses: [10.0.0.1]}, {addresses: [10.0.0.2]}, {addresses: [10.0.0.3]}, {addresses: [10.0.0.4]}]\nports: [{port: 80}, {}]")
	grouptest.WantRow(t, endpointSlices(), s, "s", "IPv4", "80,*", "10.0.0.1,10.0.0.2,10.0.0.3 + 1 more...",
		"<unknown>")
	grouptest.WantRow(t, endpointSlices(), grouptest.Parse[discoveryv1.EndpointSlice](t, meta+"addressType: IPv4"),
		"s", "IPv4", "<unset>", "<unset>", "<unknown>")
}
