package scheduling

import (
	"context"
	"testing"

	schedulingv1 "k8s.io/api/scheduling/v1"

	"github.com/barque/barque/apiserver/groups/grouptest"
	"github.com/barque/barque/apiserver/resource"
)

func TestPriorityClass(t *testing.T) {
	kind := priorityClasses().(*resource.Kind[schedulingv1.PriorityClass])
	for name, c := range map[string]struct {
		class string
		want  []string
	}{
		"good":     {`{metadata: {name: a}, value: 1000000000}`, nil},
		"negative": {`{metadata: {name: a}, value: -5}`, nil},
		"too high": {`{metadata: {name: a}, value: 1000000001}`, []string{grouptest.Forbidden + "value"}},
		"system":   {`{metadata: {name: system-node-critical}, value: 2000001000}`, nil},
		"wrong system": {`{metadata: {name: system-node-critical}, value: 5}`,
			[]string{grouptest.Forbidden + "metadata.name"}},
		"reserved": {`{metadata: {name: system-mine}, value: 5}`, []string{grouptest.Forbidden + "metadata.name"}},
		"policy": {`{metadata: {name: a}, value: 5, preemptionPolicy: Maybe}`,
			[]string{grouptest.Unknown + "preemptionPolicy"}},
	} {
		t.Run(name, func(t *testing.T) {
			class := grouptest.Parse[schedulingv1.PriorityClass](t, c.class)
			kind.Default(class)
			grouptest.WantErrors(t, kind.Validate(context.Background(), class, nil), c.want...)
		})
	}
	old := grouptest.Parse[schedulingv1.PriorityClass](t, `{metadata: {name: a, resourceVersion: "1"}, value: 5}`)
	kind.Default(old)
	grouptest.WantRow(t, kind, old, "a", int64(5), false, "<unknown>", "PreemptLowerPriority")
	class := grouptest.Parse[schedulingv1.PriorityClass](t,
		`{metadata: {name: a, resourceVersion: "1"}, value: 6, preemptionPolicy: Never}`)
	grouptest.WantErrors(t, kind.Validate(context.Background(), class, old), grouptest.Forbidden+"value",
		grouptest.Invalid+"preemptionPolicy")
}
