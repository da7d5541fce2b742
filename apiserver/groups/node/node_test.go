package node

import (
	"context"
	"testing"

	nodev1 "k8s.io/api/node/v1"

	"github.com/barque/barque/apiserver/groups/grouptest"
	"github.com/barque/barque/apiserver/resource"
)

func TestRuntimeClass(t *testing.T) {
	ctx := context.Background()
	kind := runtimeClasses().(*resource.Kind[nodev1.RuntimeClass])
	const meta = "metadata: {name: c, resourceVersion: '1'}\n"
	for name, c := range map[string]struct {
		class string
		want  []string
	}{
		"good": {"handler: runc", nil},
		"all": {
			"handler: kata\noverhead: {podFixed: {cpu: 100m, memory: 64Mi}}\nscheduling: {nodeSelector: {a: b}, tolerations: [{key: a, operator: Exists}, {key: a, operator: Exists, effect: NoExecute}]}", nil},
		"no handler": {"handler: ''", []string{grouptest.Missing + "handler"}},
		"handler":    {"handler: A.b", []string{grouptest.Invalid + "handler"}},
		"overhead": {"handler: a\noverhead: {podFixed: {pods: 1, cpu: -1}}",
			[]string{grouptest.Invalid + "overhead.limits[pods]", grouptest.Invalid + "overhead.limits[cpu]"}},
		"selector": {"handler: a\nscheduling: {nodeSelector: {'a b': c}}",
			[]string{grouptest.Invalid + "scheduling.nodeSelector"}},
		"toleration": {"handler: a\nscheduling: {tolerations: [{key: a, operator: Maybe}]}",
			[]string{grouptest.Unknown + "scheduling.tolerations[0].operator"}},
		"twice": {
			"handler: a\nscheduling: {tolerations: [{key: a, effect: NoExecute, operator: Exists}, {key: a, effect: NoExecute, operator: Exists, tolerationSeconds: 5}]}", []string{grouptest.Duplicate + "scheduling.tolerations[1]"}},
	} {
		t.Run(name, func(t *testing.T) {
			class := grouptest.Parse[nodev1.RuntimeClass](t, meta+c.class)
			grouptest.WantErrors(t, kind.Validate(ctx, class, nil), c.want...)
			grouptest.WantErrors(t, kind.Validate(ctx, class, class), c.want...)
		})
	}
	old := grouptest.Parse[nodev1.RuntimeClass](t, meta+"handler: runc")
	grouptest.WantRow(t, kind, old, "c", "runc", "<unknown>")
	grouptest.WantErrors(t, kind.Validate(ctx, grouptest.Parse[nodev1.RuntimeClass](t, meta+"handler: kata"), old),
		grouptest.Invalid+"handler")

	old.Scheduling = &nodev1.Scheduling{NodeSelector: map[string]string{"beta.kubernetes.io/os": "linux", "a": "b"}}
	const want = `scheduling.nodeSelector: deprecated since v1.14; use "kubernetes.io/os" instead`
	if w := kind.Warnings(ctx, old, nil); len(w) != 1 || w[0] != want {
		t.Errorf("warnings: %q", w)
	}
}
