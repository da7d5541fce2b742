package componentstatus

import (
	"errors"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/server/healthz"

	"github.com/barque/barque/apiserver/resource"
)

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestComponentStatuses(t *testing.T) {
	components := Resource([]healthz.HealthChecker{
		healthz.NamedCheck("store", func(*http.Request) error { return nil }),
		healthz.NamedCheck("node", func(*http.Request) error { return errors.New("no runtime") }),
	}).(*resource.Computed)
	storage := must(components.Storage())(t).(statuses)
	table := func(options *metainternalversion.ListOptions) (rows [][]any) {
		list := must(storage.List(t.Context(), options))(t)
		for _, row := range must(storage.ConvertToTable(t.Context(), list, nil))(t).Rows {
			rows = append(rows, row.Cells)
		}
		return rows
	}
	store, node := []any{"store", "Healthy", "ok", ""}, []any{"node", "Unhealthy", "", "no runtime"}
	for name, c := range map[string]struct {
		options *metainternalversion.ListOptions
		want    [][]any
	}{
		"all": {nil, [][]any{store, node}},
		"by name": {
			&metainternalversion.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", "node")},
			[][]any{node}},
		"by label": {&metainternalversion.ListOptions{LabelSelector: labels.SelectorFromSet(labels.Set{"a": "b"})},
			nil},
	} {
		if diff := cmp.Diff(c.want, table(c.options)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	one := must(storage.Get(t.Context(), "node", nil))(t).(*corev1.ComponentStatus)
	if one.Name != "node" || one.Conditions[0].Status != corev1.ConditionFalse ||
		one.Conditions[0].Error != "no runtime" {
		t.Errorf("node: %+v", one)
	}
}
