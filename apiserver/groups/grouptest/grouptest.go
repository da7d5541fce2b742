// Package grouptest helps the tests of the API groups: objects written as users write them,
// validation errors as lists, and table rows. Only tests import it.
package grouptest

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/barque/barque/apiserver/resource"
)

// The types of validation errors, to be followed by the path of the field.
const (
	Missing   = string(field.ErrorTypeRequired) + " "
	Invalid   = string(field.ErrorTypeInvalid) + " "
	Duplicate = string(field.ErrorTypeDuplicate) + " "
	Forbidden = string(field.ErrorTypeForbidden) + " "
	NotFound  = string(field.ErrorTypeNotFound) + " "
	Unknown   = string(field.ErrorTypeNotSupported) + " "
	TooLong   = string(field.ErrorTypeTooLong) + " "
	TooMany   = string(field.ErrorTypeTooMany) + " "
)

// now is when rows are printed.
var now = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

// Ago is a time before rows are printed.
func Ago(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }

// Parse reads an object from YAML and refuses fields that it does not have.
func Parse[T any](t *testing.T, text string) *T {
	t.Helper()
	obj := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), obj); err != nil {
		t.Fatalf("test data: %v", err)
	}
	return obj
}

// WantErrors compares errors with a list of types and paths, in any order.
func WantErrors(t *testing.T, errs field.ErrorList, want ...string) {
	t.Helper()
	got := []string{}
	for _, e := range errs {
		got = append(got, string(e.Type)+" "+e.Field)
	}
	slices.Sort(got)
	want = append([]string{}, want...)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("errors differ (-want +got):\n%s\n%v", diff, errs)
	}
}

// WantRow compares the cells of an object, their number with that of the columns, and their types
// with those that the columns declare.
func WantRow[T any](t *testing.T, r resource.Resource, obj *T, want ...any) {
	t.Helper()
	kind := r.(*resource.Kind[T])
	got := kind.Row(obj, now)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("cells differ (-want +got):\n%s", diff)
	}
	if len(got) != len(kind.Columns) {
		t.Fatalf("%d cells for %d columns", len(got), len(kind.Columns))
	}
	for i, c := range kind.Columns {
		if _, number := got[i].(int64); number != (c.Type == "integer") {
			t.Errorf("column %s of type %s has a %T", c.Name, c.Type, got[i])
		}
	}
}
