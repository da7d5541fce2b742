package core

//lint:file-ignore SA1019 Endpoints are deprecated for clients, and served to them all the same.

import (
	"context"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/barque/barque/apiserver/groups/grouptest"
)

func TestServiceWarnings(t *testing.T) {
	for name, c := range map[string]struct {
		service string
		want    []string
	}{
		"nothing": {`{spec: {ports: [{port: 80}]}}`, nil},
		"headless": {
			`{spec: {clusterIP: None, loadBalancerIP: 1.2.3.4, externalIPs: [1.2.3.4], sessionAffinity: ClientIP}}`,
			[]string{"spec.SessionAffinity is ignored for headless services",
				"spec.externalIPs is ignored for headless services",
				"spec.loadBalancerIP is ignored for headless services"}},
		"external IPs": {`{spec: {externalIPs: [1.2.3.4]}}`,
			[]string{"spec.externalIPs is deprecated and may no longer be implemented in some clusters"}},
		"external name": {`{spec: {type: ExternalName, externalName: a.b, externalIPs: [1.2.3.4]}}`,
			[]string{`spec.externalIPs is ignored when spec.type is "ExternalName"`}},
		"name of none": {`{spec: {externalName: a.b}}`,
			[]string{`spec.externalName is ignored when spec.type is not "ExternalName"`}},
		"hints": {`{metadata: {annotations: {service.kubernetes.io/topology-aware-hints: Auto}}}`,
			[]string{
				"annotation service.kubernetes.io/topology-aware-hints is deprecated, please use service.kubernetes.io/topology-mode instead"}},
		"close": {`{spec: {trafficDistribution: PreferClose}}`,
			[]string{`spec.trafficDistribution: "PreferClose" is deprecated; use "PreferSameZone"`}},
		"addresses": {`{spec: {clusterIP: 'fd00:0::1', loadBalancerIP: 01.2.3.4}}`,
			[]string{`spec.clusterIPs[0]: IPv6 address "fd00:0::1" should be in RFC 5952 canonical format ("fd00::1")`,
				`spec.loadBalancerIP: non-standard IP address "01.2.3.4" is invalid: use "1.2.3.4"`}},
	} {
		t.Run(name, func(t *testing.T) {
			got := serviceWarnings(context.Background(), admitted(t, c.service, nil), nil)
			slices.Sort(got)
			if !slices.Equal(got, c.want) {
				t.Errorf("got %q\nwant %q", got, c.want)
			}
		})
	}
}

func TestWarningsOfOthers(t *testing.T) {
	ctx := context.Background()
	check := func(name string, got []string, want ...string) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	pod := grouptest.Parse[corev1.Pod](t,
		`{metadata: {name: a.b}, status: {podIPs: [{ip: 01.2.3.4}], hostIPs: [{ip: 1.2.3.4}]}}`)
	check("pod", podWarnings(ctx, pod, nil),
		`metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is recommended: [must not contain dots]`)
	check("pod, later", podWarnings(ctx, pod, pod))
	check("status", podStatusWarnings(ctx, pod, pod),
		`status.podIPs[0].ip: non-standard IP address "01.2.3.4" is invalid: use "1.2.3.4"`)

	node := grouptest.Parse[corev1.Node](t, `{spec: {externalID: x, podCIDRs: [10.0.0.0/24, 10.0.0.1/24]}}`)
	check("node", nodeWarnings(ctx, node, nil),
		"spec.externalID: this field is deprecated, and is unused by Kubernetes",
		`spec.podCIDRs[1]: CIDR value "10.0.0.1/24" is ambiguous in this context (should be "10.0.0.0/24" or "10.0.0.1/32"?)`)

	e := grouptest.Parse[corev1.Endpoints](t,
		`{subsets: [{addresses: [{ip: 1.2.3.4}], notReadyAddresses: [{ip: 01.2.3.4}]}]}`)
	check("endpoints", endpointsWarnings(ctx, e, nil),
		`subsets[0].notReadyAddresses[0].ip: non-standard IP address "01.2.3.4" is invalid: use "1.2.3.4"`)

	secret := grouptest.Parse[corev1.Secret](t, `{type: kubernetes.io/tls, data: {tls.crt: eA==, tls.key: eA==}}`)
	check("secret", secretWarnings(ctx, secret, nil), "tls: failed to find any PEM data in certificate input")
	check("other secret", secretWarnings(ctx, &corev1.Secret{}, nil))

	account := grouptest.Parse[corev1.ServiceAccount](t,
		`{metadata: {annotations: {kubernetes.io/enforce-mountable-secrets: "true"}}}`)
	check("account", accountWarnings(ctx, account, &corev1.ServiceAccount{}),
		"metadata.annotations[kubernetes.io/enforce-mountable-secrets]: deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets")
	check("account, again", accountWarnings(ctx, account, account))
}
