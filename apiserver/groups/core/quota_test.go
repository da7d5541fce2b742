package core

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/barque/barque/apiserver/groups/grouptest"
	"github.com/barque/barque/apiserver/resource"
)

const quotaMeta = "metadata: {name: q, namespace: default, resourceVersion: '1'}\n"

func TestLimitRangeDefaults(t *testing.T) {
	for in, want := range map[string]string{
		"{type: Container, max: {cpu: 2}, min: {memory: 1Mi}}":                "{type: Container, max: {cpu: 2}, min: {memory: 1Mi}, default: {cpu: 2}, defaultRequest: {cpu: 2, memory: 1Mi}}",
		"{type: Container, default: {cpu: 1}, max: {cpu: 2}, min: {cpu: 1m}}": "{type: Container, default: {cpu: 1}, defaultRequest: {cpu: 1}, max: {cpu: 2}, min: {cpu: 1m}}",
		"{type: Pod, max: {cpu: 0.0001}}":                                     "{type: Pod, max: {cpu: 1m}}",
	} {
		got := grouptest.Parse[corev1.LimitRange](t, "spec: {limits: ["+in+"]}")
		defaultLimitRange(got)
		if diff := cmp.Diff(grouptest.Parse[corev1.LimitRange](t, "spec: {limits: ["+want+"]}"), got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", in, diff)
		}
	}
	l := &corev1.LimitRange{}
	limitRanges().(*resource.Kind[corev1.LimitRange]).Prepare(context.Background(), l, nil)
	if l.Name == "" {
		t.Error("a limit range without a name got none")
	}
}

func TestValidateLimitRange(t *testing.T) {
	const at = "spec.limits[0]."
	for name, c := range map[string]struct {
		limits string
		want   []string
	}{
		"container":     {"{type: Container, min: {cpu: 0.1}, max: {cpu: 0.3}, maxLimitRequestRatio: {cpu: 3}}", nil},
		"pod and claim": {"{type: Pod, max: {memory: 1Gi}}, {type: PersistentVolumeClaim, max: {storage: 1Gi}}", nil},
		"own type":      {"{type: example.com/image, max: {storage: 1Gi}}", nil},
		"type":          {"{type: Image}", []string{grouptest.Invalid + at + "type"}},
		"no type":       {"{}", []string{grouptest.Invalid + at + "type", grouptest.Invalid + at + "type"}},
		"twice":         {"{type: Pod}, {type: Pod}", []string{grouptest.Duplicate + "spec.limits[1].type"}},
		"pod defaults": {"{type: Pod, default: {cpu: 1}, defaultRequest: {cpu: 1}}",
			[]string{grouptest.Forbidden + at + "default", grouptest.Forbidden + at + "defaultRequest"}},
		"claim": {"{type: PersistentVolumeClaim}", []string{grouptest.Missing + at + "limits"}},
		"names": {"{type: Pod, max: {pods: 1}, min: {bananas: 1}}",
			[]string{grouptest.Invalid + at + "max[pods]", grouptest.Invalid + at + "min[bananas]",
				grouptest.Invalid + at + "min[bananas]"}},
		"claim's names": {
			"{type: PersistentVolumeClaim, max: {storage: 1, bananas: 1}, maxLimitRequestRatio: {'a b': 2}}",
			[]string{grouptest.Invalid + at + "max[bananas]", grouptest.Invalid + at + "maxLimitRequestRatio[a b]"}},
		"min above max": {"{type: Pod, min: {cpu: 2}, max: {cpu: 1}}", []string{grouptest.Invalid + at + "min[cpu]"}},
		"request below": {"{type: Container, min: {cpu: 2}, default: {cpu: 3}, defaultRequest: {cpu: 1}}",
			[]string{grouptest.Invalid + at + "defaultRequest[cpu]"}},
		"request above": {"{type: Container, max: {cpu: 2}, defaultRequest: {cpu: 3}}",
			[]string{grouptest.Invalid + at + "defaultRequest[cpu]", grouptest.Invalid + at + "defaultRequest[cpu]"}},
		"default above": {"{type: Container, max: {cpu: 2}, default: {cpu: 3}, defaultRequest: {cpu: 1}}",
			[]string{grouptest.Invalid + at + "default[cpu]"}},
		"default below": {"{type: Container, min: {cpu: 2}, default: {cpu: 1}, defaultRequest: {cpu: 2}}",
			[]string{grouptest.Invalid + at + "default[cpu]", grouptest.Invalid + at + "defaultRequest[cpu]"}},
		"ratio": {"{type: Pod, maxLimitRequestRatio: {cpu: 0.5}}",
			[]string{grouptest.Invalid + at + "maxLimitRequestRatio[cpu]"}},
		"ratio too high": {"{type: Pod, min: {cpu: 1}, max: {cpu: 2}, maxLimitRequestRatio: {cpu: 3}}",
			[]string{grouptest.Invalid + at + "maxLimitRequestRatio[cpu]"}},
		"devices": {"{type: Container, default: {example.com/gpu: 2}, defaultRequest: {example.com/gpu: 1}}",
			[]string{grouptest.Invalid + at + "defaultRequest[example.com/gpu]"}},
	} {
		t.Run(name, func(t *testing.T) {
			l := grouptest.Parse[corev1.LimitRange](t, quotaMeta+"spec: {limits: ["+c.limits+"]}")
			defaultLimitRange(l)
			grouptest.WantErrors(t, validateLimitRange(context.Background(), l, nil), c.want...)
			grouptest.WantErrors(t, validateLimitRange(context.Background(), l, l), c.want...)
		})
	}
}

func TestValidateQuota(t *testing.T) {
	ctx := context.Background()
	const selector = "spec.scopeSelector.matchExpressions"
	for name, c := range map[string]struct {
		spec string
		want []string
	}{
		"good": {
			"hard: {cpu: 1.5, requests.memory: 1Gi, limits.cpu: 2, pods: 5, count/jobs.batch: 3, requests.example.com/gpu: 1, hugepages-2Mi: 4Mi, gold.storageclass.storage.k8s.io/requests.storage: 5Gi}", nil},
		"scopes": {"hard: {pods: 1, requests.cpu: 1}, scopes: [Terminating, NotBestEffort]", nil},
		"selector": {
			"hard: {pods: 1}, scopeSelector: {matchExpressions: [{scopeName: PriorityClass, operator: In, values: [high]}, {scopeName: BestEffort, operator: Exists}]}", nil},
		"volume class": {
			"hard: {requests.storage: 1Gi}, scopeSelector: {matchExpressions: [{scopeName: VolumeAttributesClass, operator: In, values: [gold]}]}", nil},
		"names": {"hard: {bananas: 1, 'a b': 1, storage: 1}",
			[]string{grouptest.Invalid + "spec.hard[bananas]", grouptest.Invalid + "spec.hard[bananas]",
				grouptest.Invalid + "spec.hard[a b]", grouptest.Invalid + "spec.hard[a b]",
				grouptest.Invalid + "spec.hard[storage]"}},
		"amounts": {"hard: {pods: 0.5, cpu: -1, example.com/gpu: 0.5}",
			[]string{grouptest.Invalid + "spec.hard[pods]", grouptest.Invalid + "spec.hard[cpu]",
				grouptest.Invalid + "spec.hard[example.com/gpu]"}},
		"scope": {"scopes: [Heavy]", []string{grouptest.Invalid + "spec.scopes"}},
		"scope of resource": {"hard: {pods: 1, cpu: 1, secrets: 1}, scopes: [BestEffort]",
			[]string{grouptest.Invalid + "spec.scopes", grouptest.Invalid + "spec.scopes"}},
		"conflict": {"scopes: [BestEffort, NotBestEffort, Terminating, NotTerminating]",
			[]string{grouptest.Invalid + "spec.scopes", grouptest.Invalid + "spec.scopes"}},
		"selector's scope": {
			"hard: {secrets: 1}, scopeSelector: {matchExpressions: [{scopeName: Heavy, operator: Exists}, {scopeName: PriorityClass, operator: Exists}]}", []string{grouptest.Invalid + selector + ".scopeName", grouptest.Invalid + selector}},
		"operators": {
			"scopeSelector: {matchExpressions: [{scopeName: BestEffort, operator: In, values: [a]}, {scopeName: PriorityClass, operator: Is}]}", []string{grouptest.Invalid + selector + ".operator", grouptest.Invalid + selector + ".operator"}},
		"values": {
			"scopeSelector: {matchExpressions: [{scopeName: PriorityClass, operator: In}, {scopeName: PriorityClass, operator: Exists, values: [a]}]}", []string{grouptest.Missing + selector + ".values", grouptest.Invalid + selector + ".values"}},
		"selector conflict": {
			"scopeSelector: {matchExpressions: [{scopeName: BestEffort, operator: Exists}, {scopeName: NotBestEffort, operator: Exists}]}", []string{grouptest.Invalid + selector}},
	} {
		t.Run(name, func(t *testing.T) {
			q := grouptest.Parse[corev1.ResourceQuota](t, quotaMeta+"spec: {"+c.spec+"}")
			grouptest.WantErrors(t, validateQuota(ctx, q, nil), c.want...)
			grouptest.WantErrors(t, validateQuota(ctx, q, q), c.want...)
		})
	}
	old := grouptest.Parse[corev1.ResourceQuota](t, quotaMeta+"spec: {scopes: [BestEffort]}")
	grouptest.WantErrors(t, validateQuota(ctx, grouptest.Parse[corev1.ResourceQuota](t, quotaMeta), old),
		grouptest.Invalid+"spec.scopes")
}

func TestQuotaStatusRowAndWarnings(t *testing.T) {
	ctx := context.Background()
	q := grouptest.Parse[corev1.ResourceQuota](t, quotaMeta+`
spec: {hard: {cpu: 3, limits.cpu: 2, requests.memory: 1Gi, limits.memory: 2Gi}}
status: {hard: {pods: 10, limits.cpu: 2, requests.cpu: 1}, used: {pods: 3, requests.cpu: 500m}}`)
	q.CreationTimestamp = grouptest.Ago(time.Minute)
	grouptest.WantErrors(t, validateQuotaStatus(ctx, q, q))
	grouptest.WantRow(t, resourceQuotas(), q, "q", "pods: 3/10, requests.cpu: 500m/1", "limits.cpu: 0/2", "60s")
	const want = "ResourceQuota cpu (3) should be less than limits.cpu (2)"
	if w := quotaWarnings(ctx, q, nil); len(w) != 1 || w[0] != want {
		t.Errorf("warnings: %q", w)
	}
	if w := quotaWarnings(ctx, q, q); len(w) != 0 {
		t.Errorf("warnings of an update: %q", w)
	}
	bad := grouptest.Parse[corev1.ResourceQuota](t, `status: {hard: {pods: -1}, used: {pods: 0.5}}`)
	grouptest.WantErrors(t, validateQuotaStatus(ctx, bad, q), grouptest.Missing+"resourceVersion",
		grouptest.Invalid+"status.hard[pods]", grouptest.Invalid+"status.used[pods]")

	l := grouptest.Parse[corev1.LimitRange](t, quotaMeta)
	l.CreationTimestamp = grouptest.Ago(0)
	grouptest.WantRow(t, limitRanges(), l, "q", "2030-01-02T03:04:05Z")
}
