package coordination

import (
	"context"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/barque/barque/apiserver/groups/grouptest"
)

func TestLease(t *testing.T) {
	const meta = "metadata: {name: l, namespace: default}\n"
	for name, c := range map[string]struct {
		lease string
		want  []string
	}{
		"good": {`spec: {holderIdentity: a, leaseDurationSeconds: 15, leaseTransitions: 0}`, nil},
		"numbers": {`spec: {leaseDurationSeconds: 0, leaseTransitions: -1}`,
			[]string{grouptest.Invalid + "spec.leaseDurationSeconds", grouptest.Invalid + "spec.leaseTransitions"}},
		"holder": {`spec: {preferredHolder: a}`, []string{grouptest.Forbidden + "spec.preferredHolder"}},
	} {
		t.Run(name, func(t *testing.T) {
			l := grouptest.Parse[coordinationv1.Lease](t, meta+c.lease)
			grouptest.WantErrors(t, validateLease(context.Background(), l, nil), c.want...)
		})
	}
	grouptest.WantRow(t, leases(), grouptest.Parse[coordinationv1.Lease](t, meta+`spec: {holderIdentity: me}`), "l",
		"me", "<unknown>")
}
