package pod

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
	pod := grouptest.Parse[corev1.Pod](t,
		`{metadata: {name: a.b}, status: {podIPs: [{ip: 01.2.3.4}], hostIPs: [{ip: 1.2.3.4}]}}`)
	check("pod", podWarnings(ctx, pod, nil),
		`metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is recommended: [must not contain dots]`)
	check("pod, later", podWarnings(ctx, pod, pod))
	check("status", podStatusWarnings(ctx, pod, pod),
		`status.podIPs[0].ip: non-standard IP address "01.2.3.4" is invalid: use "1.2.3.4"`)
}
