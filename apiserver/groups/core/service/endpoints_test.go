package service

//lint:file-ignore SA1019 Endpoints are deprecated for clients, and served to them all the same.

import (
	"context"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/barque/barque/apiserver/groups/grouptest"
)

func TestValidateEndpoints(t *testing.T) {
	e := grouptest.Parse[corev1.Endpoints](t, `
metadata: {name: a, namespace: b}
subsets:
- {ports: [{port: 80}]}
- {addresses: [{ip: 127.0.0.1}, {ip: x, hostname: A, nodeName: B}], ports: [{port: 0}, {name: p, port: 1, protocol: X}]}
`)
	defaultEndpoints(e)
	grouptest.WantErrors(t, validateEndpoints(context.Background(), e, nil),
		grouptest.Missing+"subsets[0]", grouptest.Invalid+"subsets[1].addresses[0].ip",
		grouptest.Invalid+"subsets[1].addresses[1].ip", grouptest.Invalid+"subsets[1].addresses[1].ip",
		grouptest.Invalid+"subsets[1].addresses[1].hostname", grouptest.Invalid+"subsets[1].addresses[1].nodeName",
		grouptest.Missing+"subsets[1].ports[0].name", grouptest.Invalid+"subsets[1].ports[0].port",
		grouptest.Unknown+"subsets[1].ports[1].protocol")
}

func TestEndpointsRow(t *testing.T) {
	ep := grouptest.Parse[corev1.Endpoints](t,
		`{metadata: {name: a}, subsets: [{addresses: [{ip: 10.0.0.1}, {ip: "fd00::1"}], ports: [{port: 80}, {port: 81}]}]}`)
	grouptest.WantRow(t, Endpoints(), ep, "a", "10.0.0.1:80,10.0.0.1:81,[fd00::1]:80 + 1 more...", "<unknown>")
}

func TestEndpointsWarnings(t *testing.T) {
	e := grouptest.Parse[corev1.Endpoints](t,
		`{subsets: [{addresses: [{ip: 1.2.3.4}], notReadyAddresses: [{ip: 01.2.3.4}]}]}`)
	got := endpointsWarnings(context.Background(), e, nil)
	want := `subsets[0].notReadyAddresses[0].ip: non-standard IP address "01.2.3.4" is invalid: use "1.2.3.4"`
	if !slices.Equal(got, []string{want}) {
		t.Errorf("got %q, want %q", got, want)
	}
}
