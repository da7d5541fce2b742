package core

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"
)

// now is when the tables of the tests are printed.
var now = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

// ago is a time before now.
func ago(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }

// parse reads an object as a user writes it.
func parse[T any](t *testing.T, text string) *T {
	t.Helper()
	obj := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), obj); err != nil {
		t.Fatalf("test data: %v", err)
	}
	return obj
}

// wantErrors compares errors with a list of "type path".
func wantErrors(t *testing.T, errs field.ErrorList, want ...string) {
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

// The types of validation errors, for the tables of the tests.
const (
	missing   = "FieldValueRequired "
	invalid   = "FieldValueInvalid "
	duplicate = "FieldValueDuplicate "
	forbidden = "FieldValueForbidden "
	unknown   = "FieldValueNotSupported "
	tooLong   = "FieldValueTooLong "
)
