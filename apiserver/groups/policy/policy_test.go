package policy

import (
	"context"
	"testing"
	"time"

	policyv1 "k8s.io/api/policy/v1"

	"github.com/barque/barque/apiserver/groups/grouptest"
)

const meta = "metadata: {name: b, namespace: default, resourceVersion: '1'}\n"

func TestValidateBudget(t *testing.T) {
	for name, c := range map[string]struct {
		spec string
		want []string
	}{
		"number":      {"minAvailable: 2, selector: {matchLabels: {a: b}}", nil},
		"percentage":  {"maxUnavailable: 50%, selector: {}, unhealthyPodEvictionPolicy: AlwaysAllow", nil},
		"empty":       {"", nil},
		"both":        {"minAvailable: 1, maxUnavailable: 1", []string{grouptest.Invalid + "spec"}},
		"negative":    {"minAvailable: -1", []string{grouptest.Invalid + "spec.minAvailable"}},
		"above all":   {"maxUnavailable: 101%", []string{grouptest.Invalid + "spec.maxUnavailable"}},
		"no percents": {"maxUnavailable: some", []string{grouptest.Invalid + "spec.maxUnavailable"}},
		"selector": {"selector: {matchExpressions: [{key: a, operator: Is}]}",
			[]string{grouptest.Invalid + "spec.selector.matchExpressions[0].operator"}},
		"policy": {"unhealthyPodEvictionPolicy: Maybe",
			[]string{grouptest.Unknown + "spec.unhealthyPodEvictionPolicy"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := grouptest.Parse[policyv1.PodDisruptionBudget](t, meta+"spec: {"+c.spec+"}")
			grouptest.WantErrors(t, validateBudget(context.Background(), b, nil), c.want...)
			grouptest.WantErrors(t, validateBudget(context.Background(), b, b), c.want...)
		})
	}
	// A name need not be a DNS name.
	b := grouptest.Parse[policyv1.PodDisruptionBudget](t, "metadata: {name: A_b, namespace: default}")
	grouptest.WantErrors(t, validateBudget(context.Background(), b, nil))
}

func TestBudgetStatusAndRow(t *testing.T) {
	b := grouptest.Parse[policyv1.PodDisruptionBudget](t, meta+`
spec: {minAvailable: 50%}
status: {disruptionsAllowed: 1, currentHealthy: 2, desiredHealthy: 1, expectedPods: 2}`)
	grouptest.WantErrors(t, validateBudgetStatus(context.Background(), b, nil))
	b.CreationTimestamp = grouptest.Ago(time.Minute)
	grouptest.WantRow(t, disruptionBudgets(), b, "b", "50%", "N/A", int64(1), "60s")

	bad := grouptest.Parse[policyv1.PodDisruptionBudget](t,
		`status: {disruptionsAllowed: -1, currentHealthy: -1, desiredHealthy: -1, expectedPods: -1, conditions: [{type: A}]}`)
	grouptest.WantErrors(t, validateBudgetStatus(context.Background(), bad, nil),
		grouptest.Invalid+"status.disruptionsAllowed", grouptest.Invalid+"status.currentHealthy",
		grouptest.Invalid+"status.desiredHealthy", grouptest.Invalid+"status.expectedPods",
		grouptest.Missing+"status.conditions[0].status", grouptest.Missing+"status.conditions[0].reason",
		grouptest.Missing+"status.conditions[0].lastTransitionTime")
}
