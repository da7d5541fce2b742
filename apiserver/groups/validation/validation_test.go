package validation

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var at = field.NewPath("x")

func TestPaths(t *testing.T) {
	for path, want := range map[string]struct{ descending, reserved bool }{
		"a":       {true, true},
		"a/b..c":  {true, true},
		"..a":     {true, false},
		"../a":    {false, false},
		"a/../b":  {false, false},
		"..":      {false, false},
		"/a":      {false, false},
		"a/..b/c": {true, true},
	} {
		if got := len(DescendingPath(path, at)) == 0; got != want.descending {
			t.Errorf("%q: descending is %t", path, got)
		}
		if got := len(NonReservedPath(path, at)) == 0; got != want.reserved {
			t.Errorf("%q: not reserved is %t", path, got)
		}
	}
}

func TestPercent(t *testing.T) {
	for value, want := range map[string]int{"0%": 0, "25%": 25, "100%": 100, "101%": 101} {
		if got, ok := Percent(intstr.FromString(value)); !ok || got != want {
			t.Errorf("%s: %d %t", value, got, ok)
		}
	}
	for _, value := range []intstr.IntOrString{intstr.FromString("25"), intstr.FromString("a%"), intstr.FromString("%"),
		intstr.FromInt32(5)} {
		if got, ok := Percent(value); ok {
			t.Errorf("%s is %d percent", value.String(), got)
		}
	}
}

func TestResourceNames(t *testing.T) {
	for name, want := range map[corev1.ResourceName]struct{ container, extended bool }{
		"cpu":                    {true, false},
		"memory":                 {true, false},
		"ephemeral-storage":      {true, false},
		"hugepages-2Mi":          {true, false},
		"pods":                   {false, false},
		"bananas":                {false, false},
		"example.com/gpu":        {true, true},
		"kubernetes.io/gpu":      {true, false},
		"requests.example.com/x": {false, false},
		"a b":                    {false, false},
		"":                       {false, false},
	} {
		if got := len(ContainerResourceName(name, at)) == 0; got != want.container {
			t.Errorf("%q: for containers is %t", name, got)
		}
		if got := IsExtendedResource(name); got != want.extended {
			t.Errorf("%q: extended is %t", name, got)
		}
	}
}

func TestResourceRequirementsNamesFields(t *testing.T) {
	r := &corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")},
		Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")},
	}
	errs := ResourceRequirements(r, nil, field.NewPath("spec", "resources"))
	const want = `spec.resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1`
	if len(errs) != 1 || errs[0].Error() != want {
		t.Errorf("got %v, want %s", errs, want)
	}
}

func TestEnum(t *testing.T) {
	for value, want := range map[string]field.ErrorType{"": field.ErrorTypeRequired, "c": field.ErrorTypeNotSupported} {
		if errs := Enum(value, at, "a", "b"); len(errs) != 1 || errs[0].Type != want {
			t.Errorf("%q: %v", value, errs)
		}
	}
	if errs := Enum("a", at, "a", "b"); len(errs) != 0 {
		t.Errorf("a: %v", errs)
	}
	if errs := OptionalEnum[string](nil, at, "a"); len(errs) != 0 {
		t.Errorf("nil: %v", errs)
	}
}
