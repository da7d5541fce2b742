package core

import (
	"context"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/barque/barque/apiserver/groups/grouptest"
)

func TestWarnings(t *testing.T) {
	ctx := context.Background()
	check := func(name string, got []string, want ...string) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	node := grouptest.Parse[corev1.Node](t, `{spec: {externalID: x, podCIDRs: [10.0.0.0/24, 10.0.0.1/24]}}`)
	check("node", nodeWarnings(ctx, node, nil),
		"spec.externalID: this field is deprecated, and is unused by Kubernetes",
		`spec.podCIDRs[1]: CIDR value "10.0.0.1/24" is ambiguous in this context (should be "10.0.0.0/24" or "10.0.0.1/32"?)`)

	secret := grouptest.Parse[corev1.Secret](t, `{type: kubernetes.io/tls, data: {tls.crt: eA==, tls.key: eA==}}`)
	check("secret", secretWarnings(ctx, secret, nil), "tls: failed to find any PEM data in certificate input")
	check("other secret", secretWarnings(ctx, &corev1.Secret{}, nil))

	account := grouptest.Parse[corev1.ServiceAccount](t,
		`{metadata: {annotations: {kubernetes.io/enforce-mountable-secrets: "true"}}}`)
	check("account", accountWarnings(ctx, account, &corev1.ServiceAccount{}),
		"metadata.annotations[kubernetes.io/enforce-mountable-secrets]: deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets")
	check("account, again", accountWarnings(ctx, account, account))
}
