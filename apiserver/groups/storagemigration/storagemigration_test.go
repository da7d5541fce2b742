package storagemigration

import (
	"context"
	"testing"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"

	"github.com/barque/barque/apiserver/groups/grouptest"
	"github.com/barque/barque/apiserver/resource"
)

const head = "metadata: {name: x, resourceVersion: '1'}\n"

func TestMigration(t *testing.T) {
	kind := migrations().(*resource.Kind[storagemigrationv1.StorageVersionMigration])
	for text, want := range map[string][]string{
		"{resource: {group: example.com, resource: things}}": nil,
		"{resource: {resource: pods}}":                       nil,
		"{}":                                                 {grouptest.Missing + "spec.resource.resource"},
		"{resource: {resource: pods/status}}":                {grouptest.Invalid + "spec.resource.resource"},
		"{resource: {group: A, resource: pods}}":             {grouptest.Invalid + "spec.resource.group"},
	} {
		grouptest.WantErrors(t,
			kind.Validate(context.Background(),
				grouptest.Parse[storagemigrationv1.StorageVersionMigration](t, head+"spec: "+text), nil), want...)
	}
	old := grouptest.Parse[storagemigrationv1.StorageVersionMigration](t, head+"spec: {resource: {resource: pods}}")
	other := grouptest.Parse[storagemigrationv1.StorageVersionMigration](t, head+"spec: {resource: {resource: nodes}}")
	grouptest.WantErrors(t, kind.Validate(context.Background(), old, old))
	grouptest.WantErrors(t, kind.Validate(context.Background(), other, old), grouptest.Invalid+"spec")
}

// condition is an entry of a list of conditions.
func condition(kind, status string) string {
	return "{type: " + kind + ", status: '" + status + "', reason: R, lastTransitionTime: '2030-01-01T00:00:00Z'}"
}

func TestMigrationStatus(t *testing.T) {
	const revision, conditions = grouptest.Invalid + "status.resourceVersion", grouptest.Invalid + "status.conditions"
	done, failed := condition("Succeeded", "True"), condition("Failed", "True")
	for _, c := range []struct {
		old, text string
		want      []string
	}{
		{"{}", "{resourceVersion: '12', conditions: [" + condition("Running", "True") + "]}", nil},
		{"{resourceVersion: '12'}", "{resourceVersion: '12', conditions: [" + done + "]}", nil},
		{"{conditions: [" + failed + "]}", "{conditions: [" + failed + "]}", nil},
		{"{}", "{resourceVersion: x}", []string{revision}},
		{"{resourceVersion: '12'}", "{resourceVersion: '13'}", []string{revision}},
		{"{resourceVersion: '12'}", "{}", []string{revision}},
		{"{}", "{conditions: [" + done + ", " + failed + "]}", []string{conditions}},
		{"{conditions: [" + done + "]}", "{}", []string{conditions}},
		{"{conditions: [" + failed + "]}", "{conditions: [" + condition("Failed", "False") + "]}",
			[]string{conditions}},
		{"{}", "{conditions: [" + condition("Running", "Perhaps") + "]}",
			[]string{grouptest.Unknown + "status.conditions[0].status"}},
	} {
		kind := migrations().(*resource.Kind[storagemigrationv1.StorageVersionMigration])
		old := grouptest.Parse[storagemigrationv1.StorageVersionMigration](t, head+"status: "+c.old)
		m := grouptest.Parse[storagemigrationv1.StorageVersionMigration](t, head+"status: "+c.text)
		t.Run("", func(t *testing.T) {
			t.Log(c.old, c.text)
			grouptest.WantErrors(t, kind.Status.Validate(context.Background(), m, old), c.want...)
		})
	}
}

func TestMigrationRow(t *testing.T) {
	for text, state := range map[string]string{
		"{}": "Unknown",
		"{conditions: [" + condition("Running", "True") + "]}":                                          "Running",
		"{conditions: [" + condition("Running", "False") + ", " + condition("Succeeded", "True") + "]}": "Succeeded",
		"{conditions: [" + condition("Failed", "True") + ", " + condition("Odd", "True") + "]}":         "Failed",
	} {
		m := grouptest.Parse[storagemigrationv1.StorageVersionMigration](t,
			head+"spec: {resource: {group: apps, resource: deployments}}\nstatus: "+text)
		grouptest.WantRow(t, migrations(), m, "x", "deployments.apps", state)
	}
}
